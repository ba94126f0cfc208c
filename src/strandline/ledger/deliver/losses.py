"""What a sink will never get though it was meant for it, and where rows were deleted on demand. Written before the rows
go, and never taken back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from strandline.core.delivery_types import SinkId, SinkRecord
from strandline.core.types import DatasetId, Seq, SeqRange
from strandline.ledger.deliver.sinks import seq_or_none
from strandline.ledger.engine import utc_now
from strandline.ledger.schema.maintain import loss, purge


class Reason(StrEnum):
    DROPPED = "dropped"
    """A rule said so, and the lane's mark was moved past the rows."""
    DELETED = "deleted"
    """A rule said so; rows between them that are not due are still delivered, so the mark stayed."""
    PURGED = "purged"
    """A person asked for it, or gave up rows whose file is gone."""
    FORGOTTEN = "forgotten"
    """Rows went while nobody here knew how far the sink was: the ledger was restored from an older copy, or the sink
    was removed meanwhile. What of them it has it says itself."""


@dataclass(frozen=True, slots=True)
class Loss:
    sink: SinkId
    generation: int
    partition: str
    after: Seq | None
    until: Seq
    rows: int | None
    """None for what was forgotten: nobody can tell any more."""
    reason: Reason
    at: datetime

    @property
    def range(self) -> SeqRange:
        return SeqRange(Seq((self.after or 0) + 1), self.until)


@dataclass(frozen=True, slots=True)
class NewLoss:
    partition: str
    after: Seq | None
    until: Seq
    rows: int | None


def add(connection: sa.Connection, record: SinkRecord, reason: Reason, found: Sequence[NewLoss]) -> None:
    add_for(connection, record.dataset, record.id, record.generation, reason, found)


def add_for(
    connection: sa.Connection,
    dataset: DatasetId,
    sink: SinkId,
    generation: int,
    reason: Reason,
    found: Sequence[NewLoss],
) -> None:
    if found:
        fixed = {"dataset_id": dataset, "sink_id": sink, "generation": generation}
        connection.execute(
            loss.insert(),
            [
                {**fixed, "partition": x.partition, "after": x.after, "until": x.until, "rows": x.rows,
                 "reason": reason.value, "at": utc_now()}
                for x in found
            ],
        )  # fmt: skip


def of_sink(connection: sa.Connection, record: SinkRecord) -> list[Loss]:
    """Of its generation, in order."""
    rows = connection.execute(
        sa.select(loss)
        .where(loss.c.sink_id == record.id, loss.c.generation == record.generation)
        .order_by(loss.c.until, loss.c.id)
    )
    return [_loss(r) for r in rows]


def _loss(row: Any) -> Loss:
    return Loss(
        SinkId(row.sink_id), row.generation, row.partition, seq_or_none(row.after), Seq(row.until), row.rows,
        Reason(row.reason), row.at,
    )  # fmt: skip


def lost_rows(connection: sa.Connection, record: SinkRecord) -> int:
    """Counted ones, of its generation."""
    return int(connection.execute(_of(record, sa.func.coalesce(sa.func.sum(loss.c.rows), 0))).scalar_one())


def unknown_losses(connection: sa.Connection, record: SinkRecord) -> int:
    """Ranges of its generation of which nobody can tell how many rows they are."""
    return int(connection.execute(_of(record, sa.func.count() - sa.func.count(loss.c.rows))).scalar_one())


def _of(record: SinkRecord, what: sa.ColumnElement[Any]) -> sa.Select[Any]:
    return sa.select(sa.cast(what, sa.BigInteger)).where(
        loss.c.sink_id == record.id, loss.c.generation == record.generation
    )


def add_purge(connection: sa.Connection, id: DatasetId, rows: SeqRange, count: int) -> None:
    connection.execute(purge.insert().values(dataset_id=id, lo=rows.lo, hi=rows.hi, rows=count, at=utc_now()))


def purged(connection: sa.Connection, id: DatasetId) -> list[SeqRange]:
    """Between which numbers rows were deleted on demand, from the first to the last of each time; or dropped because
    their file was gone."""
    query = sa.select(purge.c.lo, purge.c.hi).where(purge.c.dataset_id == id).order_by(purge.c.lo)
    return [SeqRange(Seq(r.lo), Seq(r.hi)) for r in connection.execute(query)]
