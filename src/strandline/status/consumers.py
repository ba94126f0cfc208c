"""The progress of consumers, for `status`, `consumer list` and metrics: one read model for all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from strandline.ledger.engine import Connection, Ledger, utc_now
from strandline.ledger.read.consumers import ConsumerLag, read_lags


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    name: str
    dataset: str
    watermark: int | None  # it has every row up to here; None: it has none
    lag_rows: int  # settled rows that it lacks
    lag_seconds: float  # for how long the oldest of them has been settled
    on_lag: str
    drop_after_seconds: float | None
    reported_at: datetime | None  # its last progress report
    held_since: datetime | None  # since when retention keeps due rows for it
    dropped_upto: int | None  # retention has deleted rows up to here that it did not have
    added_at: datetime


def read_consumers(connection: Connection) -> tuple[ConsumerStatus, ...]:
    """All consumers, by name and dataset."""
    now = utc_now()
    return tuple(_status(lag, now) for lag in read_lags(connection))


def load_consumers(ledger: Ledger) -> tuple[ConsumerStatus, ...]:
    with ledger.read_consistent() as connection:
        return read_consumers(connection)


def _status(lag: ConsumerLag, now: datetime) -> ConsumerStatus:
    one = lag.consumer
    return ConsumerStatus(
        one.name,
        lag.dataset,
        one.watermark,
        lag.rows,
        0.0 if lag.since is None else max(0.0, (now - lag.since).total_seconds()),
        one.on_lag.value,
        None if one.drop_after is None else one.drop_after.total_seconds(),
        one.reported_at,
        one.held_since,
        one.dropped_upto,
        one.added_at,
    )
