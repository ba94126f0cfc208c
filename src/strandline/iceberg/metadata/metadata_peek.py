"""Reads a table's metadata without PyIceberg, for commands that must answer within a second.

The embedded catalog is a SQLite file with one row per table. The row names the newest metadata file, which is JSON.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from strandline.core.errors import StorageError
from strandline.core.settings import LakeConfig
from strandline.iceberg.metadata.identifier import CATALOG, full_name, parse_identifier
from strandline.iceberg.metadata.lineage import Links, links_of
from strandline.iceberg.metadata.table_metadata import SnapshotView, TableView, parse_view

BUSY_TIMEOUT_SECONDS = 60
_GZIP_MAGIC = b"\x1f\x8b"
_READ_ATTEMPTS = 3
# What a damaged file may raise: it does not decompress, decode or parse, or lacks what every table has.
_DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    StopIteration,
    EOFError,
    RecursionError,
    zlib.error,
)


@dataclass(frozen=True, slots=True)
class TableGlance:
    metadata_location: str
    view: TableView
    # live rows of main; None if unknown, because of delete files or a writer that keeps no totals
    row_count: int | None
    open_branches: int  # blocks that are staged and not published yet
    history: tuple[SnapshotView, ...]  # main and its ancestors, newest first, as far back as they are kept


def is_glanceable(config: LakeConfig) -> bool:
    return config.settings.catalog.kind == "sqlite" and config.warehouse_folder is not None


def read_pointer(config: LakeConfig, name: str) -> TableGlance | None:
    """None if there is no such table, or not a local one (REST catalogs and buckets). Raises StorageError."""
    if not is_glanceable(config):
        return None
    catalog = config.path(config.settings.catalog.path)
    if not catalog.is_file():
        return None
    missing: OSError | None = None
    for _ in range(_READ_ATTEMPTS):
        location = _location(catalog, parse_identifier(name))
        if location is None:
            return None
        if (path := _local_path(location)) is None:
            return None
        try:
            return glance_of(location, path.read_bytes())
        except FileNotFoundError as e:
            # After another commit in between, the catalog names a newer file now.
            missing = e
        except _DAMAGE as e:
            raise StorageError(
                f"{full_name(name)}: its metadata {path} cannot be read: {e}",
                hint="The file is damaged. Restore the file, or an older copy of the catalog.",
            ) from e
    raise StorageError(
        f"{full_name(name)}: the catalog names a metadata file that is not there: {location}",
        hint="Someone deleted it. Restore the file, or an older copy of the catalog.",
    ) from missing


def _location(catalog: Path, identifier: tuple[str, ...]) -> str | None:
    uri = f"file:{quote(str(catalog))}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_SECONDS)) as connection:
            row = connection.execute(
                "SELECT metadata_location FROM iceberg_tables"
                " WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?",
                (CATALOG, ".".join(identifier[:-1]), identifier[-1]),
            ).fetchone()
    except sqlite3.OperationalError as e:
        if "no such table" in str(e):
            return None
        raise StorageError(f"the catalog {catalog} cannot be read: {e}") from e
    except sqlite3.DatabaseError as e:
        raise StorageError(f"the catalog {catalog} cannot be read: {e}") from e
    return None if row is None else row[0]


def _local_path(location: str) -> Path | None:
    if "://" in location and not location.startswith("file://"):
        return None
    # Iceberg's writers take a location literally: nothing in it is an escape.
    return Path("/" + location.removeprefix("file:").lstrip("/"))


def earlier_links(view: TableView) -> Iterator[Links]:
    """The snapshots in earlier metadata files, newest file first, as long as those are local files."""
    for location in reversed(view.metadata_log):
        if (path := _local_path(location)) is None:
            return
        try:
            yield links_of(glance_of(location, path.read_bytes()).view)
        except _DAMAGE:
            return


def glance_of(location: str, content: bytes) -> TableGlance:
    """From the bytes of a metadata file."""
    view = parse_view(_unpacked(content).decode("utf-8"))
    history = tuple(view.ancestors(view.main))
    return TableGlance(location, view, _row_count(view, history), len(view.branches), history)


def metadata_document(content: bytes) -> object:
    """The JSON document in the bytes of a metadata file. Raises ValueError or OSError."""
    document: object = json.loads(_unpacked(content))
    return document


def _unpacked(content: bytes) -> bytes:
    return gzip.decompress(content) if content.startswith(_GZIP_MAGIC) else content


def _row_count(view: TableView, history: tuple[SnapshotView, ...]) -> int | None:
    if view.main is None:
        return 0
    if not history:
        return None
    summary = history[0].summary
    if summary.get("total-delete-files") != "0" or "total-records" not in summary:
        return None
    return int(summary["total-records"])
