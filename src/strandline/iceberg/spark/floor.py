"""The commits of retention and purge. They first record on the table which rows will be missing, then they delete."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.core.purged_ranges import bound
from strandline.core.types import Seq, SeqRange
from strandline.iceberg.metadata.table_metadata import FLOOR_PREFIX, RecordedPurge
from strandline.iceberg.spark.row_delete import delete
from strandline.iceberg.spark.tables import SparkTables

__all__ = ["PURGES_RECORDED_MAX", "delete", "with_neighbours", "write_floor", "write_purge"]

PURGES_RECORDED_MAX = 64  # beyond this, neighbours are combined, because each load of the table reads its properties


def write_floor(tables: SparkTables, name: str, floor: Seq) -> None:
    """Records the floor on the table. Each floor is a property of its own, and the highest one counts. So a process
    that has lost its lease and writes its floor late cannot lower it."""

    def attempt() -> None:
        table = tables.load(name)
        recorded = tables.view_of(table).floors
        if any(f >= floor for f in recorded):
            return
        update = table.updateProperties()
        update.set(f"{FLOOR_PREFIX}{floor}", str(floor))
        for lower in recorded:
            update.remove(f"{FLOOR_PREFIX}{lower}")
        update.commit()

    tables.repeat(attempt, f"the floor of {name} cannot be set")


def write_purge(tables: SparkTables, name: str, purge: RecordedPurge) -> None:
    """Records the purge on the table, for a ledger that is restored from an earlier copy."""

    def attempt() -> None:
        table = tables.load(name)
        recorded = tables.view_of(table).purged
        if any(p.number == purge.number and _within(purge.rows, p.rows) for p in recorded):
            return  # an earlier attempt has landed, and its answer was lost
        combined = with_neighbours(recorded, purge, recorded_max=PURGES_RECORDED_MAX)
        update = table.updateProperties()
        for other in recorded:
            if _within(other.rows, combined.rows) and other.name != combined.name:
                update.remove(other.name)
        update.set(combined.name, combined.value)
        update.commit()

    tables.repeat(attempt, f"a purge cannot be recorded on {name}")


def with_neighbours(
    recorded: Sequence[RecordedPurge], purge: RecordedPurge, *, recorded_max: int = PURGES_RECORDED_MAX
) -> RecordedPurge:
    """One entry that replaces all entries within its range. It begins and ends with a purge, so a ledger that knows
    both of these knows the entry. Its number is the highest one, for the purges in between."""
    combined = purge.rows
    while True:
        others = [p.rows for p in recorded if not _within(p.rows, combined)]
        if len(others) < recorded_max:
            replaced = [purge, *(p for p in recorded if _within(p.rows, combined))]
            ranges = bound(r for p in replaced for r in p.deleted_in)
            return RecordedPurge.of(ranges, sum(p.count for p in replaced), max(p.number for p in replaced))
        nearest = min(others, key=lambda r: (max(int(r.lo) - int(combined.hi), int(combined.lo) - int(r.hi)), r.lo))
        combined = SeqRange(min(combined.lo, nearest.lo), max(combined.hi, nearest.hi))


def _within(inner: SeqRange, outer: SeqRange) -> bool:
    return outer.lo <= inner.lo and inner.hi <= outer.hi
