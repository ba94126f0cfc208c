"""Reads from a table the floor and the purges that the restored ledger does not know."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.core.types import Dataset, Seq, SeqRange
from strandline.iceberg.metadata.table_metadata import RecordedPurge
from strandline.ingest.context import IngestContext
from strandline.ledger.deliver import losses
from strandline.ledger.deliver.losses import NewLoss, Reason
from strandline.ledger.engine import Connection
from strandline.ledger.maintain import floors


def restore_floor(work: IngestContext, connection: Connection, dataset: Dataset) -> list[str]:
    """Records the table's floor in the ledger. Returns the sinks whose watermark in this ledger is below it: it is
    unknown whether they got those rows. Call this after the table's epoch was raised: a retention that writes its floor
    later checks the epoch again, and deletes nothing."""
    floor = Seq(work.tables.view(dataset.name).floor)
    if floor <= (floors.get(connection, dataset.id) or 0):
        return []
    floors.lock(connection, dataset.id)  # a sink that is added meanwhile is either seen here, or begins above the floor
    floors.raise_to(connection, dataset.id, floor)
    return _forget_below(connection, dataset, floor)


def restore_purges(
    work: IngestContext, connection: Connection, dataset: Dataset, last: int
) -> tuple[list[str], list[tuple[SeqRange, ...]]]:
    """Records the table's purges that this ledger does not know. Returns the sinks that may lack rows because of them,
    and for each purge the ranges in which it deleted rows. `last` is the ledger's counter."""
    recorded = work.tables.view(dataset.name).purged
    new = forgotten_purges(recorded, losses.purged(connection, dataset.id), last)
    for purge in new:
        losses.add_purge(connection, dataset.id, purge.rows, max(1, purge.count))
    below = _forget_below(connection, dataset, max((purge.rows.hi for purge in new), default=Seq(0)))
    return below, [purge.deleted_in for purge in new]


def _forget_below(connection: Connection, dataset: Dataset, number: Seq) -> list[str]:
    """Records that sinks with a watermark below this number may have lost rows. Returns their names."""
    below = [r for r in floors.list_sink_progress(connection, dataset.id) if (r.number or 0) < number]
    for progress in below:
        losses.add(connection, progress.sink, Reason.FORGOTTEN, [NewLoss("", progress.number, number, None)])
    return [progress.sink.name for progress in below]


def forgotten_purges(recorded: Sequence[RecordedPurge], known: Sequence[SeqRange], last: int) -> list[RecordedPurge]:
    """The recorded purges that the ledger does not know. A ledger whose counter is `last` knows all purges with lower
    numbers. A purge without a number is known if both ends match."""
    first, end = {r.lo for r in known}, {r.hi for r in known}
    return [p for p in recorded if p.number > last or not (p.rows.lo in first and p.rows.hi in end)]
