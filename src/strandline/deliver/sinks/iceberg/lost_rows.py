"""Finds out whether a table still holds the rows that its record lists.

The record is a set of table properties. A rollback sets main back to an earlier snapshot and leaves properties as they
are, so rows can be gone that the record lists. Main must therefore descend from the snapshot of our last commit. What
the owner deletes or compacts makes descendants, so it is no loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.deliver.sink import Loss
from strandline.deliver.sinks.iceberg.record import Head, LandedRange, LaneRecord, TableRecord
from strandline.iceberg.metadata.lineage import descends

if TYPE_CHECKING:
    from strandline.iceberg.pyiceberg.other_rows import OtherTableReader
    from strandline.iceberg.pyiceberg.other_table import LoadedTable

_EMPTY_HINT = "If consumers delete all rows: `strandline sink update NAME --option may_be_empty=true`, then resume it."
_DELETED_HINT = "If the rows were deleted on purpose, --accept-loss is right."


@dataclass(frozen=True, slots=True)
class RemainingInTable:
    """What the table still has of a range that it got."""

    lane: LaneRecord
    given: LandedRange
    there: int

    @property
    def missing(self) -> int:
        return max(0, self.given.count - self.there)


def was_set_back(loaded: LoadedTable, record: TableRecord) -> str | None:
    """Why the table may lack the rows of our last commit; None if it has them. If snapshots were expired between that
    commit and main, rows of its range decide: a rollback takes all of them."""
    head = record.head()
    if head is None:
        return None
    match _descends(loaded, head):
        case True:
            return None
        case False:
            return f"{loaded.name} was rolled back to a snapshot without the rows that were delivered last"
    if head.rows is None or _has_rows(loaded, record, head):
        return None
    return f"{loaded.name} has none of the rows that were delivered last, {head.rows}, and its history is expired"


def _descends(loaded: LoadedTable, head: Head) -> bool | None:
    """None if expired snapshots leave it open. Iceberg's Java library keeps the name of a parent that was expired;
    PyIceberg removes it, so that a history may begin above our commit."""
    found = descends(loaded.links, loaded.main, head.anchor)
    first = loaded.main
    while first is not None and (parent := loaded.links.get(first, (None, 0))[0]) is not None:
        first = parent
    begins_above = first is not None and loaded.links.get(first, (None, 0))[1] > head.anchor.sequence
    return None if found is False and begins_above else found


def _has_rows(loaded: LoadedTable, record: TableRecord, head: Head) -> bool:
    from strandline.iceberg.pyiceberg.other_rows import OtherTableReader

    reader = OtherTableReader(loaded)
    lane = next((x for x in record.lanes() if x.key == head.lane), None)
    if head.rows is None or lane is None or not reader.has_numbers:
        return False
    return any(len(numbers) for numbers in reader.numbers(head.rows, lane.address.partition or None))


def find_loss(loaded: LoadedTable | None, name: str, lanes: Sequence[LaneRecord], *, may_be_empty: bool) -> Loss | None:
    """What the table lacks of the ranges in `lanes`, which are those that it must hold. Rows that the owner deleted are
    no loss, but a table without any row is, unless the owner said beforehand that it may be empty."""
    given = sum(r.count for lane in lanes for r in lane.ranges)
    if not given:
        return None
    if loaded is None:
        return Loss(f"its table {name} is gone", given, 0)
    record = TableRecord(loaded.properties)
    if (why := was_set_back(loaded, record)) is not None:
        there = sum(min(r.there, r.given.count) for r in find_remains(loaded, lanes))
        # The rows may have been put back, by a cherry-pick for example.
        return Loss(why, given, there, _DELETED_HINT) if there < given else None
    if loaded.rows == 0 and not may_be_empty:
        return Loss(f"its table {name} was emptied", given, 0, _EMPTY_HINT)
    return None


def find_remains(loaded: LoadedTable | None, lanes: Iterable[LaneRecord]) -> list[RemainingInTable]:
    """Reads all sequence numbers of the table, file by file."""
    from strandline.iceberg.pyiceberg.other_rows import OtherTableReader

    wanted = list(lanes)
    reader = None if loaded is None else OtherTableReader(loaded)
    if reader is None or not reader.has_numbers:
        return [RemainingInTable(lane, r, 0) for lane in wanted for r in lane.ranges]
    by_partition: dict[str, list[LaneRecord]] = {}
    for lane in wanted:
        by_partition.setdefault(lane.address.partition, []).append(lane)
    return [r for partition, lanes_ in by_partition.items() for r in _count(reader, partition, lanes_)]


def _count(reader: OtherTableReader, partition: str, lanes: Sequence[LaneRecord]) -> list[RemainingInTable]:
    """How many rows of each range the table has; `lanes` are those of one logical partition, in several generations."""
    import numpy as np

    starts = [np.array([r.rows.lo for r in lane.ranges], np.int64) for lane in lanes]
    ends = [np.array([r.rows.hi for r in lane.ranges], np.int64) for lane in lanes]
    counts = [np.zeros(len(lane.ranges), np.int64) for lane in lanes]
    for numbers in reader.numbers(None, partition or None):
        for start, end, count in zip(starts, ends, counts, strict=True):
            at = np.searchsorted(start, numbers, side="right") - 1
            inside = at[(at >= 0) & (numbers <= end[at])]
            np.add(count, np.bincount(inside, minlength=len(count)), out=count)
    return [
        RemainingInTable(lane, r, int(there))
        for lane, count in zip(lanes, counts, strict=True)
        for r, there in zip(lane.ranges, count, strict=True)
    ]
