"""Who may come in: so many bodies at once, and no more bytes than ingest can keep up with. Decided before a body is
read.

Used from one event loop only, so it needs no locks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from time import monotonic

from strandline.config import ReceiveSettings
from strandline.receive.answers import Turned, busy, in_flight

GAUGE_SECONDS = 1.0
"""How old the ledger's word on the bytes that wait may be. What came in since is added."""


INSPECTIONS_AT_ONCE_MAX = 8


class Gate:
    def __init__(self, settings: ReceiveSettings) -> None:
        self._settings = settings
        self._inside = 0
        self._inspecting = 0
        self._keys: set[Hashable] = set()
        self._waiting_bytes = 0
        self._measured_at: float | None = None

    @property
    def wants_measure(self) -> bool:
        return self._measured_at is None or monotonic() - self._measured_at > GAUGE_SECONDS

    def measured(self, waiting_bytes: int) -> None:
        self._waiting_bytes = waiting_bytes
        self._measured_at = monotonic()

    def added(self, spool_bytes: int) -> None:
        self._waiting_bytes += spool_bytes

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
    def entered(self, *, brings_rows: bool = True) -> Iterator[None]:
        retry = self._settings.retry_after_seconds
        if self._inside >= self._settings.requests_at_once_max:
            raise Turned(busy("too many requests are being taken in", retry))
        if brings_rows and self._waiting_bytes >= self._settings.spool_bytes_max:
            raise Turned(busy("too many rows wait for ingest", retry))
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

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
