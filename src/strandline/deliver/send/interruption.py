"""Lets requests to an unresponsive destination end when the deliverer stops.

The event belongs to the delivering thread. Executors have none: there Spark ends the task.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_of_thread = threading.local()


@contextmanager
def interrupted_by(stopping: threading.Event) -> Iterator[None]:
    before = stopping_event()
    _of_thread.stopping = stopping
    try:
        yield
    finally:
        _of_thread.stopping = before


def stopping_event() -> threading.Event | None:
    return getattr(_of_thread, "stopping", None)
