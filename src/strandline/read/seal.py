"""Watches the sealed watermark of a dataset, and waits for it.

Reading the value takes no lock and no query. It moves when this process publishes, and when a poll of the ledger finds
that another process has published.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from strandline.core.errors import StrandlineError
from strandline.core.types import Dataset, Seq
from strandline.jobs.loop import LoopControl
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import blocks

log = logging.getLogger(__name__)

Subscriber = Callable[[Seq], None]


class SealedWatermark:
    """Monotonic: neither a poll that returns late nor a restored ledger moves it back."""

    def __init__(self, load: Callable[[], Seq | None], *, poll_seconds: float) -> None:
        self._load = load
        self._poll_seconds = poll_seconds
        self._value: Seq | None = None
        self._moved = threading.Condition()
        self._subscribers: list[Subscriber] = []
        self._poller: threading.Thread | None = None
        self._notifying = threading.RLock()
        self._notified: Seq | None = None
        self._closed = threading.Event()

    @property
    def value(self) -> Seq | None:
        """The last known value, without a lock; `refresh` reads the ledger."""
        return self._value

    def refresh(self) -> Seq | None:
        if (found := self._load()) is not None:
            self._advance(found)
        return self._value

    def wait_past(self, seq: Seq | None, timeout_seconds: float) -> Seq | None:
        """The watermark once it is above `seq` (None: once there is one), or None after the timeout."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            value = self.refresh()
            if value is not None and (seq is None or value > seq):
                return value
            left = deadline - time.monotonic()
            if left <= 0 or self._closed.is_set():
                return None
            with self._moved:
                if self._value == value:
                    self._moved.wait(min(left, self._poll_seconds))

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Calls `subscriber` once with each new value, in order, from the thread that found it. Returns a function that
        unsubscribes."""
        with self._moved:
            self._subscribers.append(subscriber)
            if self._poller is None:
                self._poller = threading.Thread(target=self._poll, name="strandline-seal", daemon=True)
                self._poller.start()

        def end() -> None:
            with self._moved:
                if subscriber in self._subscribers:
                    self._subscribers.remove(subscriber)

        return end

    def close(self) -> None:
        self._closed.set()
        with self._moved:
            self._moved.notify_all()

    def _advance(self, found: Seq) -> None:
        with self._moved:
            if self._value is not None and found <= self._value:
                return
            self._value = found
            self._moved.notify_all()
        self._notify()

    def _notify(self) -> None:
        """Runs outside of the lock that waiting readers use: a subscriber may be slow, or call this watch."""
        with self._notifying:
            with self._moved:
                value, subscribers = self._value, list(self._subscribers)
            if value is None or (self._notified is not None and value <= self._notified):
                return
            self._notified = value
            for subscriber in subscribers:
                try:
                    subscriber(value)
                except Exception:
                    # A subscriber that fails must not stop the others, or the watch itself.
                    log.exception("a subscriber of the sealed watermark failed")

    def _poll(self) -> None:
        LoopControl(self._closed).repeat(self.refresh, name="the sealed watermark", poll_seconds=self._poll_seconds)


class SealWatches:
    """One watch per dataset and process."""

    def __init__(self, ledger: Ledger, *, poll_seconds: float) -> None:
        self._ledger = ledger
        self._poll_seconds = poll_seconds
        self._watches: dict[str, SealedWatermark] = {}

    def watch(self, dataset: Dataset) -> SealedWatermark:
        def load() -> Seq | None:
            return self._ledger.query(blocks.sealed, dataset.id)

        return self._watches.setdefault(dataset.name, SealedWatermark(load, poll_seconds=self._poll_seconds))

    def refresh(self, dataset: Dataset) -> None:
        """Ignores errors: the rows are published by now, and a failing watch must not fail the append."""
        if (watch := self._watches.get(dataset.name)) is not None:
            with suppress(StrandlineError):
                watch.refresh()

    def forget(self, name: str) -> None:
        self._watches.pop(name, None)

    def close(self) -> None:
        for watch in self._watches.values():
            watch.close()
