"""A stored count of foreign rows is used again only while none of their sequence numbers can have become ours."""

from __future__ import annotations

from datetime import UTC, datetime

from strandline.core.types import Seq, SeqRange, SnapshotId, TableCounts
from strandline.iceberg.metadata.table_metadata import SnapshotView, TableView, WapId
from strandline.read.foreign_rows import still_right, trusted_snapshots

LAKE = "one"
INSERTED = SnapshotId(2)  # somebody's row


def view(*appended: tuple[int, int], compacted: bool = False) -> TableView:
    """Our first block, a foreign commit, then blocks of ours with these sequence numbers, then perhaps a compaction."""
    snapshots = [commit(1, "append", (1, 6)), commit(2, "append", None)]
    snapshots += [commit(n, "append", rows) for n, rows in enumerate(appended, 3)]
    if compacted:
        snapshots.append(commit(len(snapshots) + 1, "replace", None))
    refs = {"main": snapshots[-1].id}
    return TableView("u", "file:/t", 2, {}, refs, {s.id: s for s in snapshots}, {"fields": []}, 0)


def commit(id: int, operation: str, rows: tuple[int, int] | None) -> SnapshotView:
    wap = None if rows is None else str(WapId(LAKE, span(*rows), None, f"batch-{id}"))
    return SnapshotView(SnapshotId(id), None if id == 1 else SnapshotId(id - 1), operation, wap, 0, {}, id)


def span(lo: int, hi: int) -> SeqRange:
    return SeqRange(Seq(lo), Seq(hi))


def counts(foreign_from: int | None, *, twice: int | None = 0) -> TableCounts:
    lowest = None if foreign_from is None else Seq(foreign_from)
    return TableCounts(INSERTED, 0, 1, datetime(2026, 1, 1, tzinfo=UTC), twice, foreign_from=lowest)


def test_a_count_is_not_used_again_if_a_newer_block_may_have_the_number_of_a_foreign_row() -> None:
    """The writer looked at the table before the foreign 11 came, and reserved after it was counted."""
    assert still_right(counts(11), view((7, 16)), LAKE, [span(1, 16)]) is None
    assert still_right(counts(11), view((7, 11)), LAKE, [span(1, 11)]) is None
    assert still_right(counts(11), view((7, 16), compacted=True), LAKE, [span(1, 16)]) is None
    assert still_right(counts(11), view((7, 8), (9, 16)), LAKE, [span(1, 16)]) is None
    # A block above 11 may have one of further foreign numbers. One new count tells, and is good for all later blocks.
    assert still_right(counts(11), view((12, 21)), LAKE, [span(1, 6), span(12, 21)]) is None


def test_a_count_is_used_again_while_newer_blocks_are_below_every_foreign_number_or_no_block_can_get_one() -> None:
    for known in (counts(11), counts(None)):
        assert still_right(known, view((7, 10)), LAKE, [span(1, 10)]) == known
        assert still_right(known, view((7, 8), (9, 10), compacted=True), LAKE, [span(1, 10)]) == known
    assert still_right(counts(None), view((7, 16)), LAKE, [span(1, 16)]) == counts(None)


def test_when_rows_are_counted_again_files_with_such_foreign_numbers_are_examined_again() -> None:
    """None of their numbers stood twice when they were counted, but blocks were reserved since."""
    is_trusted = trusted_snapshots(counts(11), view((7, 16)), LAKE)
    assert not is_trusted(INSERTED, 11) and not is_trusted(INSERTED, 1 << 40)
    assert is_trusted(SnapshotId(1), 6) and is_trusted(SnapshotId(3), 16)
    assert is_trusted(INSERTED, 3), "numbers that no block can get any more"
    assert trusted_snapshots(counts(None), view((7, 16)), LAKE)(INSERTED, 3)
    assert not trusted_snapshots(counts(None, twice=None), view((7, 16)), LAKE)(INSERTED, 3)
