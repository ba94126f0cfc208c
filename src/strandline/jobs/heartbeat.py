"""Heartbeats: a lease is renewed while its holder works. A holder that stops renewing is taken for dead."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic

from strandline.core.errors import StrandlineError
from strandline.core.types import Lease
from strandline.ledger.engine import Ledger
from strandline.ledger.leases import LeaseColumns


class Heartbeat:
    """What a holder knows of its lease. For several threads."""

    def __init__(self, renew: Callable[[], bool], *, lease_seconds: float) -> None:
        self._renew = renew
        self._lease_seconds = lease_seconds
        self._confirmed_at = monotonic()
        self.is_lost = False
        """Another holder was seen."""

    def beat(self) -> bool:
        """Renew the lease now: whether it is still ours."""
        return self.confirm(self._renew)

    def confirm(self, is_ours: Callable[[], bool]) -> bool:
        asked_at = monotonic()
        if not is_ours():
            self.is_lost = True
            return False
        self._confirmed_at = max(self._confirmed_at, asked_at)
        return True

    @property
    def is_fresh(self) -> bool:
        """Whether the lease was ours so short a time ago that nobody can have taken it over. A process that slept
        since then finds that it is not."""
        return monotonic() - self._confirmed_at < self._lease_seconds / 2


@contextmanager
def beating(renew: Callable[[], bool], *, lease_seconds: float) -> Iterator[Heartbeat]:
    """Renew at a third of the lease, in a thread. A stopped process renews nothing, and is fenced. `renew` says whether
    there is still something to renew; if not, the compare-and-set that ends the work will tell."""
    heartbeat, done = Heartbeat(renew, lease_seconds=lease_seconds), threading.Event()

    def beat() -> None:
        while not done.wait(lease_seconds / 3):
            try:
                if not heartbeat.beat():
                    return
            except StrandlineError:
                continue  # the ledger is busy or away; the lease may yet run out, which is safe

    thread = threading.Thread(target=beat, name="strandline-lease", daemon=True)
    thread.start()
    try:
        yield heartbeat
    finally:
        done.set()
        thread.join()


@contextmanager
def holding_lease(ledger: Ledger, leases: LeaseColumns, lease: Lease, *, seconds: float) -> Iterator[Heartbeat]:
    """Renew the lease until the block ends, then release it."""
    try:
        with beating(lambda: leases.renew(ledger, lease, seconds=seconds), lease_seconds=seconds) as heartbeat:
            yield heartbeat
    finally:
        with suppress(StrandlineError):  # it runs out by itself; what was done under it is done
            leases.release(ledger, lease)
