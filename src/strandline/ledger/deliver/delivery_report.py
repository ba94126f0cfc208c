"""What `status` shows about delivery, of all sinks or of one. Each function is one or two queries, however many sinks
and lanes there are. The queries need only the ledger, and read only the end of the history.

SQLAlchemy takes longer to build most of these statements than they take to run, so they are built once (`_once`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from strandline.core.delivery_types import LaneId, SinkId, SinkRecord
from strandline.core.types import Seq, SeqRange
from strandline.ledger.deliver import sinks
from strandline.ledger.deliver.lanes import IS_CURRENT_LANE
from strandline.ledger.deliver.quarantine import NOT_DELIVERED
from strandline.ledger.ingest import blocks
from strandline.ledger.row_memo import RowMemo
from strandline.ledger.schema.core import block, chunk, dataset, intent, lane, sink
from strandline.ledger.schema.maintain import loss
from strandline.ledger.schema.receive import quarantined

# The databases use a partial index only if its condition is a literal in the query, not a parameter.
_planned, _landed, _published = (
    sa.literal_column(f"'{state}'", sa.Text) for state in ("planned", "landed", "published")
)
_once = lru_cache(maxsize=64)


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


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a sink lacks."""

    unplanned_rows: int  # settled rows of all partitions that are in no intent yet
    is_counted: bool  # False while a lane is below `planned` without an intent for the rest: only a plan counts those
    since: datetime | None  # when the first settled row was published that the sink may lack


@dataclass(frozen=True, slots=True)
class Lost:
    """Rows that the current generation of a sink has lost."""

    rows: int  # counted ones
    unknown: int  # ranges whose rows nobody can count


NOTHING_LOST = Lost(0, 0)


def _chosen(only: SinkId | None) -> tuple[sa.ColumnElement[bool], ...]:
    live = sink.c.removed_at.is_(None)
    return (live,) if only is None else (live, sink.c.id == only)


def _range(after: int | None, until: int) -> SeqRange:
    return SeqRange(Seq((after or 0) + 1), Seq(until))


def _whole(value: Any) -> sa.ColumnElement[int]:
    """A sum as an integer: PostgreSQL sums bigints to decimals."""
    return sa.cast(sa.func.coalesce(sa.func.sum(value), 0), sa.BigInteger)


def dataset_name(connection: sa.Connection, sink: SinkRecord) -> str:
    """The name of the sink's dataset, even of a dropped one."""
    return str(connection.execute(sa.select(dataset.c.name).where(dataset.c.id == sink.dataset)).scalar_one())


def dataset_names(connection: sa.Connection, only: SinkId | None = None) -> dict[SinkId, str]:
    """The name of each sink's dataset."""
    return {SinkId(row.id): row.name for row in connection.execute(_dataset_names(only))}


@_once
def _dataset_names(only: SinkId | None) -> sa.Select[Any]:
    query = sa.select(sink.c.id, dataset.c.name).join_from(sink, dataset, dataset.c.id == sink.c.dataset_id)
    return query.where(*_chosen(only))


def backlogs(connection: sa.Connection, only: SinkId | None = None) -> dict[SinkId, Backlog]:
    """What each sink lacks."""
    return {
        SinkId(row.id): Backlog(int(row.unplanned), bool(row.is_counted), row.since)
        for row in connection.execute(_backlogs(only))
    }


@_once
def _backlogs(only: SinkId | None) -> sa.Select[Any]:
    progress = (
        sa.select(
            *sink.c["id", "dataset_id", "planned"],
            blocks.sealed_of(sink.c.dataset_id).scalar_subquery().label("sealed"),
            sa.func.count(lane.c.id).label("lanes"),
            sa.func.count(lane.c.mark).label("marked"),
            sa.func.min(lane.c.mark).label("lowest"),
            sa.func.min(sa.case((lane.c.id.is_not(None), sa.func.coalesce(intent.c.until, lane.c.mark, 0)))).label(
                "promised"
            ),
        )
        .join_from(sink, lane, IS_CURRENT_LANE, isouter=True)
        .join(intent, (intent.c.lane_id == lane.c.id) & intent.c.closed_at.is_(None), isouter=True)
        .where(*_chosen(only))
        .group_by(sink.c.id, sink.c.dataset_id, sink.c.planned)
        .cte("progress")
        .prefix_with("MATERIALIZED")  # the seal is used several times and computed once
    )
    at = progress.c
    lowest = sa.case(
        (sa.or_(at.lanes == 0, at.planned.is_(None)), at.planned),
        (at.marked < at.lanes, sa.null()),
        (at.lowest < at.planned, at.lowest),
        else_=at.planned,
    )
    unknown = sa.and_(at.lanes > 0, at.planned.is_not(None), at.promised < at.planned)
    return sa.select(
        at.id,
        sa.case((unknown, 0), else_=1).label("is_counted"),
        sinks.rows_above(at.dataset_id, at.planned, at.sealed).label("unplanned"),
        sinks.first_published_above(at.dataset_id, lowest, at.sealed).label("since"),
    )


def under_way(connection: sa.Connection, only: SinkId | None = None) -> dict[LaneId, UnderWay]:
    """The open intents, by lane."""
    return {
        LaneId(row.lane_id): UnderWay(
            _range(row.after, row.until),
            row.chunks,
            int(row.settled),
            row.rows_left,
            None if row.first_left is None else row.since,
        )
        for row in connection.execute(_under_way(only))
    }


@_once
def _under_way(only: SinkId | None) -> sa.Select[Any]:
    still_planned = chunk.c.state == _planned
    opened = (
        sa.select(
            intent.c.lane_id,
            sink.c.dataset_id,
            intent.c.after,
            intent.c.until,
            sa.func.count().label("chunks"),
            sa.func.sum(sa.case((still_planned, 0), else_=1)).label("settled"),
            _whole(sa.case((still_planned, chunk.c.expected), else_=0)).label("rows_left"),
            sa.func.min(sa.case((still_planned, chunk.c.lo))).label("first_left"),
        )
        .join_from(intent, lane, (intent.c.lane_id == lane.c.id) & intent.c.closed_at.is_(None))
        .join(sink, IS_CURRENT_LANE)
        .join(chunk, chunk.c.intent_id == intent.c.id)
        .where(*_chosen(only))
        .group_by(intent.c.lane_id, sink.c.dataset_id, intent.c.after, intent.c.until)
        .subquery("opened")
    )
    since = sinks.first_published_above(opened.c.dataset_id, opened.c.first_left - 1, opened.c.until)
    return sa.select(opened, since.label("since"))


def rows_left(connection: sa.Connection) -> dict[SinkId, int]:
    """Rows that were promised and have not landed, by sink; without sinks that have none."""
    query = (
        sa.select(sink.c.id, _whole(chunk.c.expected).label("rows"))
        .join_from(intent, lane, (intent.c.lane_id == lane.c.id) & intent.c.closed_at.is_(None))
        .join(sink, IS_CURRENT_LANE)
        .join(chunk, (chunk.c.intent_id == intent.c.id) & (chunk.c.state == _planned))
        .where(*_chosen(None))
        .group_by(sink.c.id)
    )
    return {SinkId(row.id): row.rows for row in connection.execute(query)}


def last_batches(connection: sa.Connection, only: SinkId | None = None) -> dict[LaneId, ReportedIntent]:
    """The last closed intent of each lane that delivered rows. After a recovery its row count may be an estimate."""
    return dict(_LAST.read(connection.execute(_last_batches(only)).all()))


_LAST = RowMemo(
    lambda row: (LaneId(row.lane_id), ReportedIntent(_range(row.after, row.until), row.rows, row.closed_at))
)


@_once
def _last_batches(only: SinkId | None) -> sa.Select[Any]:
    landed, closed = chunk.alias(), intent.alias()
    last = (
        sa.select(closed.c.id)
        .join_from(landed, closed, closed.c.id == landed.c.intent_id)
        .where(
            landed.c.lane_id == lane.c.id,
            landed.c.state == _landed,
            sa.func.coalesce(landed.c.row_count, landed.c.expected) > 0,
            closed.c.closed_at.is_not(None),
        )
        .order_by(landed.c.lo.desc())
        .limit(1)
        .correlate(lane)
        .scalar_subquery()
    )
    own = (
        sa.select(last.label("intent"))
        .join_from(lane, sink, IS_CURRENT_LANE)
        .where(*_chosen(only))
        .cte("own")
        .prefix_with("MATERIALIZED")
    )
    return (
        sa.select(
            *intent.c["lane_id", "after", "until", "closed_at"],
            _whole(sa.func.coalesce(chunk.c.row_count, chunk.c.expected)).label("rows"),
        )
        .join_from(own, intent, intent.c.id == own.c.intent)
        .join(chunk, (chunk.c.intent_id == intent.c.id) & (chunk.c.state == _landed))
        .group_by(intent.c.lane_id, intent.c.after, intent.c.until, intent.c.closed_at)
    )


def paces(connection: sa.Connection, since: datetime, only: SinkId | None = None) -> dict[SinkId, Pace]:
    """The pace of each sink since then."""
    # Reads only recent intents: a lane's intents close in order, so none counts below the last one that closed before
    # `since`. An intent never goes beyond the seal, so blocks published after `since` lie above all of those.
    rows = connection.execute(_paces(only), {"since": since})
    return {SinkId(row.id): Pace(int(row.published), int(row.settled)) for row in rows}


@_once
def _paces(only: SinkId | None) -> sa.Select[Any]:
    older, moment = intent.alias(), sa.bindparam("since", type_=intent.c.closed_at.type)
    before = (
        sa.select(older.c.until)
        .where(older.c.lane_id == lane.c.id, older.c.closed_at < moment)
        .order_by(older.c.until.desc())
        .limit(1)
        .correlate(lane)
        .scalar_subquery()
    )
    own = (
        sa.select(sink.c.id, sink.c.dataset_id, sink.c.start, lane.c.id.label("lane"), before.label("before"))
        .join_from(sink, lane, IS_CURRENT_LANE, isouter=True)
        .where(*_chosen(only))
        .cte("own")
        .prefix_with("MATERIALIZED")
    )
    landed = (
        sa.select(
            own.c.id,
            _whole(sa.func.coalesce(chunk.c.row_count, chunk.c.expected) + sa.func.coalesce(chunk.c.withheld, 0)).label(
                "rows"
            ),
        )
        .join_from(own, intent, (intent.c.lane_id == own.c.lane) & (intent.c.until > sa.func.coalesce(own.c.before, 0)))
        .join(chunk, chunk.c.intent_id == intent.c.id)
        .where(chunk.c.acked_at >= moment)
        .group_by(own.c.id)
        .subquery("landed")
    )
    reached = (
        sa.select(
            own.c.id, own.c.dataset_id, sa.func.coalesce(sa.func.max(own.c.before), own.c.start, 0).label("floor")
        )
        .group_by(own.c.id, own.c.dataset_id, own.c.start)
        .subquery("reached")
    )
    published = (
        sa.select(_whole(sa.func.coalesce(block.c.row_count, block.c.hi - block.c.lo + 1)))
        .where(
            block.c.dataset_id == reached.c.dataset_id,
            block.c.state == _published,
            block.c.hi > reached.c.floor,
            block.c.changed_at >= moment,
        )
        .correlate(reached)
        .scalar_subquery()
    )
    return sa.select(
        reached.c.id, published.label("published"), sa.func.coalesce(landed.c.rows, 0).label("settled")
    ).join_from(reached, landed, landed.c.id == reached.c.id, isouter=True)


_QUARANTINED_OF = (quarantined.c.sink_id == sink.c.id) & (quarantined.c.generation == sink.c.generation)
_IS_QUARANTINED = quarantined.c.state.in_([state.value for state in NOT_DELIVERED])


def quarantined_rows(connection: sa.Connection, only: SinkId | None = None) -> dict[LaneId, int]:
    """Rows of each lane that the sink does not have, as far as we know; without lanes that have none."""
    return {LaneId(row.lane_id): row.rows for row in connection.execute(_quarantined_rows(only))}


@_once
def _quarantined_rows(only: SinkId | None) -> sa.Select[Any]:
    return (
        sa.select(quarantined.c.lane_id, sa.func.count().label("rows"))
        .join_from(quarantined, sink, _QUARANTINED_OF)
        .where(*_chosen(only), _IS_QUARANTINED)
        .group_by(quarantined.c.lane_id)
    )


def quarantined_by_sink(connection: sa.Connection) -> dict[SinkId, int]:
    """Quarantined rows by sink, without sinks that have none."""
    query = sa.select(sink.c.id, sa.func.count().label("rows")).join_from(quarantined, sink, _QUARANTINED_OF)
    query = query.where(*_chosen(None), _IS_QUARANTINED).group_by(sink.c.id)
    return {SinkId(row.id): row.rows for row in connection.execute(query)}


def losses(connection: sa.Connection, only: SinkId | None = None) -> dict[SinkId, Lost]:
    """The lost rows by sink, without sinks that lost none."""
    return {SinkId(row.id): Lost(row.rows, row.unknown) for row in connection.execute(_losses(only))}


@_once
def _losses(only: SinkId | None) -> sa.Select[Any]:
    return (
        sa.select(
            sink.c.id,
            _whole(loss.c.rows).label("rows"),
            (sa.func.count() - sa.func.count(loss.c.rows)).label("unknown"),
        )
        .join_from(loss, sink, (loss.c.sink_id == sink.c.id) & (loss.c.generation == sink.c.generation))
        .where(*_chosen(only))
        .group_by(sink.c.id)
    )
