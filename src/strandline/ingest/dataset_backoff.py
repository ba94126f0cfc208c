"""Backoff for datasets that recovery could not settle: the longer an attempt took, the later the next one."""

from __future__ import annotations

import time
from collections.abc import Callable

from strandline.core.types import DatasetId

WAIT_FACTOR = 20  # a dataset that always fails then takes at most 5 % of a process's time
WAIT_SECONDS_MAX = 600  # the cause may end soon: storage was unavailable for a while


class DatasetBackoff:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[DatasetId, float] = {}

    def is_waiting(self, id: DatasetId) -> bool:
        return self._clock() < self._until.get(id, float("-inf"))

    def failed(self, id: DatasetId, started_at: float) -> None:
        """Notes that an attempt which began at `started_at` has failed now."""
        now = self._clock()
        self._until[id] = now + min(WAIT_FACTOR * (now - started_at), WAIT_SECONDS_MAX)

    def succeeded(self, id: DatasetId) -> None:
        self._until.pop(id, None)

    def now(self) -> float:
        return self._clock()

    def forget(self) -> None:
        """Makes the next attempt try all datasets."""
        self._until.clear()
