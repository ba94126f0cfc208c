"""The read model of sinks, behind `status`, `sink list` and `sink show`.

It reads only the ledger. What is unknown is None, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from strandline.core.delivery_types import NOT_PARTITIONED, Lane, SinkRecord
from strandline.ledger.deliver import delivery_report, lanes, sinks
from strandline.ledger.deliver.delivery_report import ReportedIntent, UnderWay
from strandline.ledger.engine import Connection, Ledger, utc_now
from strandline.ledger.ingest import datasets
from strandline.status.whole_sinks import BySink, WholeSink

if TYPE_CHECKING:
    from strandline.core.types import Dataset, Seq
    from strandline.ledger.deliver.delivery_report import Pace

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
    trend: str  # `growing`, `shrinking`, `steady` or `unknown`
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
    with ledger.read_consistent() as connection:
        return read_sinks(connection, lake, only, now=now)


def load_lanes(ledger: Ledger, lake: str, name: str) -> list[tuple[int, SinkStatus]]:
    """The lanes of one sink, each with its id in the ledger, oldest first. A sink without lanes has one status, with
    number 0."""
    with ledger.read_consistent() as connection:
        found = read_sinks(connection, lake, name)
        numbers = {one.partition: one.id for one in lanes.unchecked(connection, sinks.get(connection, name))}
    numbered = [(numbers.get(status.partition or NOT_PARTITIONED, 0), status) for status in found]
    return sorted(numbered, key=lambda one: one[0])


def read_sinks(
    connection: Connection,
    lake: str,
    only: str | None = None,
    *,
    now: datetime | None = None,
    given: Sequence[Dataset] | None = None,
) -> tuple[SinkStatus, ...]:
    """The statuses of sinks, in a fixed number of queries. `connection` must be one of `read_consistent`; `given` are
    all datasets, if the caller has read them."""
    moment = now or utc_now()
    chosen = sinks.list_sinks(connection) if only is None else [sinks.get(connection, only)]
    if not chosen:
        return ()
    known = datasets.list_datasets(connection) if given is None else given
    delivery = _DeliveryRecords(connection, known, None if only is None else chosen[0], moment)
    return tuple(status for s in chosen for status in _SinkFacts(delivery, s, lake, moment).statuses())


class _DeliveryRecords(BySink):
    """The ledger's records of all chosen sinks and their lanes."""

    def __init__(self, connection: Connection, known: Sequence[Dataset], one: SinkRecord | None, now: datetime) -> None:
        only = None if one is None else one.id
        super().__init__(connection, known, only)
        self.lanes = lanes.unchecked_of_all(connection) if one is None else {one.id: lanes.unchecked(connection, one)}
        self.under_way = delivery_report.under_way(connection, only)
        self.last = delivery_report.last_batches(connection, only)
        self.quarantined = delivery_report.quarantined_rows(connection, only)
        self.paces = delivery_report.paces(connection, now - timedelta(minutes=TREND_MINUTES), only)


class _SinkFacts(WholeSink):
    """A sink with its partitions."""

    def __init__(self, found: _DeliveryRecords, sink: SinkRecord, lake: str, now: datetime) -> None:
        self.lanes = found.lanes.get(sink.id, [])
        promised = sum(u.rows_left for one in self.lanes if (u := found.under_way.get(one.id)) is not None)
        quarantined = sum(found.quarantined.get(one.id, 0) for one in self.lanes)
        super().__init__(found, sink, self.lanes, lake, now, promised=promised, quarantined=quarantined)
        self.under_way, self.last, self.quarantined = found.under_way, found.last, found.quarantined
        self.trend = trend(found.paces[sink.id], self.counted_lag_rows) if self.is_readable else "unknown"

    def statuses(self) -> list[SinkStatus]:
        if not self.is_readable:
            return [self._status(None, None, None, None, None)]
        if not self.lanes:
            return [self._status(None, self.sink.planned, self.lag_rows, self.lag_seconds, None)]
        return [self._status(found.partition or None, found.mark, *self._lag(found), found) for found in self.lanes]

    def _lag(self, found: Lane) -> tuple[int | None, float | None]:
        if found.partition == NOT_PARTITIONED:
            return self.lag_rows, self.lag_seconds
        opened = self.under_way.get(found.id)
        since = None if opened is None else opened.waiting_since
        promised = found.mark if opened is None else opened.rows.hi
        if self.unplanned_rows or promised != self.sink.planned:
            return None, None if since is None else self.seconds(since)
        return (0, 0.0) if opened is None or since is None else (opened.rows_left, self.seconds(since))

    def _status(
        self,
        partition: str | None,
        watermark: Seq | None,
        lag_rows: int | None,
        lag_seconds: float | None,
        found: Lane | None,
    ) -> SinkStatus:
        sink = self.sink
        unread = not self.is_readable
        return SinkStatus(
            sink.name,
            sink.kind,
            self.dataset_name,
            partition,
            sink.generation,
            watermark,
            lag_rows,
            lag_seconds,
            self.state,
            self.problem or sink.reason,
            None if found is None else self.under_way.get(found.id),
            self.quarantined_rows if found is None else self.quarantined.get(found.id, 0),
            found.withheld if found is not None else None if unread else 0,
            found.exported if found is not None else None if unread else 0,
            None if found is None else self.last.get(found.id),
            sink.failures,
            sink.retry_at,
            self.trend,
            self.unplanned_rows,
            self.lag_rows,
            self.lag_seconds,
            self.held_rows,
            self.held_since,
            self.lost.rows,
            self.lost.unknown,
            sink.failing_since,
        )


def trend(pace: Pace, lag_rows: int | None) -> str:
    """Whether the lag grows or shrinks. Without a lag it is always steady."""
    if lag_rows == 0 or pace.published == pace.settled:
        return "steady"
    return "growing" if pace.published > pace.settled else "shrinking"
