"""Schedules, as cron writes them: what a setting may say, and when a job is due. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator


def _cron(text: str) -> str:
    from cronsim import CronSim, CronSimError  # not loaded where nothing is scheduled

    try:
        next(CronSim(text, datetime(2000, 1, 1, tzinfo=UTC)))
    except (CronSimError, StopIteration) as e:
        raise ValueError(f"`{text}` is not a schedule ({e}); write it as cron does: `30 3 * * *`") from e
    return text


Cron = Annotated[str, AfterValidator(_cron)]


def is_due(cron: str, *, last: datetime | None, watching_since: datetime, now: datetime) -> bool:
    """Whether a moment of the schedule has passed since the job last began. A moment that was missed because no daemon
    ran counts, once. A job that never ran begins with the first moment after `watching_since`. A run in the future was
    stamped by a clock that has been set back since, so it tells nothing."""
    from cronsim import CronSim

    since = last if last is not None and last <= now else watching_since
    return since <= now and next(CronSim(cron, since)) <= now
