"""Work that is repeated in a thread while a block runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def polled(work: Callable[[], object], *, seconds: float, name: str) -> Iterator[None]:
    """Calls `work` every so many seconds until the block ends, which waits for the call under way."""
    done = threading.Event()

    def poll() -> None:
        while not done.wait(seconds):
            work()

    thread = threading.Thread(target=poll, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
