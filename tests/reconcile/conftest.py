"""Lakes with real Iceberg tables, written by PyIceberg, and a watch that ends nothing."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from strandline.core.settings.lake_config import LakeConfig, Settings
from strandline.core.types import SEQ_COLUMN, Seq
from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog, open_catalog
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.reconcile.compare.compared import Survey
from strandline.reconcile.model import Finding, LedgerContext, Phase, TableSeal
from strandline.reconcile.storage.local_store import LocalStore
from strandline.reconcile.survey import LakeSurveyor
from tests.reconcile.whole_lakes import MakeLake, WholeLake

DAY_NS = 86_400 * 1_000_000_000


class Watching:
    def __init__(self) -> None:
        self.phases: list[Phase] = []

    def phase(self, phase: Phase) -> None:
        self.phases.append(phase)

    def advance(self, more: int) -> None: ...

    def check(self) -> None: ...


class SomeLake:
    """A lake in a folder, its tables, and what the reconciler says of them."""

    def __init__(self, home: Path, **reconcile: Any) -> None:
        self.config = LakeConfig(Settings(reconcile=reconcile), home)
        folder = self.config.warehouse_folder
        assert folder is not None
        self.warehouse = folder
        self.warehouse.mkdir(parents=True, exist_ok=True)
        self.catalog: PyIcebergCatalog = open_catalog(self.config)
        self.seq = 0

    def create(self, name: str = "ns.t", **options: Any) -> Table:
        columns = parse_columns([{"name": "v", "type": "string"}, {"name": "p", "type": "int"}])
        return self.catalog.create_dataset_table(name, columns, lake_id="lake-1", epoch=1, **options)

    def append(self, name: str = "ns.t", rows: int = 3, branch: str | None = None, p: int = 1) -> Table:
        table = self.catalog.load(name)
        numbers = range(self.seq + 1, self.seq + rows + 1)
        self.seq += rows
        schema = pa.schema([pa.field(SEQ_COLUMN, pa.int64(), nullable=False), ("v", pa.string()), ("p", pa.int32())])
        data = pa.table({SEQ_COLUMN: list(numbers), "v": ["x"] * rows, "p": [p] * rows}, schema=schema)
        if branch is None:
            table.append(data)
        else:
            table.append(data, branch=branch)
        return self.catalog.load(name)

    def path(self, relative: str) -> Path:
        return self.warehouse / relative

    def put(self, relative: str, *, days_old: float = 10, content: bytes = b"x") -> str:
        path = self.path(relative)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        at = time.time() - days_old * 86_400
        os.utime(path, (at, at))
        return str(path)

    def context(self, **values: Any) -> LedgerContext:
        seals = {name: TableSeal(name, Seq(self.seq) if self.seq else None) for name in self.catalog.table_names()}
        given = {"now_ns": time.time_ns(), "grace_seconds": 86_400, "clock_skew_seconds": 300, "seals": seals}
        return LedgerContext(**(given | values))

    def surveyor(self, **options: Any) -> LakeSurveyor:
        return LakeSurveyor(self.config, self, LocalStore().find_file, **options)

    def survey(self, context: LedgerContext | None = None, **options: Any) -> Survey:
        return self.surveyor(**options).survey(context or self.context(), Watching())

    def live(self) -> set[str]:
        return live_files(self.catalog)


def live_files(catalog: PyIcebergCatalog) -> set[str]:
    """Everything that Iceberg's own reader reaches from every snapshot, read in another way than ours."""
    found: set[str] = set()
    for name in catalog.table_names():
        table = catalog.load(name)
        found |= {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
        found |= {s.statistics_path for s in table.metadata.statistics}
        for snapshot in table.snapshots():
            found.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                found.add(manifest.manifest_path)
                found |= {e.data_file.file_path for e in manifest.fetch_manifest_entry(table.io)}
    return {re.sub("^file:/+", "/", path) for path in found}


def acted_on(findings: Iterator[Finding]) -> list[str]:
    return [finding.path for finding in findings if finding.protected is None]


def by_path(findings: Iterator[Finding]) -> dict[str, Finding]:
    return {finding.path: finding for finding in findings}


def data_files(table: Table) -> Sequence[str]:
    return sorted(task.file.file_path.removeprefix("file://") for task in table.scan().plan_files())


@pytest.fixture
def some_lake(tmp_path: Path) -> Iterator[SomeLake]:
    lake = SomeLake(tmp_path)
    yield lake
    lake.catalog.close()


@pytest.fixture
def make_lake(tmp_path: Path) -> Iterator[MakeLake]:
    """`make_lake(2, grace_hours=1)`: a whole lake with two blocks in its table, and these settings of `[reconcile]`."""
    made: list[WholeLake] = []

    def make(blocks: int = 1, **reconcile: object) -> WholeLake:
        made.append(WholeLake(tmp_path / f"lake-{len(made)}", **reconcile))
        for _ in range(blocks):
            made[-1].append()
        return made[-1]

    yield make
    for lake in made:
        lake.lake.close()


@pytest.fixture
def lake(make_lake: MakeLake) -> WholeLake:
    return make_lake(2)
