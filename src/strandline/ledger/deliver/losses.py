"""Losses (rows that a sink should have got and never will) and purges (rows deleted on demand). Both are stored before
the rows are deleted, and never removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum

import sqlalchemy as sa

from strandline.core.delivery_types import SinkId, SinkRecord
from strandline.core.types import DatasetId, Seq, SeqRange
from strandline.ledger.engine import from_row, utc_now
from strandline.ledger.schema.maintain import loss, purge


class Reason(StrEnum):
    # Deleted by a rule, which moved the lane's watermark past the rows.
    DROPPED = "dropped"
    # Deleted by a rule. Rows between them are not due and are still delivered, so the watermark did not move.
    DELETED = "deleted"
    # A person asked for it, or gave up rows whose file is gone.
    PURGED = "purged"
    # Deleted, or left out by a person's choice, while the sink's watermark was unknown: the ledger had been lost or
    # restored from an older copy, or the sink had been removed. The sink's own record shows which of the rows it has.
    FORGOTTEN = "forgotten"


@dataclass(frozen=True, slots=True)
class NewLoss:
    partition: str
    after: Seq | None
    until: Seq
    rows: int | None  # None for forgotten rows: nobody can count them any more


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLoss(NewLoss):
    sink: SinkId
    generation: int
    reason: Reason
    at: datetime

    @property
    def range(self) -> SeqRange:
        return SeqRange(Seq((self.after or 0) + 1), self.until)


def add(connection: sa.Connection, record: SinkRecord, reason: Reason, lost: Sequence[NewLoss]) -> None:
    add_for(connection, record.dataset, record.id, record.generation, reason, lost)


def add_for(
    connection: sa.Connection,
    dataset: DatasetId,
    sink: SinkId,
    generation: int,
    reason: Reason,
    lost: Sequence[NewLoss],
) -> None:
    if lost:
        fixed = {"dataset_id": dataset, "sink_id": sink, "generation": generation, "reason": reason.value}
        connection.execute(loss.insert(), [{**fixed, **asdict(x), "at": utc_now()} for x in lost])


def of_sink(connection: sa.Connection, record: SinkRecord) -> list[RecordedLoss]:
    """The losses of the sink's current generation, in order."""
    rows = connection.execute(
        sa.select(loss)
        .where(loss.c.sink_id == record.id, loss.c.generation == record.generation)
        .order_by(loss.c.until, loss.c.id)
    )
    return [from_row(RecordedLoss, r, sink=r.sink_id, reason=Reason(r.reason)) for r in rows]


def add_purge(connection: sa.Connection, id: DatasetId, rows: SeqRange, count: int) -> None:
    connection.execute(purge.insert().values(dataset_id=id, lo=rows.lo, hi=rows.hi, rows=count, at=utc_now()))


def purged(connection: sa.Connection, id: DatasetId) -> list[SeqRange]:
    """For each purge, the range from the first to the last row that was deleted on demand, or dropped because its file
    was gone."""
    query = sa.select(purge.c.lo, purge.c.hi).where(purge.c.dataset_id == id).order_by(purge.c.lo)
    return [SeqRange(Seq(r.lo), Seq(r.hi)) for r in connection.execute(query)]
