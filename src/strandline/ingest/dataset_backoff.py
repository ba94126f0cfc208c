"""When recovery tries a dataset again that it could not settle: the longer the failure took, the later."""

from __future__ import annotations

import time
from collections.abc import Callable

from strandline.core.types import DatasetId

WAIT_FACTOR = 20  # so that a dataset that always fails costs a process little of its time
WAIT_SECONDS_MAX = 600  # the cause may be gone soon: storage was away for a while


class DatasetBackoff:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[DatasetId, float] = {}

    def is_waiting(self, id: DatasetId) -> bool:
        return self._clock() < self._until.get(id, float("-inf"))

    def failed(self, id: DatasetId, started_at: float) -> None:
        """An attempt that began at `started_at` has failed just now."""
        now = self._clock()
        self._until[id] = now + min(WAIT_FACTOR * (now - started_at), WAIT_SECONDS_MAX)

    def succeeded(self, id: DatasetId) -> None:
        self._until.pop(id, None)

    def now(self) -> float:
        return self._clock()

    def forget(self) -> None:
        """The next attempt takes every dataset."""
        self._until.clear()
