"""What commands that run until they are stopped have in common: their log, and how they end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, MutableMapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED = 128 + signal.SIGINT


class EventLog:
    """A line for each event on standard output: JSON, or `key=value` for people."""

    def __init__(self, *, as_json: bool) -> None:
        import structlog

        render = structlog.processors.JSONRenderer() if as_json else structlog.processors.LogfmtRenderer()
        self._log = structlog.wrap_logger(
            structlog.WriteLogger(sys.stdout),
            processors=[structlog.processors.TimeStamper("iso", utc=True, key="at"), _in_order, render],
        )
        self._as_json = as_json

    def write(self, event: str, **values: object) -> None:
        self._log.info(event, **{k: v for k, v in values.items() if v is not None})

    def listed(self, names: list[str]) -> list[str] | str:
        return names if self._as_json else ",".join(names) or "none yet"


def _in_order(logger: object, method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    return {"at": event.pop("at"), "event": event.pop("event"), **event}


def wait_for(stopping: threading.Event, *loops: Future[None]) -> None:
    """Until one of them ends, which asks the others to; then until all have."""
    try:
        while not any(loop.done() for loop in loops):
            time.sleep(0.1)
    finally:
        stopping.set()
    for loop in loops:
        loop.result()


@contextmanager
def stopped_by_signals(stopping: threading.Event, journal: EventLog) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        if stopping.is_set() and number == signal.SIGINT:
            # Asked twice. Nothing is lost: whoever comes next goes on where this ends.
            os._exit(INTERRUPTED)
        stopping.set()
        journal.write("stopping", signal=signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
