"""The floor of a dataset: rows at or below it may be gone from the table. It rises before they are deleted, and never
falls.

A process that raises the floor, adds a sink or starts a new generation locks the dataset's row (`lock`). So a sink that
retention did not see starts above the new floor. Raising the floor takes a sequence number, so that a ledger that was
restored from before is noticed and resynced; then it learns the floor from the table.

Locks are taken in one order everywhere, so there are no deadlocks: the counter, then datasets by id, then sinks. A
resync holds the counter from its start, and locks datasets and sinks at its end. Therefore a process that raises a
floor begins with the counter, too (`lock_to_raise`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from strandline.core.delivery_types import SinkRecord
from strandline.core.errors import NoSuchDataset
from strandline.core.types import DatasetId, Seq, SeqRange, seq_or_none
from strandline.ledger.deliver import lanes, sinks
from strandline.ledger.engine import insert_into, utc_now
from strandline.ledger.ingest import sequence
from strandline.ledger.schema.core import block, dataset
from strandline.ledger.schema.maintain import floor
from strandline.ledger.witness import Witness


def get(connection: sa.Connection, id: DatasetId) -> Seq | None:
    """None if retention never deleted anything."""
    stored = connection.execute(sa.select(floor.c.floor).where(floor.c.dataset_id == id)).scalar()
    return None if not stored else Seq(stored)


def by_dataset(connection: sa.Connection) -> dict[DatasetId, Seq]:
    """The floors of all datasets that have one."""
    rows = connection.execute(sa.select(floor.c.dataset_id, floor.c.floor))
    return {DatasetId(r.dataset_id): Seq(r.floor) for r in rows if r.floor}


def lock(connection: sa.Connection, id: DatasetId) -> None:
    """Locks the dataset: until the transaction ends, no other process raises the floor, adds or resets a sink, or drops
    the dataset. `NoSuchDataset` if it was dropped."""
    query = sa.select(dataset.c.name, dataset.c.dropped_at).where(dataset.c.id == id).with_for_update(key_share=True)
    row = connection.execute(query).one()
    if row.dropped_at is not None:
        raise NoSuchDataset(f"{row.name} was dropped meanwhile", hint="`strandline status` lists the datasets.")


def lock_to_raise(connection: sa.Connection, id: DatasetId) -> None:
    """Locks the counter and the dataset. Must come first in a transaction that raises a floor."""
    # `take_number` comes later, when the floor really rises: if a transaction takes a number and does not commit, the
    # next one must resync the ledger.
    sequence.lock(connection)
    lock(connection, id)


def take_number(connection: sa.Connection, witness: Witness) -> None:
    """Takes the sequence number of a floor that rises. The caller has called `lock_to_raise`."""
    sequence.take(connection, witness, 1, step="floor")


def raise_to(connection: sa.Connection, id: DatasetId, to: Seq) -> Seq:
    """Raises the floor, and returns it: it is higher than `to` if it was higher before."""
    before = get(connection, id)
    if before is not None and before >= to:
        return before
    values = {"floor": to, "changed_at": utc_now()}
    new = insert_into(connection, floor).values(dataset_id=id, version=1, **values)
    connection.execute(
        new.on_conflict_do_update(index_elements=["dataset_id"], set_={**values, "version": floor.c.version + 1})
    )
    return to


@dataclass(frozen=True, slots=True)
class SinkProgress:
    """How far a sink has come in all of its lanes: it needs no row at or below this sequence number."""

    sink: SinkRecord
    number: Seq | None  # None: it may need the very first row


def list_sink_progress(connection: sa.Connection, id: DatasetId) -> list[SinkProgress]:
    """For every sink that was not removed. The watermark of a lane with an open intent is where the intent starts."""
    marks = {at.sink: at.mark for at in lanes.lowest_watermarks(connection, id)}
    return [SinkProgress(record, marks[record.id]) for record in sinks.of_dataset(connection, id)]


def rows_published(connection: sa.Connection, id: DatasetId, rows: SeqRange) -> int | None:
    """How many rows were published in this range; None if a block has no count or is only partly in the range."""
    inside = (block.c.dataset_id == id, block.c.state == "published", block.c.hi >= rows.lo, block.c.lo <= rows.hi)
    counts = connection.execute(
        sa.select(
            sa.func.count().label("blocks"), sa.func.count(block.c.row_count).label("counted"),
            sa.func.min(block.c.lo).label("lo"), sa.func.max(block.c.hi).label("hi"),
            sa.cast(sa.func.coalesce(sa.func.sum(block.c.row_count), 0), sa.BigInteger).label("rows"),
        ).where(*inside)
    ).one()  # fmt: skip
    if counts.blocks == 0:
        return 0
    whole = counts.counted == counts.blocks and counts.lo >= rows.lo and counts.hi <= rows.hi
    return int(counts.rows) if whole else None


def published_before(connection: sa.Connection, id: DatasetId, moment: datetime, sealed: Seq | None) -> Seq | None:
    """The sequence number up to which every row was published before the given time. Blocks settle in any order, so an
    old block above a younger one does not count yet. A block whose time is lost (with the ledger that reserved it)
    counts from the day on which it was recovered."""
    if sealed is None:
        return None
    younger = connection.execute(
        sa.select(sa.func.min(block.c.lo)).where(
            block.c.dataset_id == id, block.c.state != "abandoned", block.c.hi <= sealed,
            block.c.changed_at >= sa.literal(moment, block.c.changed_at.type),
        )
    ).scalar()  # fmt: skip
    older = sa.select(sa.func.max(block.c.hi)).where(
        block.c.dataset_id == id, block.c.state == "published", block.c.hi <= sealed
    )
    if younger is not None:
        older = older.where(block.c.hi < younger)
    return seq_or_none(connection.execute(older).scalar())
