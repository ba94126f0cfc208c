"""A lake of files with one table, without Spark, that tests move to other places."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.core import failpoints
from strandline.core.errors import (
    StrandlineError,
)
from strandline.core.settings.lake_config import CONFIG_NAME, LakeConfig, load_config
from strandline.core.types import SnapshotId
from strandline.iceberg.pyiceberg.catalog import open_catalog
from strandline.ledger import move_steps
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import blocks, datasets
from strandline.ledger.witness import WitnessRecord, open_witness
from strandline.migrate.run import Migration, MoveReport
from tests.conftest import toml_of
from tests.servers import S3

LAKE = "a-lake"
FILES: dict[str, dict[str, Any]] = {"ledger": {"url": "ledger-2.db"}, "catalog": {"path": "catalog-2.db"}}


@dataclass(frozen=True)
class Home:
    folder: Path

    @property
    def settings(self) -> Path:
        return self.folder / CONFIG_NAME

    @property
    def config(self) -> LakeConfig:
        return load_config(self.settings)

    def write(self, settings: Mapping[str, Mapping[str, Any]], name: str = "new.toml") -> Path:
        path = self.folder / name
        path.write_text(toml_of({k: dict(v) for k, v in settings.items()}), "utf-8")
        return path

    def migrate(self, settings: Mapping[str, Mapping[str, Any]] = FILES, *, dry_run: bool = False) -> MoveReport:
        return Migration(self.settings, self.write(settings)).run(dry_run=dry_run)

    def dies(self, point: str, settings: Mapping[str, Mapping[str, Any]] = FILES) -> None:
        failpoints.arm(f"{point}=fail")
        try:
            with pytest.raises(failpoints.FailpointError, match=point):
                self.migrate(settings)
        finally:
            failpoints.arm("")

    def tables(self, config: LakeConfig | None = None) -> list[str]:
        catalog = open_catalog(config or self.config)
        try:
            return catalog.table_names()
        finally:
            catalog.close()

    def add_table(self, *identifier: str, rows: int = 3) -> None:
        catalog = open_catalog(self.config)
        try:
            catalog.ensure_namespace(identifier[:-1], {})
            table = catalog._catalog.create_table(identifier, pa.schema([("a", pa.int64())]))
            table.append(pa.table({"a": list(range(rows))}))
        finally:
            catalog.close()

    def rows_of(self, name: str) -> int:
        catalog = open_catalog(self.config)
        try:
            return len(catalog.load(name).scan().to_arrow())
        finally:
            catalog.close()

    def publish(self, batch: str, config: LakeConfig | None = None) -> int:
        """Takes ten numbers; returns the last one."""
        ledger, witness = Ledger(config or self.config), open_witness(config or self.config)
        try:
            new = blocks.NewBlock(1, 10, batch, None)
            reserved, _ = blocks.reserve(ledger, witness, new, lease_seconds=60)
            assert blocks.mark_staged(ledger, witness, reserved, SnapshotId(7))
            staged = blocks.find_block(ledger, reserved.head)
            assert isinstance(staged, blocks.Staged)
            assert blocks.mark_published(ledger, staged, row_count=10, snapshot=SnapshotId(7))
            return int(reserved.head.rows.hi)
        finally:
            ledger.close()

    def is_open(self) -> bool:
        ledger = Ledger(self.config)
        try:
            return move_steps.find_move(ledger) is None
        finally:
            ledger.close()


def make(folder: Path, lake: str = LAKE) -> Home:
    folder.mkdir()
    home = Home(folder)
    home.write({"ledger": {"url": "ledger.db"}}, CONFIG_NAME)
    (folder / "warehouse").mkdir()
    open_witness(home.config).create(WitnessRecord(lake, 0))
    ledger = Ledger(home.config)
    ledger.create(lake)
    with ledger.write() as connection:
        datasets.add(connection, name="default.events", table_uuid="u")
    ledger.close()
    home.add_table("default", "events")
    return home


def to_bucket(s3: S3, number: int, bucket: str) -> dict[str, dict[str, Any]]:
    keys = {"endpoint": s3.endpoint, "access_key": s3.access_key, "secret_key": s3.secret_key}
    return {
        "warehouse": {"url": f"s3://{bucket}/some/lake", **keys},
        "catalog": {"path": f"catalog-{number}.db"},
        "ledger": {"url": f"ledger-{number}.db"},
    }


def at_point(monkeypatch: pytest.MonkeyPatch, point: str, do: Callable[[], object]) -> list[object]:
    """Does this once when a migration comes to the point; what it returned or raised."""
    hit, done = failpoints.hit, list[object]()

    def also(reached: str) -> None:
        if reached == point and not done:
            done.append(None)
            try:
                done[0] = do()
            except StrandlineError as e:
                done[0] = e
        hit(reached)

    monkeypatch.setattr(failpoints, "hit", also)
    return done
