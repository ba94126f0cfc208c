"""The progress of followers, for `status`, `follower list` and metrics: one read model for all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from strandline.ledger.engine import Connection, Ledger, utc_now
from strandline.ledger.replicate.follower_report import ShardLag, read_lags


@dataclass(frozen=True, slots=True)
class FollowerStatus:
    """One shard of one dataset at one follower. What is not known is None, never 0."""

    name: str
    dataset: str
    shard: int
    high_water: int | None  # its items are applied up to here; 0: none of them
    sealed: int | None  # up to here the follower has everything of the dataset
    lag_segments: int | None
    lag_rows: int | None
    lag_seconds: float | None
    reported_at: datetime | None  # the follower's last progress report
    held_since: datetime | None  # since when retention keeps rows of the dataset for it
    dropped_upto: int | None  # retention has deleted rows of the dataset up to here that the follower did not have
    added_at: datetime


def read_followers(connection: Connection) -> tuple[FollowerStatus, ...]:
    now = utc_now()
    return tuple(_status(lag, now) for lag in read_lags(connection))


def load_followers(ledger: Ledger) -> tuple[FollowerStatus, ...]:
    with ledger.read_consistent() as connection:
        return read_followers(connection)


def _status(lag: ShardLag, now: datetime) -> FollowerStatus:
    seconds = None
    if lag.segments is not None:
        seconds = 0.0 if lag.oldest is None else max(0.0, (now - lag.oldest).total_seconds())
    return FollowerStatus(
        lag.follower.name,
        lag.dataset,
        lag.shard,
        lag.mark,
        lag.seal,
        lag.segments,
        lag.rows,
        seconds,
        lag.follower.reported_at,
        lag.held_since,
        lag.dropped_upto,
        lag.follower.added_at,
    )
