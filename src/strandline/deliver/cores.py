"""How many of Spark's cores a sink may use, so that one whose destination hangs leaves some to the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_CHECK_SECONDS = 0.2


def tasks_max(*, cores: int, share: float, others: bool, in_trouble: bool) -> int | None:
    """How many tasks may send to a sink at once; None for as many as there are cores. A sink in trouble gets one task,
    until something has landed; a sink without others may take everything."""
    if in_trouble:
        return 1
    return max(1, int(cores * share)) if others else None


class TroubledSinks:
    """Sinks of one process that failed the last time. Together they leave a core to the others: each has one task, and
    one of them fewer than there are cores may send at a time. With a single core, one after the other."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sending = 0

    @contextmanager
    def turn(self, cores: int, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Waits for a turn to send. `check` is called while it waits, and ends that by raising."""
        with self._changed:
            while self._sending >= max(1, cores - 1):
                check()
                self._changed.wait(_CHECK_SECONDS)
            self._sending += 1
        try:
            yield
        finally:
            with self._changed:
                self._sending -= 1
                self._changed.notify()
