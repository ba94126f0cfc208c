"""Heartbeats: a lease is renewed while its holder works. A holder that stops renewing counts as dead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic

from strandline.core.errors import StrandlineError
from strandline.core.polling import polled
from strandline.core.types import Lease
from strandline.ledger.engine import Ledger
from strandline.ledger.leases import LeaseColumns

BEATS_PER_LEASE = 3  # one may be lost, and another late


class Heartbeat:
    """What a holder knows of its lease. Thread-safe."""

    def __init__(self, renew: Callable[[], bool], *, lease_seconds: float) -> None:
        self._renew = renew
        self._lease_seconds = lease_seconds
        self._confirmed_at = monotonic()
        self.is_lost = False  # another holder was seen

    def beat(self) -> bool:
        """Renews the lease; returns whether it is still ours."""
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
        """Whether the lease was confirmed so recently that no other process can have taken it over. False after a
        sleep."""
        return monotonic() - self._confirmed_at < self._lease_seconds / 2


@contextmanager
def beating(renew: Callable[[], bool], *, lease_seconds: float) -> Iterator[Heartbeat]:
    """Renews several times per lease, in a thread. A stopped process renews nothing, and gets fenced. `renew` returns
    False if there is nothing left to renew; then the compare-and-set that ends the work fails."""
    heartbeat = Heartbeat(renew, lease_seconds=lease_seconds)

    def beat() -> None:
        with suppress(StrandlineError):  # the ledger is busy or away; if the lease runs out, that is safe
            if not heartbeat.is_lost:
                heartbeat.beat()

    with polled(beat, seconds=lease_seconds / BEATS_PER_LEASE, name="strandline-lease"):
        yield heartbeat


@contextmanager
def holding_lease(
    ledger: Ledger,
    leases: LeaseColumns,
    lease: Lease,
    *,
    seconds: float,
    on_renewed: Callable[[], None] = lambda: None,
) -> Iterator[Heartbeat]:
    """Renews the lease until the block ends, then releases it. `on_renewed` is called in the thread that renews it."""

    def renew() -> bool:
        if not leases.renew(ledger, lease, seconds=seconds):
            return False
        on_renewed()
        return True

    try:
        with beating(renew, lease_seconds=seconds) as heartbeat:
            yield heartbeat
    finally:
        with suppress(StrandlineError):  # it runs out by itself; the work is done
            leases.release(ledger, lease)
