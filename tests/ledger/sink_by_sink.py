"""What `load_sinks` must return, read the slow way: one sink at a time, with queries of its own for each."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from strandline.core.delivery_types import NOT_PARTITIONED, Lane, LaneId, SinkRecord
from strandline.core.errors import WatermarkUnreadable
from strandline.core.types import Dataset, Seq, SeqRange, seq_or_none
from strandline.ledger.deliver import lanes, losses, quarantine, sinks
from strandline.ledger.deliver.delivery_report import Pace, ReportedIntent, UnderWay
from strandline.ledger.deliver.lanes import of_sink
from strandline.ledger.engine import Connection, Ledger
from strandline.ledger.ingest import blocks, datasets
from strandline.ledger.maintain import retention_holds
from strandline.ledger.schema.core import block, chunk, dataset, intent, lane
from strandline.status.sinks import TREND_MINUTES, SinkStatus, trend
from strandline.status.whole_sinks import state_of

_planned, _landed, _published = (
    sa.literal_column(f"'{state}'", sa.Text) for state in ("planned", "landed", "published")
)


def load_sinks_one_by_one(ledger: Ledger, lake: str, now: datetime) -> tuple[SinkStatus, ...]:
    with ledger.read() as connection:
        named = {d.id: d for d in datasets.list_datasets(connection)}
        return tuple(
            status
            for s in sinks.list_sinks(connection)
            for status in _SinkFacts(connection, s, named.get(s.dataset), lake, now).statuses()
        )


class _SinkFacts:
    """Reads once what is the same for all partitions of a sink."""

    def __init__(
        self, connection: Connection, sink: SinkRecord, dataset: Dataset | None, lake: str, now: datetime
    ) -> None:
        self.sink, self.dataset, self.now = sink, dataset, now
        self.dataset_name = dataset.name if dataset else _dataset_name(connection, sink)
        self.lanes, self.problem = _lanes(connection, sink, dataset, lake)
        self.under_way = under_way(connection, sink)
        self.last = last_batches(connection, sink)
        found = quarantine.list_quarantined(connection, sink, quarantine.NOT_DELIVERED)
        self.quarantined = Counter(q.lane for q in found if q.generation == sink.generation)
        held = () if dataset is None else retention_holds.of_dataset(connection, dataset.id)
        self.hold = next((h for h in held if h.sink == sink.id), None)
        self.lost_rows = sum(x.rows or 0 for x in losses.of_sink(connection, sink))
        self.unknown_losses = sum(x.rows is None for x in losses.of_sink(connection, sink))
        self.unplanned_rows = unplanned_rows(connection, sink)
        self.lag_rows, self.since = lag(connection, sink)
        since = now - timedelta(minutes=TREND_MINUTES)
        self.trend = "unknown" if self.lanes is None else trend(pace(connection, sink, since), self.lag_rows)

    def statuses(self) -> list[SinkStatus]:
        if self.lanes is None:  # a stored watermark contradicts itself
            return [self._status(None, None, None, None, None)]
        if not self.lanes:
            return [self._status(None, self.sink.planned, self.lag_rows, self._whole_lag_seconds(), None)]
        return [self._status(found.partition or None, found.mark, *self._lag(found), found) for found in self.lanes]

    def _whole_lag_seconds(self) -> float | None:
        return 0.0 if self.since is None else self._seconds(self.since)

    def _seconds(self, since: datetime) -> float:
        return max(0.0, round((self.now - since).total_seconds(), 3))

    def _lag(self, found: Lane) -> tuple[int | None, float | None]:
        if found.partition == NOT_PARTITIONED:
            return self.lag_rows, self._whole_lag_seconds()
        opened = self.under_way.get(found.id)
        since = None if opened is None else opened.waiting_since
        promised = found.mark if opened is None else opened.rows.hi
        if self.unplanned_rows or promised != self.sink.planned:
            return None, None if since is None else self._seconds(since)
        return (0, 0.0) if opened is None or since is None else (opened.rows_left, self._seconds(since))

    def _status(
        self,
        partition: str | None,
        watermark: Seq | None,
        lag_rows: int | None,
        lag_seconds: float | None,
        found: Lane | None,
    ) -> SinkStatus:
        sink = self.sink
        unread = self.lanes is None
        return SinkStatus(
            sink.name,
            sink.kind,
            self.dataset_name,
            partition,
            sink.generation,
            watermark,
            lag_rows,
            lag_seconds,
            state_of(sink),
            self.problem or sink.reason,
            None if found is None else self.under_way.get(found.id),
            sum(self.quarantined.values()) if found is None else self.quarantined.get(found.id, 0),
            found.withheld if found is not None else None if unread else 0,
            found.exported if found is not None else None if unread else 0,
            None if found is None else self.last.get(found.id),
            sink.failures,
            sink.retry_at,
            self.trend,
            self.unplanned_rows,
            None if unread else self.lag_rows,
            None if unread else self._whole_lag_seconds(),
            0 if self.hold is None else self.hold.rows,
            None if self.hold is None else self.hold.since,
            self.lost_rows,
            self.unknown_losses,
            sink.failing_since,
        )


def _lanes(
    connection: Connection, sink: SinkRecord, dataset: Dataset | None, lake: str
) -> tuple[list[Lane] | None, str | None]:
    if dataset is None:
        return lanes.unchecked(connection, sink), "its dataset was dropped"
    try:
        return lanes.list_lanes(connection, sink, lake=lake, dataset=dataset.uuid), None
    except WatermarkUnreadable as e:
        return None, e.message


def _dataset_name(connection: Connection, sink: SinkRecord) -> str:
    return str(connection.execute(sa.select(dataset.c.name).where(dataset.c.id == sink.dataset)).scalar_one())


def _range(after: int | None, until: int) -> SeqRange:
    return SeqRange(Seq((after or 0) + 1), Seq(until))


def _whole(value: Any) -> sa.ColumnElement[int]:
    """A sum as an integer: PostgreSQL sums bigints to decimals."""
    return sa.cast(sa.func.coalesce(sa.func.sum(value), 0), sa.BigInteger)


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


def lag(connection: sa.Connection, sink: SinkRecord) -> tuple[int | None, datetime | None]:
    """Returns how many settled rows the sink does not have yet, and since when the oldest of them waits. The count is
    None while a lane is below `planned` without an intent for the rest: only a plan counts those rows."""
    promised = sa.func.coalesce(intent.c.until, lane.c.mark, 0)
    lanes = connection.execute(
        sa.select(
            sa.func.count().label("lanes"),
            sa.func.count(lane.c.mark).label("marked"),
            sa.func.min(lane.c.mark).label("lowest"),
            sa.func.min(promised).label("promised"),
        )
        .join_from(lane, intent, (intent.c.lane_id == lane.c.id) & intent.c.closed_at.is_(None), isouter=True)
        .where(*of_sink(sink))
    ).one()
    under_way = (
        sa.select(sa.cast(sa.func.coalesce(sa.func.sum(chunk.c.expected), 0), sa.BigInteger))
        .join_from(intent, lane, lane.c.id == intent.c.lane_id)
        .join(chunk, (chunk.c.intent_id == intent.c.id) & (chunk.c.state == sa.literal_column("'planned'")))
        .where(*of_sink(sink), intent.c.closed_at.is_(None))
        .scalar_subquery()
    )
    if lanes.lanes == 0 or sink.planned is None:
        lowest = sink.planned
    else:
        lowest = None if lanes.marked < lanes.lanes else Seq(min(lanes.lowest, sink.planned))
    dataset, planned, lowest_mark, sealed = (
        sa.literal(v, sa.BigInteger)
        for v in (sink.dataset, sink.planned, lowest, blocks.sealed(connection, sink.dataset))
    )
    rows, since = connection.execute(
        sa.select(
            sinks.rows_above(dataset, planned, sealed) + under_way,
            sinks.first_published_above(dataset, lowest_mark, sealed),
        )
    ).one()
    unknown = lanes.lanes > 0 and sink.planned is not None and lanes.promised < sink.planned
    return (None if unknown else int(rows)), since
