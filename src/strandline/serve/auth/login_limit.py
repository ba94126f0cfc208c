"""Limits attempts to log in, per address and in all. Used from one event loop only, so it needs no locks."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from time import monotonic

_WINDOW_SECONDS = 60.0
_ADDRESSES_MAX = 10_000
_ALL_TIMES = 10  # as many attempts from all addresses together


class LoginLimit:
    def __init__(self, per_minute_max: int, clock: Callable[[], float] = monotonic) -> None:
        self._max = per_minute_max
        self._clock = clock
        self._by_address: OrderedDict[str, deque[float]] = OrderedDict()
        self._all: deque[float] = deque()

    def wait_seconds(self, address: str) -> int | None:
        """Records an attempt. None if it is allowed, otherwise when the next one is."""
        now = self._clock()
        own = self._by_address.setdefault(address, deque())
        self._by_address.move_to_end(address)
        if len(self._by_address) > _ADDRESSES_MAX:
            self._by_address.popitem(last=False)
        for attempts in (own, self._all):
            while attempts and attempts[0] <= now - _WINDOW_SECONDS:
                attempts.popleft()
        for attempts, most in ((own, self._max), (self._all, self._max * _ALL_TIMES)):
            if len(attempts) >= most:
                return max(1, round(attempts[0] + _WINDOW_SECONDS - now))
        own.append(now)
        self._all.append(now)
        return None

    def forget_last(self, address: str) -> None:
        """Takes back the last attempt, which succeeded. Failed ones still count."""
        attempts = self._by_address.get(address)
        if attempts:
            moment = attempts.pop()
            if moment in self._all:
                self._all.remove(moment)
