"""PyIceberg's expiry removes the name of an expired parent, so that history seems to begin later than it did. Real
tables, no JVM.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from strandline import Lake
from strandline.core.types import SEQ_COLUMN, Anchor, SnapshotId
from strandline.iceberg.metadata.lineage import Holds, Memory, NotKnown, RolledBack, judge
from strandline.iceberg.metadata.metadata_peek import earlier_links
from strandline.iceberg.metadata.table_metadata import EXPIRED_PARENT, SETTLED_TAG, TableView
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.ingest.reserve_above_foreign import only_ours_since
from strandline.lake import open_lake
from tests.command_line import init_lake_here


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    init_lake_here(tmp_path, monkeypatch)
    with open_lake(tmp_path) as opened:
        opened.create_dataset("events", parse_columns([{"name": "id", "type": "long"}]))
        yield opened


def append(lake: Lake, number: int) -> Table:
    table = lake.catalog.load("default.events")
    table.append(pa.Table.from_pylist([{SEQ_COLUMN: number, "id": number}], table.schema().as_arrow()))
    return lake.catalog.load("default.events")


def view(lake: Lake) -> TableView:
    return lake.catalog.load_with_view("default.events")[1]


def expire(lake: Lake, *ids: int | None) -> None:
    lake.catalog.load("default.events").maintenance.expire_snapshots().by_ids(
        [i for i in ids if i is not None]
    ).commit()


def anchor_of(found: TableView) -> Anchor:
    assert found.settled is not None
    return found.settled


def test_main_still_descends_from_what_was_settled_after_pyiceberg_expired_what_lies_between(lake: Lake) -> None:
    settled = append(lake, 1)
    current = settled.current_snapshot()
    assert current is not None
    settled.manage_snapshots().create_tag(current.snapshot_id, SETTLED_TAG).commit()
    append(lake, 2)
    between = view(lake).main
    append(lake, 3)
    memory = Memory(anchor_of(view(lake)))
    assert isinstance(judge(view(lake), memory), Holds)
    expire(lake, between)
    found = view(lake)
    assert found.main is not None and found.snapshots[found.main].parent == EXPIRED_PARENT
    assert isinstance(judge(found, memory, lambda: earlier_links(found)), Holds), (
        "an earlier version of the metadata tells"
    )
    assert isinstance(judge(found, memory), NotKnown), "without one, nobody knows; a rollback it is not"
    assert not found.chain_reaches(None) and not only_ours_since(found, None, lake.id)


def test_a_table_that_was_rolled_back_and_expired_by_pyiceberg_is_still_noticed(lake: Lake) -> None:
    first = view(append(lake, 1) and lake).main
    append(lake, 2)
    third = append(lake, 3)
    newest = third.current_snapshot()
    assert newest is not None and first is not None
    memory = Memory(Anchor(SnapshotId(newest.snapshot_id), newest.sequence_number or 0))
    third.manage_snapshots().rollback_to_snapshot(first).commit()
    assert isinstance(judge(view(lake), memory, lambda: earlier_links(view(lake))), RolledBack)
    expire(lake, newest.snapshot_id)
    assert isinstance(judge(view(lake), memory, lambda: earlier_links(view(lake))), RolledBack)


def test_a_first_snapshot_is_the_first(lake: Lake) -> None:
    append(lake, 1)
    append(lake, 2)
    assert view(lake).chain_reaches(None)
    assert [s.parent for s in view(lake).ancestors(view(lake).main)][-1] is None
