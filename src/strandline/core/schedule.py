"""The type of a schedule in settings, in cron notation. `jobs/schedule.py` says when a job is due."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator


def _cron(text: str) -> str:
    from cronsim import CronSim, CronSimError  # not loaded if nothing is scheduled

    try:
        next(CronSim(text, datetime(2000, 1, 1, tzinfo=UTC)))
    except (CronSimError, StopIteration) as e:
        raise ValueError(f"`{text}` is not a schedule ({e}); write it as cron does: `30 3 * * *`") from e
    return text


Cron = Annotated[str, AfterValidator(_cron)]
