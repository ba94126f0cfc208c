"""Records in the follower's ledger, for `status`, when the leader last answered and what failed in a pass."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from strandline.core import failpoints
from strandline.core.errors import CalledOff, StrandlineError, as_strandline_error
from strandline.ledger.engine import Ledger, utc_now
from strandline.ledger.replicate import leader_contact
from strandline.ledger.replicate.leader_contact import FollowStep, LeaderContact, after_pass

log = logging.getLogger(__name__)


class PassNotes:
    """The notes of one follower. A note that cannot be stored does not stop it from following."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: LeaderContact | None = None
        self._step = FollowStep.ASK
        self._answered = False
        self._failed: StrandlineError | None = None

    @contextmanager
    def one_pass(self) -> Iterator[PassNotes]:
        self._step, self._answered, self._failed = FollowStep.ASK, False, None
        try:
            yield self
        except (failpoints.FailpointError, CalledOff):
            raise
        except Exception as e:
            self._note(as_strandline_error(e))
            raise
        if self._answered:
            self._note(self._failed)

    def begins(self, step: FollowStep) -> None:
        self._step = step

    def answered(self) -> None:
        """Notes that the leader has answered. The failure of the pass before stays until this pass ends."""
        self._answered = True
        self._store(lambda known, now: replace(known, answered_at=now))

    def failed(self, error: StrandlineError) -> None:
        """Notes that something could not be applied, while the pass continues with the rest."""
        self._failed = self._failed or error

    def _note(self, error: StrandlineError | None) -> None:
        step = FollowStep.APPLY if error is not None and error is self._failed else self._step
        self._store(lambda known, now: after_pass(known, now, answered=self._answered, step=step, error=error))

    def _store(self, change: Callable[[LeaderContact, datetime], LeaderContact]) -> None:
        try:
            if self._known is None:
                self._known = self._ledger.query(leader_contact.get)
            self._known = leader_contact.note(self._ledger, self._known, change(self._known, utc_now()))
        except StrandlineError as e:
            log.warning("the outcome of a pass could not be recorded: %s", e.message)
