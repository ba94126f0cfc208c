"""What a sender asks a receiver for: whether a place is its own, and what of its lanes is held there, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from strandline.ledger.engine import insert_into, utc_now
from strandline.ledger.ranges import HeldBody, holding, lane_key, lanes_of
from strandline.ledger.schema_receive import receive_batch, received, source
from strandline.ledger.tokens import TokenId
from strandline.types import SEQ_MAX, DatasetId, Seq, SeqRange
from strandline.wire import LaneName


@dataclass(frozen=True, slots=True)
class PlacedBody:
    rows: SeqRange
    count: int
    digest: str
    first: Seq | None
    """The number that its first row has here; None until its batch is published, and where it has no rows."""
    spool: str | None
    """Its file, as long as it is there."""
    is_discarded: bool = False
    """A person gave it up."""


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """Who feeds a dataset of ours from one of its own, and the highest generation that it came with."""

    lake: str
    dataset: str
    """Its name there."""
    instance: str
    table_uuid: str
    generation: int
    owner: TokenId | None
    """None: claimed before owners were kept, and not since."""


def claimed(connection: sa.Connection, dataset: DatasetId, lake: str, source_dataset: str) -> SourceRecord | None:
    row = connection.execute(
        sa.select(source).where(
            source.c.dataset_id == dataset, source.c.lake == lake, source.c.source_dataset == source_dataset
        )
    ).one_or_none()
    if row is None:
        return None
    return SourceRecord(row.lake, row.source_dataset, row.instance, row.table_uuid, row.generation, row.owner_id)


def claim(
    connection: sa.Connection,
    dataset: DatasetId,
    lake: str,
    source_dataset: str,
    *,
    instance: str,
    table_uuid: str,
    generation: int,
    owner: TokenId,
) -> SourceRecord | None:
    """Written if there is none, for the first generation. If it is this owner's and this instance's, its generation is
    raised by one step, never more and never lowered. The record as it is then, which may be another's; None: there was
    none, and this is not the first generation."""
    own = {"instance": instance, "table_uuid": table_uuid}
    at = {"dataset_id": dataset, "lake": lake, "source_dataset": source_dataset}
    if generation == 1:
        connection.execute(
            insert_into(connection, source)
            .values(**at, **own, generation=1, owner_id=owner, created_at=utc_now())
            .on_conflict_do_nothing()
        )
    connection.execute(
        source.update()
        .where(
            *(source.c[name] == value for name, value in (at | own).items()),
            sa.or_(source.c.owner_id.is_(None), source.c.owner_id == owner),
            source.c.generation.in_((generation, generation - 1)),
        )
        .values(generation=generation, owner_id=owner)
    )
    return claimed(connection, dataset, lake, source_dataset)


def held(
    connection: sa.Connection, dataset: DatasetId, sender: LaneName, lanes: Sequence[tuple[str, Seq | None]]
) -> list[list[HeldBody]]:
    """Of each partition of the sender's, whatever partition stands in its name, the bodies with a number beyond the one
    given (None: all), in order."""
    name = (dataset, sender.lake, sender.dataset, sender.instance, sender.generation)
    ids = lanes_of(connection, {(*name, partition) for partition, _ in lanes})
    asked = [(ids.get((*name, partition)), after or 0) for partition, after in lanes]
    found = holding(
        connection,
        [(id, SeqRange(Seq(after + 1), SEQ_MAX)) for id, after in asked if id is not None and after < SEQ_MAX],
    )
    return [
        sorted((b for b in found.get(id or 0, {}).values() if b.rows.hi > after), key=lambda body: body.rows)
        for id, after in asked
    ]


def placed(
    connection: sa.Connection, dataset: DatasetId, lane: LaneName, lo: Seq, hi: Seq, limit: int
) -> list[PlacedBody]:
    """The lane's bodies that have numbers in lo..hi, in order, at most so many; one may reach beyond the bounds."""
    lanes = lanes_of(connection, [lane_key(dataset, lane)])
    if not lanes:
        return []
    [id] = lanes.values()
    begin = connection.execute(
        sa.select(sa.func.max(received.c.lo)).where(received.c.lane_id == id, received.c.lo <= lo)
    ).scalar()
    rows = connection.execute(
        sa.select(received, receive_batch.c.lo.label("batch_lo"), receive_batch.c.ending)
        .join_from(received, receive_batch, receive_batch.c.id == received.c.batch, isouter=True)
        .where(received.c.lane_id == id, received.c.lo >= (begin or lo), received.c.lo <= hi, received.c.hi >= lo)
        .order_by(received.c.lo)
        .limit(limit)
    )
    return [
        PlacedBody(
            SeqRange(Seq(r.lo), Seq(r.hi)),
            r.rows,
            r.digest,
            None if r.batch_lo is None else Seq(r.batch_lo + r.place),
            r.spool if r.spool_removed_at is None else None,
            r.ending == "discarded",
        )
        for r in rows
    ]
