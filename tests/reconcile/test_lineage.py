"""A catalog that was put back from an older copy makes garbage of nothing."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

import pyarrow as pa
import pytest

from strandline.core.types import SEQ_COLUMN, Reserved, Seq, SnapshotId, Staged
from strandline.ledger.ingest import blocks, published_blocks
from strandline.reconcile.compare import guard
from strandline.reconcile.model import LastPublished, Lineage, Protection, TableSeal
from tests.reconcile.conftest import SomeLake, acted_on, by_path
from tests.reconcile.whole_lakes import ACT, REPORT, MakeLake, WholeLake

SECOND = 1_000_000_000
CHAIN: dict[int, int | None] = {1: None, 2: 1, 3: 2}


@pytest.fixture
def lake(make_lake: MakeLake) -> WholeLake:
    return make_lake(0, references_shrink_max=0.9)


def lineage(sequence: int | None = 5) -> Lineage:
    return Lineage(sequence, 100 * SECOND, 3, CHAIN)


def judged(found: Lineage | None, *, before: int | None = None, published: tuple[LastPublished, ...] = ()) -> bool:
    reason = guard.by_lineage(found, before=before, published=published, skew_seconds=10)
    assert reason in (None, Protection.ROLLED_BACK)
    return reason is not None


def test_a_number_that_went_back_is_an_older_copy() -> None:
    assert judged(lineage(), before=6)
    assert not judged(lineage(), before=5) and not judged(lineage(), before=None)
    assert not judged(lineage(sequence=None), before=6) and not judged(None, before=6)


def test_a_table_without_what_was_published_or_older_than_it_is_an_older_copy() -> None:
    assert not judged(lineage(), published=(LastPublished(2, 0), LastPublished(3, 110 * SECOND)))
    assert judged(lineage(), published=(LastPublished(3, 110 * SECOND + 1),))
    assert judged(lineage(), published=(LastPublished(3, 0), LastPublished(9, 0)))
    assert not judged(lineage(), published=(LastPublished(3, None),))


def test_what_was_expired_tells_nothing_and_what_main_left_behind_does() -> None:
    assert Lineage(1, 0, 3, {3: 2, 2: 1}).contains(9) is None
    assert Lineage(1, 0, 3, {3: 2, 2: 1}).contains(2) is True
    assert Lineage(1, 0, 3, {3: 2, 2: 1, 8: 2, 9: 8}).contains(9) is False
    assert Lineage(1, 0, 3, CHAIN).contains(9) is False
    assert Lineage(1, 0, None, {}).contains(9) is False


def metadata_files(lake: WholeLake) -> list[str]:
    return [entry.metadata_file for entry in lake.table().metadata.metadata_log]


def put_back(catalog: Path, metadata_file: str) -> None:
    with sqlite3.connect(catalog) as connection:
        connection.execute("UPDATE iceberg_tables SET metadata_location = ?", (metadata_file,))


def make_old(folder: Path) -> None:
    for file in folder.rglob("*.*"):
        os.utime(file, (1e9, 1e9))


def test_a_catalog_that_is_put_back_stops_the_table_until_it_has_come_as_far_again(lake: WholeLake) -> None:
    for _ in range(4):
        lake.append()
    assert not lake.run(REPORT).outcome.protected
    put_back(lake.lake.config.path("catalog.db"), metadata_files(lake)[-1])
    make_old(lake.warehouse / "default")
    for _ in range(2):  # what it was is remembered, and not what it is now
        run = lake.run(ACT)
        assert run.outcome.done.orphans == 0 and run.outcome.protected["rolled_back"] > 0
    lake.append()
    assert "rolled_back" not in lake.run(REPORT).outcome.protected


def publish(lake: WholeLake) -> None:
    """With the snapshot on record, as ingest does it."""
    wanted = blocks.NewBlock(lake.dataset.id, 1, f"batch-{time.time_ns()}", None)
    block, _ = blocks.reserve(lake.lake.ledger, lake.lake.witness, wanted, lease_seconds=600)
    assert isinstance(block, Reserved)
    schema = pa.schema([pa.field(SEQ_COLUMN, pa.int64(), nullable=False), ("id", pa.int64()), ("kind", pa.string())])
    lake.table().append(pa.table({SEQ_COLUMN: [block.head.rows.lo], "id": [1], "kind": ["k"]}, schema=schema))
    snapshot = SnapshotId(lake.table().metadata.current_snapshot_id or 0)
    assert blocks.mark_staged(lake.lake.ledger, lake.lake.witness, block, snapshot)
    staged = blocks.find_block(lake.lake.ledger, block.head)
    assert isinstance(staged, Staged)
    assert blocks.mark_published(lake.lake.ledger, staged, row_count=1, snapshot=snapshot)


def test_a_catalog_that_lacks_what_the_ledger_published_stops_the_table_without_any_run_before(lake: WholeLake) -> None:
    for _ in range(3):
        publish(lake)
    put_back(lake.lake.config.path("catalog.db"), metadata_files(lake)[-1])
    make_old(lake.warehouse / "default")
    run = lake.run(ACT)
    assert run.outcome.done.orphans == 0 and run.outcome.protected["rolled_back"] > 0
    with lake.lake.ledger.write() as connection:  # a person takes it as it is
        published_blocks.forget_snapshots(connection, lake.dataset.id)
    assert "rolled_back" not in lake.run(REPORT).outcome.protected


def test_tables_beside_one_that_was_put_back_are_swept(some_lake: SomeLake) -> None:
    for name in ("ns.t", "ns.other"):
        some_lake.create(name)
        some_lake.append(name)
    strays = [some_lake.put(f"ns/{name}/data/stray.parquet") for name in ("t", "other")]
    uuid = str(some_lake.catalog.load("ns.t").metadata.table_uuid)
    context = some_lake.context(sequences_before={uuid: 2}, seals={"ns.t": TableSeal("ns.t", Seq(9))})
    survey = some_lake.survey(context)
    assert by_path(survey.drift.orphans())[strays[0]].protected is Protection.ROLLED_BACK
    assert acted_on(survey.drift.orphans()) == strays[1:]
