"""The floor of a dataset: rows at or below it may be gone from the table. It rises before they go, and never goes back.

Whoever raises it, and whoever adds a sink or begins a generation anew, holds the dataset's row meanwhile (`lock`): a
sink that is not seen by the one starts above the floor of the other. Raising it takes a number of the sequence, so that
a ledger that was restored from before is noticed, and opened: then the table tells what the floor is.

Nobody waits for one who waits for him, because locks are taken in one order everywhere: the counter of the sequence,
then datasets by their ids, then sinks. An opening holds the counter all the time, and comes to datasets and sinks at
its end; so whoever raises a floor begins with the counter, too (`lock_to_rise`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from strandline.core.delivery_types import SinkRecord
from strandline.core.errors import NoSuchDataset
from strandline.core.types import DatasetId, Seq, SeqRange
from strandline.ledger.deliver import sinks
from strandline.ledger.deliver.sinks import seq_or_none
from strandline.ledger.engine import insert_into, utc_now
from strandline.ledger.ingest import sequence
from strandline.ledger.schema.core import block, dataset, lane
from strandline.ledger.schema.maintain import floor
from strandline.ledger.witness import Witness


def get(connection: sa.Connection, id: DatasetId) -> Seq | None:
    """None where nothing was ever deleted by retention."""
    found = connection.execute(sa.select(floor.c.floor).where(floor.c.dataset_id == id)).scalar()
    return None if not found else Seq(found)


def lock(connection: sa.Connection, id: DatasetId) -> None:
    """Until the transaction ends nobody else raises the floor, adds a sink, resets one, or drops the dataset."""
    query = sa.select(dataset.c.name, dataset.c.dropped_at).where(dataset.c.id == id).with_for_update(key_share=True)
    found = connection.execute(query).one()
    if found.dropped_at is not None:
        raise NoSuchDataset(f"{found.name} was dropped meanwhile", hint="`strandline status` shows what is there.")


def lock_to_rise(connection: sa.Connection, id: DatasetId) -> None:
    """First thing in a transaction that raises a floor. The number is taken later, when it is clear that it rises:
    one that is taken by a transaction which ends without a commit makes the next one open the ledger."""
    sequence.lock(connection)
    lock(connection, id)


def take_number(connection: sa.Connection, witness: Witness) -> None:
    """Under `lock_to_rise`."""
    sequence.take(connection, witness, 1, step="floor")


def rise(connection: sa.Connection, id: DatasetId, to: Seq) -> Seq:
    """The floor as it is then, which may have been higher already."""
    before = get(connection, id)
    if before is not None and before >= to:
        return before
    new = insert_into(connection, floor).values(dataset_id=id, floor=to, changed_at=utc_now(), version=1)
    connection.execute(
        new.on_conflict_do_update(
            index_elements=["dataset_id"],
            set_={"floor": to, "changed_at": utc_now(), "version": floor.c.version + 1},
        )
    )
    return to


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a sink has come in all of its lanes: it is owed nothing at or below that number."""

    sink: SinkRecord
    number: Seq | None
    """None: it may be owed the very first row."""


def reaches(connection: sa.Connection, id: DatasetId) -> list[Reach]:
    """Of every sink that was not removed. A lane with an open intent stands where that one starts; rows of partitions
    that have no lane yet lie above what is planned."""
    lowest = {
        (r.sink_id, r.generation): r.lowest
        for r in connection.execute(
            sa.select(lane.c.sink_id, lane.c.generation, sa.func.min(sa.func.coalesce(lane.c.mark, 0)).label("lowest"))
            .group_by(lane.c.sink_id, lane.c.generation)
            .where(lane.c.sink_id.in_([s.id for s in sinks.of_dataset(connection, id)]))
        )
    }
    found = []
    for record in sinks.of_dataset(connection, id):
        planned = int(record.planned or 0)
        at = min(planned, lowest.get((record.id, record.generation), planned))
        found.append(Reach(record, seq_or_none(at or None)))
    return found


def rows_published(connection: sa.Connection, id: DatasetId, rows: SeqRange) -> int | None:
    """How many rows came in under these numbers; None where that is not known, or not of exactly these."""
    inside = (block.c.dataset_id == id, block.c.state == "published", block.c.hi >= rows.lo, block.c.lo <= rows.hi)
    found = connection.execute(
        sa.select(
            sa.func.count().label("blocks"), sa.func.count(block.c.row_count).label("counted"),
            sa.func.min(block.c.lo).label("lo"), sa.func.max(block.c.hi).label("hi"),
            sa.cast(sa.func.coalesce(sa.func.sum(block.c.row_count), 0), sa.BigInteger).label("rows"),
        ).where(*inside)
    ).one()  # fmt: skip
    if found.blocks == 0:
        return 0
    whole = found.counted == found.blocks and found.lo >= rows.lo and found.hi <= rows.hi
    return int(found.rows) if whole else None


def published_before(connection: sa.Connection, id: DatasetId, moment: datetime, sealed: Seq | None) -> Seq | None:
    """The number up to which every row was published before the moment. Blocks settle in any order, so an old one above
    a younger one waits for it; one whose time is not known, because a ledger that is lost had taken its numbers, is as
    old as the day on which they were found."""
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
