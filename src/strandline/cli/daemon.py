"""What long-running commands share: their log, and how they end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

    from strandline.core.errors import StrandlineError
    from strandline.lake import Lake

INTERRUPTED = 128 + signal.SIGINT


class EventLog:
    """Writes one line per event to standard output: JSON, or `key=value` for people."""

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

    def failed(self, event: str, error: StrandlineError) -> None:
        self.write(event, reason=error.message, hint=error.hint)

    def well(self) -> None:
        self.write("well_again")

    def listed(self, names: list[str]) -> list[str] | str:
        return names if self._as_json else ",".join(names) or "none yet"


def _in_order(logger: object, method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    return {"at": event.pop("at"), "event": event.pop("event"), **event}


def run_loops(lake: Lake, journal: EventLog, loops: Callable[[threading.Event], Iterable[Callable[[], None]]]) -> None:
    """Runs each loop in a thread until a signal comes or one of them ends; then asks the others to stop."""
    stopping = threading.Event()
    lake.on_start = lambda words: journal.write("starting", what=words)
    # Not in the main thread, where PySpark would replace our handler for Ctrl-C by its own.
    with _stopped_by_signals(stopping, journal), ThreadPoolExecutor(thread_name_prefix="strandline-loop") as pool:
        running = [pool.submit(loop) for loop in loops(stopping)]
        try:
            while not any(loop.done() for loop in running):
                time.sleep(0.1)
        finally:
            stopping.set()
        for loop in running:
            loop.result()
    journal.write("stopped")


@contextmanager
def _stopped_by_signals(stopping: threading.Event, journal: EventLog) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        if stopping.is_set() and number == signal.SIGINT:
            # Asked twice. Nothing is lost: the next process continues from here.
            os._exit(INTERRUPTED)
        stopping.set()
        journal.write("stopping", signal=signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
