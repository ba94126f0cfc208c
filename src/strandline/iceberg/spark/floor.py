"""The commits of retention and purge: first they record on the table which rows will be missing, then they delete."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.core.purged_ranges import bound
from strandline.core.types import Seq, SeqRange
from strandline.iceberg.metadata.table_metadata import FLOOR_PREFIX, RecordedPurge
from strandline.iceberg.spark.row_delete import delete
from strandline.iceberg.spark.tables import SparkTables

__all__ = ["PURGES_RECORDED_MAX", "delete", "with_neighbours", "write_floor", "write_purge"]

PURGES_RECORDED_MAX = 64  # beyond this, neighbours are combined: properties are read with every load of the table


def write_floor(tables: SparkTables, name: str, floor: Seq) -> None:
    """Each floor is a property of its own, and the highest counts: a process that has lost its lease and writes its
    floor late lowers nothing."""

    def attempt() -> None:
        table = tables.load(name)
        known = tables.view_of(table).floors
        if any(f >= floor for f in known):
            return
        update = table.updateProperties()
        update.set(f"{FLOOR_PREFIX}{floor}", str(floor))
        for lower in known:
            update.remove(f"{FLOOR_PREFIX}{lower}")
        update.commit()

    tables.repeat(attempt, f"the floor of {name} cannot be set")


def write_purge(tables: SparkTables, name: str, purge: RecordedPurge) -> None:
    """Records the purge on the table, for a ledger that is restored from an earlier copy."""

    def attempt() -> None:
        table = tables.load(name)
        known = tables.view_of(table).purged
        if any(p.number == purge.number and _within(purge.rows, p.rows) for p in known):
            return  # the answer of an earlier attempt was lost
        combined = with_neighbours(known, purge, recorded_max=PURGES_RECORDED_MAX)
        update = table.updateProperties()
        for other in known:
            if _within(other.rows, combined.rows) and other.name != combined.name:
                update.remove(other.name)
        update.set(combined.name, combined.value)
        update.commit()

    tables.repeat(attempt, f"{name} cannot record what is purged")


def with_neighbours(
    known: Sequence[RecordedPurge], purge: RecordedPurge, *, recorded_max: int = PURGES_RECORDED_MAX
) -> RecordedPurge:
    """One entry that replaces all entries within it. It begins and ends with a purge, so that a ledger that knows both
    ends knows the entry. It has the highest of their numbers, for the purges in between."""
    combined = purge.rows
    while True:
        others = [p.rows for p in known if not _within(p.rows, combined)]
        if len(others) < recorded_max:
            every = [purge, *(p for p in known if _within(p.rows, combined))]
            ranges = bound(r for p in every for r in p.deleted_in)
            return RecordedPurge.of(ranges, sum(p.count for p in every), max(p.number for p in every))
        nearest = min(others, key=lambda r: (max(int(r.lo) - int(combined.hi), int(combined.lo) - int(r.hi)), r.lo))
        combined = SeqRange(min(combined.lo, nearest.lo), max(combined.hi, nearest.hi))


def _within(inner: SeqRange, outer: SeqRange) -> bool:
    return outer.lo <= inner.lo and inner.hi <= outer.hi
