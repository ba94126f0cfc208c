"""Whether a job is due by its schedule. All jobs work alike: a missed run is made up for, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from strandline.ledger import audit
from strandline.ledger.engine import Ledger


def is_due(cron: str, *, last: datetime | None, followed_since: datetime, now: datetime) -> bool:
    """Whether the schedule had a time since the job last began. A time that was missed because no daemon ran counts,
    once. A job that never ran begins at the first time after `followed_since`. A run in the future was stamped by a
    clock that has been set back since, so it is ignored. Pure."""
    from cronsim import CronSim  # not loaded if nothing is scheduled

    since = last if last is not None and last <= now else followed_since
    return since <= now and next(CronSim(cron, since)) <= now


@dataclass
class FollowedSchedules:
    """The schedules of a daemon, by name of the job, and since when a daemon follows exactly these."""

    ledger: Ledger
    crons: Mapping[str, str]
    since: datetime | None = None

    def is_due(self, cron: str, *, last: datetime | None, now: datetime) -> bool:
        if self.since is None:
            self.since = audit.followed_since(self.ledger, self.crons, now)
        self.since = min(self.since, now)  # in case the clock was set back
        return is_due(cron, last=last, followed_since=self.since, now=now)
