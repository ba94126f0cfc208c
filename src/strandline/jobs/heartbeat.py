"""A sign of life while someone works: whoever stops giving it is taken for dead."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from strandline.core.errors import StrandlineError


@contextmanager
def beating(renew: Callable[[], bool], *, lease_seconds: float) -> Iterator[None]:
    """Renew at a third of the lease. A stopped process renews nothing, and is fenced. `renew` says whether there is
    still something to renew; if not, the compare-and-set that ends the work will tell."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(lease_seconds / 3):
            try:
                if not renew():
                    return
            except StrandlineError:
                continue  # the ledger is busy or away; the lease may yet run out, which is safe

    thread = threading.Thread(target=beat, name="strandline-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
