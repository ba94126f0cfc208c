"""What the arbiter said last, for whoever wants to see it. Nobody decides anything by this."""

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
        seen = arbiter.read()
    except StrandlineError as e:
        return ArbiterAnswer(arbiter.place, None, e.message)
    return ArbiterAnswer(arbiter.place, None if seen is None else seen.record, None)


class ArbiterWatch:
    """One call at a time, and at most one in `every_seconds`, however many ask. While it is under way, others get what
    the one before found. Thread-safe."""

    def __init__(self, arbiter: Arbiter, *, every_seconds: float, clock: Callable[[], float] = elapsed_seconds) -> None:
        self._arbiter, self._every_seconds, self._clock = arbiter, every_seconds, clock
        self._asking = threading.Lock()
        self._last: tuple[float, ArbiterAnswer] | None = None  # when it was asked, and what it said

    def newest(self) -> ArbiterAnswer:
        if (found := self._young()) is not None:
            return found
        if not self._asking.acquire(blocking=self._last is None):
            assert self._last is not None
            return self._last[1]
        try:
            if (found := self._young()) is not None:  # somebody else has asked while this one waited
                return found
            answer = ask(self._arbiter)
            self._last = self._clock(), answer
            return answer
        finally:
            self._asking.release()

    def _young(self) -> ArbiterAnswer | None:
        if self._last is None or self._clock() - self._last[0] >= self._every_seconds:
            return None
        return self._last[1]
