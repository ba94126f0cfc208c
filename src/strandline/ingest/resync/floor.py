"""What a resync takes from a table: its floor, and purges that the ledger has forgotten."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.core.types import Dataset, Seq, SeqRange
from strandline.iceberg.metadata.table_metadata import RecordedPurge
from strandline.ingest.context import IngestContext
from strandline.ledger.deliver import losses
from strandline.ledger.deliver.losses import NewLoss, Reason
from strandline.ledger.engine import Connection
from strandline.ledger.maintain import floors


def take_floor(work: IngestContext, connection: Connection, dataset: Dataset) -> list[str]:
    """Takes the floor from the table; returns the sinks that are below it by this ledger: they may have got those rows,
    or were passed over. The table is read after its epoch was raised: a retention that writes its floor later checks
    the epoch again, and deletes nothing."""
    floor = Seq(work.tables.view(dataset.name).floor)
    if floor <= (floors.get(connection, dataset.id) or 0):
        return []
    floors.lock(connection, dataset.id)  # a sink that is being added is seen here, or begins above the floor
    floors.raise_to(connection, dataset.id, floor)
    return _forget_below(connection, dataset, floor)


def take_purges(
    work: IngestContext, connection: Connection, dataset: Dataset, last: int
) -> tuple[list[str], list[SeqRange]]:
    """As with the floor: takes purges that this ledger has forgotten. Returns sinks that may have lost rows by them,
    and the purged ranges. `last` is the ledger's counter."""
    recorded = work.tables.view(dataset.name).purged
    new = forgotten_purges(recorded, losses.purged(connection, dataset.id), last)
    for purge in new:
        losses.add_purge(connection, dataset.id, purge.rows, max(1, purge.count))
    below = _forget_below(connection, dataset, max((purge.rows.hi for purge in new), default=Seq(0)))
    return below, [purge.rows for purge in new]


def _forget_below(connection: Connection, dataset: Dataset, number: Seq) -> list[str]:
    below = [r for r in floors.list_sink_progress(connection, dataset.id) if (r.number or 0) < number]
    for found in below:
        losses.add(connection, found.sink, Reason.FORGOTTEN, [NewLoss("", found.number, number, None)])
    return [found.sink.name for found in below]


def forgotten_purges(recorded: Sequence[RecordedPurge], known: Sequence[SeqRange], last: int) -> list[RecordedPurge]:
    """A ledger whose counter is at `last` knew of all purges with lower numbers. For purges without a number both ends
    must match: among many purges, one between others does not change the ends."""
    first, end = {r.lo for r in known}, {r.hi for r in known}
    return [p for p in recorded if p.number > last or not (p.rows.lo in first and p.rows.hi in end)]
