"""Opens the arbiter that the settings name."""

from __future__ import annotations

from pathlib import Path

from strandline.core.errors import ConfigError
from strandline.core.secrets import resolve_key, resolve_secret
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.settings.replication import ReplicationSettings
from strandline.core.sites.arbiter import Cell
from strandline.replicate.arbiter.arbiter import Arbiter
from strandline.replicate.arbiter.bucket import BucketCell
from strandline.replicate.arbiter.folder import FolderCell
from strandline.storage.s3_settings import S3Settings

_POSTGRES = ("postgresql://", "postgres://")


def open_arbiter(config: LakeConfig, lake: str) -> Arbiter | None:
    """Returns None if the settings name no arbiter. Sends nothing yet."""
    settings = config.settings.replication
    address = resolve_secret(settings.arbiter)
    if not address:
        return None
    return Arbiter(_cell(address, settings, lake), lake, call_seconds_max=settings.arbiter_seconds_max)


def _cell(address: str, settings: ReplicationSettings, lake: str) -> Cell:
    if address.startswith("file:"):
        folder = Path("/" + address.removeprefix("file:").lstrip("/"))
        return FolderCell(folder, lake)
    if address.startswith("s3://"):
        access, secret = resolve_key(settings.arbiter_access_key), resolve_key(settings.arbiter_secret_key)
        store = S3Settings(settings.arbiter_endpoint, settings.arbiter_region, access, secret)
        return BucketCell(address, store, settings.arbiter_seconds_max)
    if address.startswith(_POSTGRES):
        from strandline.ledger.replicate.arbiter_row import RowCell

        return RowCell(address, lake, settings.arbiter_seconds_max)
    raise ConfigError(
        "replication.arbiter names no place that is supported",
        hint="Use file:/shared/folder, s3://bucket/key, postgresql://…, or env:NAME.",
    )
