"""Backoff for datasets of which an attempt failed: the longer the attempt took, the longer the wait before the next."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from strandline.core.types import DatasetId, DatasetUuid

WAIT_FACTOR = 20  # a dataset that always fails then takes at most 5 % of a process's time
WAIT_SECONDS_MAX = 600  # the cause may end soon, for example if storage was unavailable for a while

Id = TypeVar("Id", DatasetId, DatasetUuid)


class DatasetBackoff(Generic[Id]):
    """`wait_seconds_min` is the shortest wait after a failure."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, wait_seconds_min: float = 0) -> None:
        self._clock = clock
        self._wait_seconds_min = wait_seconds_min
        self._until: dict[Id, float] = {}

    def is_waiting(self, id: Id) -> bool:
        return self._clock() < self._until.get(id, float("-inf"))

    def waiting(self) -> set[Id]:
        now = self._clock()
        return {id for id, until in self._until.copy().items() if now < until}

    def failed(self, id: Id, started_at: float) -> None:
        """Records that an attempt that began at `started_at` has failed now."""
        now = self._clock()
        self._until[id] = now + max(self._wait_seconds_min, min(WAIT_FACTOR * (now - started_at), WAIT_SECONDS_MAX))

    def succeeded(self, id: Id) -> None:
        self._until.pop(id, None)

    def now(self) -> float:
        return self._clock()

    def forget(self) -> None:
        """Makes the next attempt try all datasets."""
        self._until.clear()
