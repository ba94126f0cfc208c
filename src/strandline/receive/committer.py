"""The commit point: one thread records the spooled bodies, all that wait in one transaction.

While one transaction is made durable, more bodies queue for the next: the higher the load, the less each body pays.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from strandline.core import failpoints
from strandline.core.errors import LeaseOver, NotLeader, StorageError, StrandlineError
from strandline.core.text.wording import plural
from strandline.ledger.receive import received
from strandline.ledger.receive.received import Decision, New, UnrecordedBody
from strandline.receive.spool import Spool
from strandline.receive.sqlite_lock import LedgerAccess

log = logging.getLogger(__name__)

GROUP_BODIES_MAX = 256


@dataclass(frozen=True, eq=False)
class _WaitingBody:
    body: UnrecordedBody
    decision: Future[Decision] = field(default_factory=Future)


class Committer:
    def __init__(self, ledger: LedgerAccess, spool: Spool) -> None:
        self._ledger = ledger
        self._spool = spool
        self._queue: queue.SimpleQueue[_WaitingBody | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="strandline-committer", daemon=True)
        self._thread.start()

    def submit(self, body: UnrecordedBody) -> Future[Decision]:
        """Queues the body. After an error the outcome is unknown: the client repeats its request, and the ledger
        decides."""
        waiting = _WaitingBody(body)
        waiting.decision.set_running_or_notify_cancel()  # a client that disconnects does not cancel it
        with self._closing:
            if self._closed:
                raise StorageError("the receiver is stopping")
            self._queue.put(waiting)
        return waiting.decision

    def close(self) -> None:
        """Records everything that was submitted before."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        ending = False
        while not ending:
            first = self._queue.get()
            group, ending = self._gathered(first)
            if group:
                self._commit(group)

    def _gathered(self, first: _WaitingBody | None) -> tuple[list[_WaitingBody], bool]:
        """All bodies that wait now, and whether they are the last."""
        group: list[_WaitingBody] = []
        at = first
        while at is not None:
            group.append(at)
            if len(group) == GROUP_BODIES_MAX:
                return group, False
            try:
                at = self._queue.get_nowait()
            except queue.Empty:
                return group, False
        return group, True

    def _commit(self, group: Sequence[_WaitingBody]) -> None:
        bodies = [waiting.body for waiting in group]
        try:
            self._spool.sync(body.spool for body in bodies if body.spool is not None)
            failpoints.hit("receive.before_commit")
            with self._ledger.alone() as ledger:
                decisions = received.record_each(ledger, bodies)
            failpoints.hit("receive.after_commit")
            if len(decisions) != len(bodies):
                raise StorageError(
                    f"{plural(len(bodies), 'body', 'was')} recorded with {plural(len(decisions), 'decision')}"
                )
        except BaseException as e:
            # The transaction may have landed, so the files stay.
            if not isinstance(e, StrandlineError):
                log.exception("bodies could not be recorded")
            for waiting in group:
                waiting.decision.set_exception(e)
            return
        self._remove_losers(bodies, decisions)
        for waiting, decision in zip(group, decisions, strict=True):
            if isinstance(decision, Exception):
                if not isinstance(decision, NotLeader | LeaseOver):  # not because of this body
                    log.error("a body of dataset %d cannot be recorded: %s", waiting.body.dataset, _reason(decision))
                waiting.decision.set_exception(decision)
            else:
                waiting.decision.set_result(decision)

    def _remove_losers(self, bodies: Sequence[UnrecordedBody], decisions: Sequence[Decision | Exception]) -> None:
        """Removes files of bodies that were not recorded: the ledger does not name them, and never will."""
        lost = [
            b.spool for b, d in zip(bodies, decisions, strict=True) if b.spool is not None and not isinstance(d, New)
        ]
        try:
            self._spool.remove(lost)
        except StorageError as e:
            log.warning("spool files of repeats are left behind: %s", e.message)


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, StrandlineError) else str(error).partition("\n")[0]
