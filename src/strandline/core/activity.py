"""Reports what this process has done to observers: a server counts it for `/metrics`.

Without an observer, a report costs nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

log = logging.getLogger(__name__)


class ActivityKind(StrEnum):
    TICK = "tick"  # of one sink
    BATCH = "batch"  # ingested into a dataset
    RUN = "run"  # of maintenance or the reconciler


@dataclass(frozen=True, slots=True)
class Activity:
    kind: ActivityKind
    name: str  # of the sink or dataset; the kind of the run
    outcome: str
    seconds: float
    rows: int = 0


Observer = Callable[[Activity], None]
_observers: list[Observer] = []


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Inside the block, the observer gets every activity that ends, in whichever thread."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def report_activity(activity: Activity) -> None:
    """Reports the activity to all observers. Never fails: counting must not harm the work."""
    for observer in tuple(_observers):
        try:
            observer(activity)
        except Exception:
            log.exception("%s of %s could not be counted", activity.kind, activity.name)


class Stopwatch:
    """Measures one piece of work; `report` passes on to observers how it ended."""

    def __init__(self, kind: ActivityKind, name: str) -> None:
        self._kind, self._name, self._began = kind, name, time.monotonic()

    def report(self, outcome: str, *, rows: int = 0) -> None:
        report_activity(Activity(self._kind, self._name, outcome, time.monotonic() - self._began, rows))
