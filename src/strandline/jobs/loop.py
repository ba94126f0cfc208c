"""The loops of a daemon: each works, waits and repeats, until it is asked to stop."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from strandline.core.calling_off import called_off_by
from strandline.core.errors import CalledOff, StrandlineError, as_strandline_error
from strandline.core.retry import backoff_seconds

log = logging.getLogger(__name__)

OnTrouble = Callable[[StrandlineError], None]

BACKOFF_SECONDS_MAX = 5.0  # short: daemons continue within seconds after the ledger answers again


@dataclass(frozen=True, slots=True)
class Health:
    """The outcome of a loop's last passes."""

    failures: int = 0  # passes in a row that failed
    reported: str | None = None  # the trouble reported last, as long as it lasts

    def after_success(self) -> Health:
        return Health()

    def after_failure(self, message: str) -> Health:
        return Health(self.failures + 1, message)

    def is_news(self, message: str) -> bool:
        """Whether the message must be reported: an error is reported once, and again after a successful pass."""
        return message != self.reported

    def wait_seconds(self, poll_seconds: float, chance: float) -> float:
        """Until the next pass; `chance` is in 0..1. Never shorter than the interval of a healthy loop."""
        if not self.failures:
            return poll_seconds
        longest = max(poll_seconds, BACKOFF_SECONDS_MAX)
        return max(poll_seconds, backoff_seconds(self.failures - 1, chance, first=poll_seconds, longest=longest))


class LoopStates:
    """Whether the loops of this process work. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._problems: dict[str, str | None] = {}

    def begun(self, name: str) -> None:
        self._set(name, None)

    def troubled(self, name: str, error: StrandlineError) -> None:
        # In our own words: the message of an error may name a path, an address or a user.
        self._set(name, f"it fails and is tried again ({type(error).__name__})")

    def ended(self, name: str) -> None:
        self._set(name, "it has ended")

    def _set(self, name: str, problem: str | None) -> None:
        with self._lock:
            self._problems[name] = problem

    def problems(self) -> dict[str, str | None]:
        """What is wrong with each loop, by its name; None if nothing is."""
        with self._lock:
            return dict(self._problems)


@dataclass(frozen=True, slots=True)
class LoopControl:
    """Stops a loop, and gets its reports."""

    stopping: threading.Event = field(default_factory=threading.Event)
    on_trouble: OnTrouble | None = None  # None: it is logged
    on_well: Callable[[], None] = lambda: None  # called when the work succeeds after a failure

    def repeat(self, work: Callable[[], object], *, name: str, poll_seconds: float) -> None:
        """Repeats the work until `stopping` is set, which also calls off the work under way. Work that raises is
        reported and retried: the loop never ends by itself."""
        health = Health()
        while not self.stopping.is_set():
            try:
                with called_off_by(self.stopping):
                    work()
            except CalledOff as e:
                log.info("%s was called off: %s", name, e.__cause__ or e.message)
            except Exception as e:
                error = as_strandline_error(e)
                if health.is_news(error.message):
                    if error is not e:
                        log.error("%s failed with an unexpected error", name, exc_info=e)
                    self._report(name, error)
                health = health.after_failure(error.message)
            else:
                if health.failures:
                    self.on_well()
                health = health.after_success()
            self.stopping.wait(health.wait_seconds(poll_seconds, random.random()))

    def _report(self, name: str, error: StrandlineError) -> None:
        if self.on_trouble is not None:
            self.on_trouble(error)
        else:
            log.warning("%s failed and is tried again: %s", name, error.message)
