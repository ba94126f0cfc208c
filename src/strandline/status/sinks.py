"""The read model of sinks, behind `status`, `sink list` and `sink show`.

It reads only the ledger. What is unknown is None, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from strandline.core.delivery_types import NOT_PARTITIONED, Lane, SinkRecord, SinkState
from strandline.core.errors import MarkUnreadable
from strandline.core.types import Dataset, Seq
from strandline.ledger.deliver import delivery_report, intents, lanes, losses, quarantine, sinks
from strandline.ledger.deliver.delivery_report import Pace, ReportedIntent, UnderWay
from strandline.ledger.engine import Connection, Ledger, utc_now
from strandline.ledger.ingest import datasets
from strandline.ledger.maintain import retention_holds

TREND_MINUTES = 10


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """One logical partition of a sink; or the whole sink if its dataset has no partitions or none was seen yet."""

    name: str
    kind: str
    dataset: str
    partition: str | None  # encoded
    generation: int
    watermark: int | None
    lag_rows: int | None
    lag_seconds: float | None
    state: str  # `active`, `paused`, `waiting` (for a retry) or `stopped`
    reason: str | None
    open_intent: UnderWay | None
    quarantined: int  # rows that the sink refused and that were not replayed or discarded
    withheld: int | None
    exported: int | None
    last_batch: ReportedIntent | None
    retries: int  # consecutive failed ticks
    retry_at: datetime | None
    # The following are of the whole sink.
    trend: str  # `growing`, `shrinking` or `steady`
    unplanned_rows: int  # settled rows whose partition only the next plan determines
    sink_lag_rows: int | None
    sink_lag_seconds: float | None
    held_rows: int | None = 0  # rows that retention would delete and holds for the sink
    held_since: datetime | None = None
    lost_rows: int = 0  # rows that were deleted, by a rule or on demand, before the sink had them
    unknown_losses: int = 0  # ranges deleted while nobody knew the sink's watermark; `verify` shows what the sink has
    failing_since: datetime | None = None  # the first failure since a success, or since rows landed


def load_sinks(
    ledger: Ledger, lake: str, only: str | None = None, *, now: datetime | None = None
) -> tuple[SinkStatus, ...]:
    """Ordered by sink and partition."""
    moment = now or utc_now()
    with ledger.read() as connection:
        named = {d.id: d for d in datasets.list_datasets(connection)}
        chosen = sinks.list_sinks(connection) if only is None else [sinks.get(connection, only)]
        return tuple(
            status
            for s in chosen
            for status in _SinkFacts(connection, s, named.get(s.dataset), lake, moment).statuses()
        )


class _SinkFacts:
    """Reads once what is the same for all partitions of a sink."""

    def __init__(
        self, connection: Connection, sink: SinkRecord, dataset: Dataset | None, lake: str, now: datetime
    ) -> None:
        self.sink, self.dataset, self.now = sink, dataset, now
        self.dataset_name = dataset.name if dataset else delivery_report.dataset_name(connection, sink)
        self.lanes, self.problem = _lanes(connection, sink, dataset, lake)
        self.under_way = delivery_report.under_way(connection, sink)
        self.last = delivery_report.last_batches(connection, sink)
        self.quarantined = quarantine.counts(connection, sink)
        held = () if dataset is None else retention_holds.of_dataset(connection, dataset.id)
        self.hold = next((h for h in held if h.sink == sink.id), None)
        self.lost_rows = losses.lost_rows(connection, sink)
        self.unknown_losses = losses.unknown_losses(connection, sink)
        self.unplanned_rows = delivery_report.unplanned_rows(connection, sink)
        self.lag_rows, self.since = intents.lag(connection, sink)
        since = now - timedelta(minutes=TREND_MINUTES)
        self.trend = trend(delivery_report.pace(connection, sink, since), self.lag_rows)

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
        return lanes.list_lanes(connection, sink, lake=lake, table_uuid=dataset.table_uuid), None
    except MarkUnreadable as e:
        return None, e.message


def state_of(sink: SinkRecord) -> str:
    waits = sink.state is SinkState.ACTIVE and (sink.failures > 0 or sink.retry_at is not None)
    return "waiting" if waits else sink.state.value


def trend(pace: Pace, lag_rows: int | None) -> str:
    """Whether the lag grows or shrinks. Without a lag it is steady, whatever was published and delivered."""
    if lag_rows == 0 or pace.published == pace.settled:
        return "steady"
    return "growing" if pace.published > pace.settled else "shrinking"
