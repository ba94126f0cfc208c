"""The loop of a daemon: work, wait, and again, until it is told to stop."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from strandline.core.errors import StrandlineError, as_strandline_error
from strandline.jobs.backoff import backoff_seconds

log = logging.getLogger(__name__)

OnTrouble = Callable[[StrandlineError], None]

BACKOFF_SECONDS_MAX = 5.0
"""Short: when the ledger answers again, its daemons go on within seconds."""


@dataclass(frozen=True, slots=True)
class Health:
    """How the last passes of a loop went."""

    failures: int = 0
    """Passes in a row that failed."""
    reported: str | None = None
    """The trouble that was reported last, as long as it lasts."""

    def after_success(self) -> Health:
        return Health()

    def after_failure(self, message: str) -> Health:
        return Health(self.failures + 1, message)

    def is_news(self, message: str) -> bool:
        """The same trouble is reported once, and again after a pass that went well."""
        return message != self.reported

    def wait_seconds(self, poll_seconds: float, chance: float) -> float:
        """Until the next pass; `chance` is in 0..1. Never less than the interval of a loop that is well."""
        if not self.failures:
            return poll_seconds
        longest = max(poll_seconds, BACKOFF_SECONDS_MAX)
        return max(poll_seconds, backoff_seconds(self.failures - 1, chance, first=poll_seconds, longest=longest))


def run_until_stopped(
    work: Callable[[], None],
    *,
    name: str,
    stopping: threading.Event,
    poll_seconds: float,
    on_trouble: OnTrouble | None = None,
    on_well: Callable[[], None] = lambda: None,
) -> None:
    """Do the work again and again until `stopping` is set. Work that raises is reported and tried again: the loop never
    ends by itself. `on_well` is called when the work succeeds after trouble."""
    report = on_trouble or (lambda error: log.warning("%s failed and is tried again: %s", name, error.message))
    health = Health()
    while not stopping.is_set():
        try:
            work()
        except Exception as e:
            error = as_strandline_error(e)
            if health.is_news(error.message):
                if error is not e:
                    log.error("%s failed in a way that nobody foresaw", name, exc_info=e)
                report(error)
            health = health.after_failure(error.message)
        else:
            if health.failures:
                on_well()
            health = health.after_success()
        stopping.wait(health.wait_seconds(poll_seconds, random.random()))
