"""Admission control: limits the requests in progress and the bytes that wait for ingest, before a body is read.

Used from one event loop only, so it needs no locks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic

from strandline.core.settings.receive import ReceiveSettings
from strandline.core.types import DatasetId
from strandline.receive.http.answers import EarlyReply, busy, in_flight

GAUGE_SECONDS = 1.0  # how long a measurement of the waiting bytes is used; bytes that arrive since are added


INSPECTIONS_AT_ONCE_MAX = 8


class AdmissionGate:
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
        """Bytes per dataset, dropped datasets included: their files still take disk space."""
        self._waiting_bytes = dict(waiting_bytes)
        self._measured_at = monotonic()

    def added(self, dataset: DatasetId, spool_bytes: int) -> None:
        self._waiting_bytes[dataset] = self._waiting_bytes.get(dataset, 0) + spool_bytes

    @contextmanager
    def inspecting(self) -> Iterator[None]:
        """Limits inspections of the table: they need Spark. Raises EarlyReply."""
        if self._inspecting >= INSPECTIONS_AT_ONCE_MAX:
            raise EarlyReply(busy("too many inspections of the table are running", self._settings.retry_after_seconds))
        self._inspecting += 1
        try:
            yield
        finally:
            self._inspecting -= 1

    @contextmanager
    def entered(self, bringing_to: DatasetId | None = None) -> Iterator[None]:
        """Admits a body of a dataset, or a question (None), to which the limit of waiting rows does not apply. Raises
        EarlyReply."""
        retry = self._settings.retry_after_seconds
        if self._inside >= self._settings.requests_at_once_max:
            raise EarlyReply(busy("too many requests are being handled", retry))
        if bringing_to is not None and not self._has_room(bringing_to):
            raise EarlyReply(busy("too many rows wait for ingest", retry))
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    def _has_room(self, dataset: DatasetId) -> bool:
        """Each dataset has its own limit and a reserve, so that one that cannot be ingested does not block others."""
        own, limits = self._waiting_bytes.get(dataset, 0), self._settings
        if own >= limits.spool_dataset_bytes_max:
            return False
        return own < limits.spool_reserve_bytes or sum(self._waiting_bytes.values()) < limits.spool_bytes_max

    @contextmanager
    def alone(self, key: Hashable | None) -> Iterator[None]:
        """Refuses a second body with the same key while the first is handled; across processes the ledger decides.
        None: the body has no key. Raises EarlyReply."""
        if key is None:
            yield
            return
        if key in self._keys:
            raise EarlyReply(in_flight(self._settings.retry_after_seconds))
        self._keys.add(key)
        try:
            yield
        finally:
            self._keys.discard(key)
