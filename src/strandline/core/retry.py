"""How often something is tried again, and how long the pauses are. Each kind of trouble has one policy.

A retry is safe only if an attempt first reads what an earlier one did, or is idempotent.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
_DOUBLINGS_MAX = 16


def backoff_seconds(failures: int, chance: float, *, longest: float, first: float = 1.0) -> float:
    """Doubles after each failure, up to `longest`. The jitter `chance` (0..1) takes off up to half of it."""
    return min(longest, first * 2.0 ** min(failures, _DOUBLINGS_MAX)) * (0.5 + chance / 2)


@dataclass(slots=True)
class Attempt:
    number: int  # from 1
    pause_seconds: float  # before the next attempt
    _until: float
    _is_last: bool | None  # None: not decided yet
    at_once: bool = False  # set by the caller: the next attempt begins without a pause
    has_progressed: bool = False  # set by the caller: this attempt achieved something, so counting starts again

    @property
    def is_last(self) -> bool:
        """Decided once: a caller that has read False gets another attempt."""
        if self._is_last is None:
            self._is_last = time.monotonic() + self.pause_seconds > self._until
        return self._is_last


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    first_seconds: float  # the first pause; each one is twice as long as the one before, less a jitter of up to a half
    longest_seconds: float = math.inf
    attempts_max: int | None = None  # None: as many as there is time for
    seconds_max: float = math.inf  # no attempt begins later

    def attempts(self, pause: Callable[[float], object] | None = None) -> Iterator[Attempt]:
        """Yields the attempts, with the pauses between them. The caller leaves the loop when one succeeds; one that
        fails and `is_last` has to raise. `pause` waits for so many seconds; None: it sleeps."""
        number, until = 0, math.inf
        while True:
            if number == 0:
                until = time.monotonic() + self.seconds_max
            number += 1
            seconds = backoff_seconds(
                number - 1, random.random(), first=self.first_seconds, longest=self.longest_seconds
            )
            attempt = Attempt(number, seconds, until, True if number == self.attempts_max else None)
            yield attempt
            if attempt.has_progressed:
                number = 0
            elif attempt.is_last:
                return
            if not attempt.at_once:
                (pause or time.sleep)(seconds)

    def call(
        self,
        step: Callable[[], T],
        errors: type[Exception] | tuple[type[Exception], ...],
        between: Callable[[], object] = lambda: None,
    ) -> T:
        """What `step` returns. Calls it again if it raises one of the errors; `between` runs before that."""
        for attempt in self.attempts():
            try:
                return step()
            except errors:
                if attempt.is_last:
                    raise
            between()
        raise AssertionError("unreachable")
