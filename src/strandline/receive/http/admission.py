"""Who may come in: so many bodies at once, and no more bytes than ingest can keep up with. Decided before a body is
read.

Used from one event loop only, so it needs no locks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic

from strandline.core.settings import ReceiveSettings
from strandline.core.types import DatasetId
from strandline.receive.http.answers import Turned, busy, in_flight

GAUGE_SECONDS = 1.0
"""How old the ledger's word on the bytes that wait may be. What came in since is added."""


INSPECTIONS_AT_ONCE_MAX = 8


class Gate:
    def __init__(self, settings: ReceiveSettings) -> None:
        self._settings = settings
        self._inside = 0
        self._inspecting = 0
        self._keys: set[Hashable] = set()
        self._waiting_bytes: dict[DatasetId, int] = {}
        self._measured_at: float | None = None

    @property
    def wants_measure(self) -> bool:
        return self._measured_at is None or monotonic() - self._measured_at > GAUGE_SECONDS

    def measured(self, waiting_bytes: Mapping[DatasetId, int]) -> None:
        """Of each dataset that has some, those that were dropped too: their files are on the disk."""
        self._waiting_bytes = dict(waiting_bytes)
        self._measured_at = monotonic()

    def added(self, dataset: DatasetId, spool_bytes: int) -> None:
        self._waiting_bytes[dataset] = self._waiting_bytes.get(dataset, 0) + spool_bytes

    @contextmanager
    def inspecting(self) -> Iterator[None]:
        """To look into the table takes Spark: few look, few wait for it."""
        if self._inspecting >= INSPECTIONS_AT_ONCE_MAX:
            raise Turned(busy("too many ask what is in the table", self._settings.retry_after_seconds))
        self._inspecting += 1
        try:
            yield
        finally:
            self._inspecting -= 1

    @contextmanager
    def entered(self, bringing_to: DatasetId | None = None) -> Iterator[None]:
        """With rows for a dataset, or with a question, which no rows that wait hold up."""
        retry = self._settings.retry_after_seconds
        if self._inside >= self._settings.requests_at_once_max:
            raise Turned(busy("too many requests are being taken in", retry))
        if bringing_to is not None and not self._has_room(bringing_to):
            raise Turned(busy("too many rows wait for ingest", retry))
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    def _has_room(self, dataset: DatasetId) -> bool:
        """One that cannot be ingested must not shut out the others: it cannot take all, and each has a reserve."""
        own, limits = self._waiting_bytes.get(dataset, 0), self._settings
        if own >= limits.spool_dataset_bytes_max:
            return False
        return own < limits.spool_reserve_bytes or sum(self._waiting_bytes.values()) < limits.spool_bytes_max

    @contextmanager
    def alone(self, key: Hashable | None) -> Iterator[None]:
        """A courtesy to the client that sends one key twice at once; across processes the ledger decides. None: there
        is nothing to keep apart."""
        if key is None:
            yield
            return
        if key in self._keys:
            raise Turned(in_flight(self._settings.retry_after_seconds))
        self._keys.add(key)
        try:
            yield
        finally:
            self._keys.discard(key)
