"""When a job is due by its schedule. All jobs work alike: a missed run is made up for, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b

from strandline.jobs.node import node
from strandline.ledger import audit
from strandline.ledger.engine import Ledger


def start_delay(job: str, process: str, *, seconds_max: float) -> timedelta:
    """How long after its time a job begins in a process: always the same for the two, and spread evenly below
    `seconds_max` over jobs and processes. Pure."""
    share = int.from_bytes(blake2b(f"{process}\n{job}".encode(), digest_size=6).digest()) / (1 << 48)
    return timedelta(seconds=share * seconds_max)


def next_time(
    cron: str, *, last: datetime | None, followed_since: datetime, now: datetime, delay: timedelta = timedelta(0)
) -> datetime:
    """The first time of the schedule since the job last began: the job is due from then on, so a time that was missed
    because no daemon ran is in the past, and counts once. A job that never ran begins at the first time after
    `followed_since`. A run in the future was stamped by a clock that has been set back since, so it is ignored. The job
    begins `delay` after its time, but never later than half of the way to the next one, so that no time is passed over.
    Pure."""
    from cronsim import CronSim  # not loaded if nothing is scheduled

    since = last if last is not None and last <= now else followed_since
    times = CronSim(cron, since)
    first, second = next(times), next(times)
    return first + min(delay, (second - first) / 2)


def is_due(
    cron: str, *, last: datetime | None, followed_since: datetime, now: datetime, delay: timedelta = timedelta(0)
) -> bool:
    return next_time(cron, last=last, followed_since=followed_since, now=now, delay=delay) <= now


@dataclass
class FollowedSchedules:
    """The schedules of a daemon, by name of the job, and since when a daemon follows exactly these."""

    ledger: Ledger
    crons: Mapping[str, str]
    since: datetime | None = None
    jitter_seconds_max: float = 0.0

    def is_due(self, job: str, cron: str, *, last: datetime | None, now: datetime) -> bool:
        if self.since is None:
            self.since = audit.followed_since(self.ledger, self.crons, now)
        self.since = min(self.since, now)  # in case the clock was set back
        delay = start_delay(job, node(), seconds_max=self.jitter_seconds_max)
        return is_due(cron, last=last, followed_since=self.since, now=now, delay=delay)

    def next_time(self, cron: str, *, last: datetime | None, now: datetime) -> datetime:
        """When the job is due, in the past if it is due now. For readers: stores nothing, and leaves the delay out,
        which differs between processes."""
        since = self.since or audit.find_followed_since(self.ledger, self.crons) or now
        return next_time(cron, last=last, followed_since=min(since, now), now=now)
