"""Checks before a request that the site may accept rows, that the ledger is not behind the witness, and that it knows
all bodies in the spool.

A ledger that was restored from an older copy does not know which bodies the table has. Until a resync (by an intake, or
by `strandline ledger resync`), a receiver accepts nothing, and answers no questions. After a resync, and when a
receiver starts, unknown bodies in the spool are recorded first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from time import monotonic

from strandline.core.errors import LeaseOver, ResyncNeeded
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import sequence
from strandline.ledger.replicate import sites
from strandline.ledger.witness import Witness
from strandline.receive.record_found import FoundBodies
from strandline.receive.sqlite_lock import LedgerAccess

CHECK_AGAIN_SECONDS = 1.0
_ADOPT_AGAIN_SECONDS = 600.0
_YOUNG_SECONDS = 3_600  # a younger file may be about to be recorded; recording it here is harmless, but useless


class LedgerWatch:
    """Thread-safe."""

    def __init__(
        self,
        ledger: LedgerAccess,
        witness: Witness,
        adoption: FoundBodies,
        on_behind: Callable[[], None] = lambda: None,
    ) -> None:
        self._ledger = ledger
        self._witness = witness
        self._adoption = adoption
        self._on_behind = on_behind
        self._lock = threading.Lock()
        self._checked_at: float | None = None
        self._adopted_at: float | None = None
        self._lease_asked_at = float("-inf")
        self._unclaimed = 0

    def check(self) -> None:
        """Raises `NotLeader` at a site that does not lead, `LeaseOver` while it cannot show that it does, and
        `ResyncNeeded` if the ledger is behind the witness. A success is cached for `CHECK_AGAIN_SECONDS`."""
        if self._is_fresh():
            return
        with self._lock:
            if self._is_fresh():
                return
            with self._ledger.read() as connection:
                sites.check_leads(connection)
            self._check_lease()
            self._compare()
            if self._adopted_at is None:
                self._adopt(everything=True)
            elif monotonic() - self._adopted_at > _ADOPT_AGAIN_SECONDS:
                self._adopt(everything=False)
            self._checked_at = monotonic()

    def claimed(self) -> None:
        """Must be called when a sender has claimed its lanes: bodies of it in the spool may wait for that."""
        with self._lock:
            if self._unclaimed:
                self._adopt(everything=True)

    def _is_fresh(self) -> bool:
        return self._checked_at is not None and monotonic() - self._checked_at < CHECK_AGAIN_SECONDS

    def _check_lease(self) -> None:
        """Another loop of this process usually renews the lease. Renews it here only if it is over, and not for each
        request: a call to an arbiter that does not answer takes long."""
        right = self._ledger.ledger.write_right
        try:
            right.check()
        except LeaseOver:
            if monotonic() - self._lease_asked_at < CHECK_AGAIN_SECONDS:
                raise
            try:
                right.obtain()
            finally:
                self._lease_asked_at = monotonic()
            right.check()

    def _compare(self) -> None:
        try:
            # in a write transaction, so that no sequence numbers are reserved between the two reads
            with self._ledger.write() as connection:
                sequence.check(connection, self._witness)
        except ResyncNeeded:
            self._checked_at = self._adopted_at = None
            self._on_behind()
            raise

    def _adopt(self, *, everything: bool) -> None:
        older_than = None if everything else utc_now() - timedelta(seconds=_YOUNG_SECONDS)
        done = self._adoption.run(older_than=older_than)
        self._adopted_at = monotonic()
        if everything:  # otherwise the young files were skipped
            self._unclaimed = done.unclaimed
