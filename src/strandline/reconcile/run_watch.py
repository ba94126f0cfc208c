"""Follows a run: its time, its lease, its cancellation, and how it ends early."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from strandline.core.calling_off import called_off_by
from strandline.core.errors import SweepRunning
from strandline.core.records.reconcile_records import AbortReason
from strandline.core.types import Lease
from strandline.jobs.heartbeat import Heartbeat, holding_lease
from strandline.ledger.engine import Connection, Ledger
from strandline.ledger.reconcile import reconcile_runs
from strandline.reconcile.model import Phase
from strandline.reconcile.run_listener import RunListener

if TYPE_CHECKING:
    from strandline.reconcile.context import SweepContext

CANCELLED = "it was cancelled"
PROGRESS_SECONDS = 0.2  # between two reports


class Aborted(Exception):
    """Ends a run. What it did until now is recorded."""

    def __init__(self, reason: AbortReason, why: str) -> None:
        super().__init__(why)
        self.reason = reason
        self.why = why


@contextmanager
def under_lease(
    context: SweepContext,
    *,
    run_seconds_max: float,
    cancelled: threading.Event | None = None,
    listener: RunListener | None = None,
) -> Iterator[RunWatch]:
    """Takes the reconciler's lease, renews it, and releases it. Raises SweepRunning while another run has it."""
    seconds = context.settings.lease_seconds
    lease = reconcile_runs.take_lease(context.ledger, seconds=seconds)
    if lease is None:
        raise SweepRunning(
            "another run of the reconciler is under way",
            hint=f"Wait for it, or, if its process is dead, for {seconds} s. `strandline reconcile runs` shows it.",
        )
    called_off = threading.Event()

    def notice() -> None:
        if context.ledger.query(reconcile_runs.is_called_off):
            called_off.set()

    cancelled = cancelled or threading.Event()
    with (
        holding_lease(context.ledger, reconcile_runs.leases, lease, seconds=seconds, on_renewed=notice) as heartbeat,
        called_off_by(cancelled, called_off),
    ):
        yield RunWatch(
            context.ledger,
            lease,
            heartbeat,
            run_seconds_max=run_seconds_max,
            cancelled=cancelled,
            called_off=called_off,
            listener=RunListener() if listener is None else listener,
        )


@dataclass
class RunWatch:
    _ledger: Ledger
    _lease: Lease
    _heartbeat: Heartbeat
    _: KW_ONLY
    run_seconds_max: float
    cancelled: threading.Event = field(default_factory=threading.Event)  # the caller that started the run sets it
    called_off: threading.Event = field(default_factory=threading.Event)  # the ledger says so, for this run alone
    listener: RunListener = field(default_factory=RunListener)
    seconds: dict[str, float] = field(default_factory=dict)  # spent in each phase
    _began: float = field(default_factory=time.monotonic)
    _since: float = field(default_factory=time.monotonic)
    _phase: Phase | None = None
    _count: int = 0
    _total: int | None = None
    _reported_at: float = 0.0

    def phase(self, phase: Phase, total: int | None = None) -> None:
        self.end_phase()
        self._phase, self._count, self._total, self._reported_at = phase, 0, total, time.monotonic()
        self.progress(0)

    def end_phase(self) -> None:
        now = time.monotonic()
        if self._phase is not None:
            name = self._phase.value
            self.seconds[name] = round(self.seconds.get(name, 0.0) + now - self._since, 3)
        self._since, self._phase = now, None

    def progress(self, count: int) -> None:
        if self._phase is not None:
            self.listener.progressed(self._phase, count, self._total)

    def advance(self, more: int) -> None:
        self._count += more
        now = time.monotonic()
        if now >= self._reported_at + PROGRESS_SECONDS:
            self._reported_at = now
            self.progress(self._count)

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._began + self.run_seconds_max - time.monotonic())

    def check(self) -> None:
        if self.cancelled.is_set() or self.called_off.is_set():
            raise Aborted(AbortReason.CANCELLED, CANCELLED)
        if self._heartbeat.is_lost:
            raise Aborted(AbortReason.LEASE_LOST, "another run has taken over")
        if self.seconds_left == 0:
            raise Aborted(AbortReason.TIMEOUT, "it took longer than reconcile.run_seconds_max")

    def fence(self, connection: Connection) -> None:
        """Call in the transaction that records what is about to happen: nobody takes the lease over before it ends."""
        self.check()
        self.hold(connection)
        if reconcile_runs.is_called_off(connection):
            self.called_off.set()
            self.check()

    def hold(self, connection: Connection) -> None:
        """Checks the lease alone. A cancelled run may still record what became of the run before it."""
        if not self._heartbeat.confirm(lambda: reconcile_runs.leases.holds(connection, self._lease)):
            raise Aborted(AbortReason.LEASE_LOST, "another run has taken over")

    def last_word(self) -> None:
        """Call right before an action that cannot be fenced. A process that slept since it last saw its lease must not
        continue: it cannot know for how long it slept."""
        self.check()
        if self._heartbeat.is_fresh:
            return
        self._ledger.change(self.fence)
