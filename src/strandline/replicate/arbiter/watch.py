"""The arbiter's latest answer, for status and metrics only: no decision depends on it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from strandline.core.clock import elapsed_seconds
from strandline.core.errors import StrandlineError
from strandline.core.sites.arbiter import LeaderRecord
from strandline.replicate.arbiter.arbiter import Arbiter


@dataclass(frozen=True, slots=True)
class ArbiterAnswer:
    place: str
    record: LeaderRecord | None  # None: nobody has written one, or the arbiter did not answer
    trouble: str | None  # why the record could not be read


def ask(arbiter: Arbiter) -> ArbiterAnswer:
    """One call, which may take replication.arbiter_seconds_max."""
    try:
        read = arbiter.read()
    except StrandlineError as e:
        return ArbiterAnswer(arbiter.place, None, e.message)
    return ArbiterAnswer(arbiter.place, None if read is None else read.record, None)


class ArbiterWatch:
    """Calls the arbiter at most once in `every_seconds`, however many threads ask. While a call runs, the others get
    the answer before it. Thread-safe."""

    def __init__(self, arbiter: Arbiter, *, every_seconds: float, clock: Callable[[], float] = elapsed_seconds) -> None:
        self._arbiter, self._every_seconds, self._clock = arbiter, every_seconds, clock
        self._calling = threading.Lock()
        self._last: tuple[float, ArbiterAnswer] | None = None  # when the call ended, and its answer

    def newest(self) -> ArbiterAnswer:
        if (found := self._recent()) is not None:
            return found
        if not self._calling.acquire(blocking=self._last is None):
            assert self._last is not None
            return self._last[1]
        try:
            if (found := self._recent()) is not None:  # another thread has called while this one waited
                return found
            answer = ask(self._arbiter)
            self._last = self._clock(), answer
            return answer
        finally:
            self._calling.release()

    def _recent(self) -> ArbiterAnswer | None:
        if self._last is None or self._clock() - self._last[0] >= self._every_seconds:
            return None
        return self._last[1]
