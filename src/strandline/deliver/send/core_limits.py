"""How many of Spark's cores a sink may use, so that a sink whose destination hangs leaves some to the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_CHECK_SECONDS = 0.2


def tasks_max(*, cores: int, share: float, others: bool, in_trouble: bool) -> int | None:
    """How many tasks may send to a sink at once; None for as many as there are cores. A sink in trouble gets one task
    until something has landed. A sink that is the only one may use all cores."""
    if in_trouble:
        return 1
    return max(1, int(cores * share)) if others else None


class TroubledSinks:
    """The sinks of one process that failed the last time. Each gets one task, and all but one core may be busy with
    them, so one core stays free for the other sinks. With a single core they take turns."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sending = 0

    @contextmanager
    def sending(self, cores: int, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Waits until this sink may send. `check` is called before, while and after it waits, and ends the wait by
        raising: the core may be free only because the other sink's work was called off, and so is this."""
        with self._changed:
            check()
            while self._sending >= max(1, cores - 1):
                self._changed.wait(_CHECK_SECONDS)
                check()
            self._sending += 1
        try:
            yield
        finally:
            with self._changed:
                self._sending -= 1
                self._changed.notify()
