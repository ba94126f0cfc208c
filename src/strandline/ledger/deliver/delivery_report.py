"""What `status` shows about delivery. The queries need the ledger alone, and read only the end of the history."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from strandline.core.delivery_types import LaneId, SinkRecord
from strandline.core.types import Seq, SeqRange
from strandline.ledger.deliver import sinks
from strandline.ledger.deliver.lanes import of_sink
from strandline.ledger.deliver.sinks import seq_or_none
from strandline.ledger.ingest import blocks
from strandline.ledger.schema.core import block, chunk, dataset, intent, lane

# The databases use a partial index only if its condition is a literal in the query, not a parameter.
_planned, _landed, _published = (
    sa.literal_column(f"'{state}'", sa.Text) for state in ("planned", "landed", "published")
)


@dataclass(frozen=True, slots=True)
class UnderWay:
    """An open intent, with counts instead of its chunks."""

    rows: SeqRange
    chunks: int
    settled: int  # chunks whose outcome is recorded: they landed, or had no rows to send
    rows_left: int
    waiting_since: datetime | None  # when the first rows that have not landed were published; None if all have


@dataclass(frozen=True, slots=True)
class ReportedIntent:
    """A closed intent that brought rows."""

    rows: SeqRange
    count: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Pace:
    """Rows that were published since a given time, and rows that were sent or withheld since then."""

    published: int
    settled: int


def _range(after: int | None, until: int) -> SeqRange:
    return SeqRange(Seq((after or 0) + 1), Seq(until))


def _whole(value: Any) -> sa.ColumnElement[int]:
    """A sum as an integer: PostgreSQL sums bigints to decimals."""
    return sa.cast(sa.func.coalesce(sa.func.sum(value), 0), sa.BigInteger)


def dataset_name(connection: sa.Connection, sink: SinkRecord) -> str:
    """The dataset may have been dropped."""
    return str(connection.execute(sa.select(dataset.c.name).where(dataset.c.id == sink.dataset)).scalar_one())


def unplanned_rows(connection: sa.Connection, sink: SinkRecord) -> int:
    """Settled rows of all partitions that are in no intent yet. Only a plan can tell how many each partition has."""
    sealed = blocks.sealed(connection, sink.dataset)
    if sealed is None:
        return 0
    bound = (sa.literal(v, sa.BigInteger) for v in (sink.dataset, sink.planned, sealed))
    return int(connection.execute(sa.select(sinks.rows_above(*bound))).scalar_one())


def under_way(connection: sa.Connection, sink: SinkRecord) -> dict[LaneId, UnderWay]:
    still_planned = chunk.c.state == _planned
    opened = (
        sa.select(
            intent.c.lane_id,
            intent.c.after,
            intent.c.until,
            sa.func.count().label("chunks"),
            sa.func.sum(sa.case((still_planned, 0), else_=1)).label("settled"),
            _whole(sa.case((still_planned, chunk.c.expected), else_=0)).label("rows_left"),
            sa.func.min(sa.case((still_planned, chunk.c.lo))).label("first_left"),
        )
        .join_from(lane, intent, (intent.c.lane_id == lane.c.id) & intent.c.closed_at.is_(None))
        .join(chunk, chunk.c.intent_id == intent.c.id)
        .where(*of_sink(sink))
        .group_by(intent.c.lane_id, intent.c.after, intent.c.until)
        .subquery("opened")
    )
    since = sinks.first_published_above(
        sa.literal(sink.dataset, sa.BigInteger), opened.c.first_left - 1, opened.c.until
    )
    return {
        LaneId(row.lane_id): UnderWay(
            _range(row.after, row.until),
            row.chunks,
            int(row.settled),
            row.rows_left,
            None if row.first_left is None else row.since,
        )
        for row in connection.execute(sa.select(opened, since.label("since")))
    }


def last_batches(connection: sa.Connection, sink: SinkRecord) -> dict[LaneId, ReportedIntent]:
    """The last closed intent of each lane that delivered rows. After a recovery its row count may be an estimate."""
    some, closed = chunk.alias(), intent.alias()
    last = (
        sa.select(closed.c.id)
        .join_from(some, closed, closed.c.id == some.c.intent_id)
        .where(
            some.c.lane_id == lane.c.id,
            some.c.state == _landed,
            sa.func.coalesce(some.c.row_count, some.c.expected) > 0,
            closed.c.closed_at.is_not(None),
        )
        .order_by(some.c.lo.desc())
        .limit(1)
        .correlate(lane)
        .scalar_subquery()
    )
    query = (
        sa.select(
            intent.c.lane_id,
            intent.c.after,
            intent.c.until,
            intent.c.closed_at,
            _whole(sa.func.coalesce(chunk.c.row_count, chunk.c.expected)).label("rows"),
        )
        .join_from(lane, intent, intent.c.id == last)
        .join(chunk, (chunk.c.intent_id == intent.c.id) & (chunk.c.state == _landed))
        .where(*of_sink(sink))
        .group_by(intent.c.lane_id, intent.c.after, intent.c.until, intent.c.closed_at)
    )
    return {
        LaneId(row.lane_id): ReportedIntent(_range(row.after, row.until), row.rows, row.closed_at)
        for row in connection.execute(query)
    }


def pace(connection: sa.Connection, sink: SinkRecord, since: datetime) -> Pace:
    """Reads only recent intents: a lane's intents close in order, so none counts below the last one that closed before
    `since`. An intent never goes beyond the seal, so blocks published after `since` lie above all of those."""
    older, moment = intent.alias(), sa.literal(since, intent.c.closed_at.type)
    before = (
        sa.select(older.c.until)
        .where(older.c.lane_id == lane.c.id, older.c.closed_at < moment)
        .order_by(older.c.until.desc())
        .limit(1)
        .correlate(lane)
        .scalar_subquery()
    )
    own = sa.select(lane.c.id, sa.func.coalesce(before, 0).label("before")).where(*of_sink(sink)).cte("own")
    settled = connection.execute(
        sa.select(_whole(sa.func.coalesce(chunk.c.row_count, chunk.c.expected) + sa.func.coalesce(chunk.c.withheld, 0)))
        .join_from(own, intent, (intent.c.lane_id == own.c.id) & (intent.c.until > own.c.before))
        .join(chunk, chunk.c.intent_id == intent.c.id)
        .where(chunk.c.acked_at >= moment)
    ).scalar_one()
    floor = seq_or_none(connection.execute(sa.select(sa.func.max(own.c.before))).scalar()) or sink.start or 0
    published = connection.execute(
        sa.select(_whole(sa.func.coalesce(block.c.row_count, block.c.hi - block.c.lo + 1))).where(
            block.c.dataset_id == sink.dataset,
            block.c.state == _published,
            block.c.hi > floor,
            block.c.changed_at >= moment,
        )
    ).scalar_one()
    return Pace(int(published), int(settled))
