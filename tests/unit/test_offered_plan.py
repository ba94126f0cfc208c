"""What a follower does with a staged block, from the metadata alone."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from strandline.core.block_branches import BlockBranch, parse_branch
from strandline.core.types import Seq, SeqRange, SnapshotId
from strandline.iceberg.metadata.block_plans import AlreadyPublished, CherryPick, CountRows, RemoveBranch
from strandline.iceberg.metadata.offered_plan import ApplyAgain, plan_offered
from strandline.iceberg.metadata.table_metadata import SnapshotView, TableView, WapId

OWN, OTHER = "sl_11_4294967298", "sl_11_4294967299"
STAGED = SnapshotId(9)


def wap(lo: int = 11, hi: int = 20) -> WapId:
    return WapId("lake", SeqRange(Seq(lo), Seq(hi)), None, f"batch-{lo}")


def snapshot(id: int, parent: int | None, operation: str = "append", brings: WapId | None = None) -> SnapshotView:
    name = None if brings is None else str(brings)
    return SnapshotView(SnapshotId(id), None if parent is None else SnapshotId(parent), operation, name, 0, {})


def table(*main: SnapshotView, refs: Mapping[str, int] | None = None, parent: int | None = 1) -> TableView:
    """`main`: the snapshots of main, oldest first. The block is staged on snapshot `parent`."""
    every = (*main, snapshot(9, parent, brings=wap()))
    heads = {"main": main[-1].id} if main else {}
    heads |= {name: SnapshotId(at) for name, at in (refs if refs is not None else {OWN: 9}).items()}
    return TableView("uuid", "somewhere", 2, {}, heads, {s.id: s for s in every}, {"fields": []}, 0)


def plan(view: TableView, rows_shared: int | None = None) -> object:
    return plan_offered(view, OWN, STAGED, wap(), rows_shared=rows_shared)


BASE = snapshot(1, None)


def test_a_block_whose_range_nobody_touched_since_is_published_without_reading_a_row() -> None:
    assert plan(table(BASE)) == CherryPick(STAGED)
    assert plan(table(parent=None)) == CherryPick(STAGED), "a table without rows"
    apart = snapshot(2, 1, brings=wap(21, 30))
    replaced, deleted = snapshot(3, 2, "replace"), snapshot(4, 3, "delete")
    assert plan(table(BASE, apart, replaced, deleted)) == CherryPick(STAGED)


def test_a_block_that_was_staged_when_the_table_was_empty_is_published_without_reading_a_row() -> None:
    """Its branch began with a snapshot that main does not have."""
    first, second = snapshot(2, None, brings=wap(1, 10)), snapshot(3, 2, brings=wap(21, 30))
    assert plan(table(first, second, parent=8)) == CherryPick(STAGED)
    assert plan(table(first, parent=None)) == CherryPick(STAGED)


@pytest.mark.parametrize(
    "first",
    [snapshot(2, None, brings=wap(1, 15)), snapshot(2, None), snapshot(2, 7, brings=wap(1, 10))],
    ids=["a range that overlaps", "a foreign append", "history was expired"],
)
def test_a_history_that_is_not_complete_or_not_ours_says_nothing_of_a_table_that_was_empty(first: SnapshotView) -> None:
    assert plan(table(first, parent=8)) == CountRows()


@pytest.mark.parametrize(
    "since",
    [snapshot(2, 1, brings=wap(1, 15)), snapshot(2, 1), snapshot(2, 1, "overwrite"), snapshot(2, 7)],
    ids=["a range that overlaps", "a foreign append", "a foreign overwrite", "history was expired"],
)
def test_rows_that_came_since_are_counted_and_only_those_on_its_own_branch_decide(since: SnapshotView) -> None:
    view = table(BASE, since)
    assert plan(view) == CountRows()
    assert plan(view, rows_shared=0) == CherryPick(STAGED), "the rest of the range must still come"
    assert isinstance(plan(view, rows_shared=1), ApplyAgain)


def test_every_branch_of_a_published_block_goes_before_it_is_settled() -> None:
    published = snapshot(2, 1, brings=wap())
    for left in ({OWN: 9}, {OTHER: 1}, {"sl_11": 1}):
        assert plan(table(BASE, published, refs=left)) == RemoveBranch(SnapshotId(2))
    assert plan(table(BASE, published, refs={"sl_12_7": 1, "sl_1": 1})) == AlreadyPublished(SnapshotId(2), None)
    fast_forwarded = table(BASE, snapshot(9, 1, brings=wap()), refs={})
    assert plan(fast_forwarded) == AlreadyPublished(STAGED, None)


def test_a_block_without_its_branch_or_with_another_one_is_applied_again_and_never_held() -> None:
    assert isinstance(plan(table(BASE, refs={})), ApplyAgain)
    assert isinstance(plan(table(BASE, refs={OTHER: 9})), ApplyAgain)
    assert isinstance(plan(table(BASE, refs={OWN: 1})), ApplyAgain)


def test_a_process_that_staged_the_same_block_once_more_changes_nothing() -> None:
    view = table(BASE, refs={OWN: 10})
    again = TableView(**{f: getattr(view, f) for f in view.__slots__} | {
        "snapshots": {**view.snapshots, SnapshotId(10): snapshot(10, 9, brings=wap())}
    })  # fmt: skip
    assert plan(again) == CherryPick(STAGED)


def test_the_names_of_branches_tell_the_block_and_the_fence() -> None:
    assert parse_branch("sl_11") == BlockBranch(11, None)
    assert parse_branch(OWN) == BlockBranch(11, 4294967298)
    for other in ("sl_", "sl_a", "sl_1_", "sl_1_x", "sl_1_2_3", "main", "sl_-1", "xsl_1", "sl_1\n"):
        assert parse_branch(other) is None
    assert list(table(refs={OWN: 9, "sl_11": 9, "sl_110": 9, "mine": 9}).branches_of(11)) == [OWN, "sl_11"]
