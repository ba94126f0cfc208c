"""The outcome of a follower's last passes: when its leader last answered, and what fails. One row."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import sqlalchemy as sa

from strandline.core.errors import StrandlineError
from strandline.ledger.engine import Ledger, upsert
from strandline.ledger.schema.replicate import leader_contact

NOTED_EVERY = timedelta(seconds=10)  # how often an idle follower writes that its leader answers


class FollowStep(StrEnum):
    ASK = "ask"  # the leader does not answer, or refuses to
    APPLY = "apply"  # what it offered could not be recorded or applied
    TELL = "tell"  # the leader does not accept the progress report


@dataclass(frozen=True, slots=True)
class FollowFailure:
    since: datetime
    step: FollowStep
    error: str
    hint: str | None


@dataclass(frozen=True, slots=True)
class LeaderContact:
    answered_at: datetime | None = None  # within `NOTED_EVERY`; None: never
    failure: FollowFailure | None = None  # of the last pass


def after_pass(
    before: LeaderContact, now: datetime, *, answered: bool, step: FollowStep, error: StrandlineError | None
) -> LeaderContact:
    """`step` is where the error occurred. A failure keeps its beginning while passes fail at the same step."""
    answered_at = now if answered else before.answered_at
    if error is None:
        return LeaderContact(answered_at)
    last = before.failure
    since = last.since if last is not None and last.step is step else now
    return LeaderContact(answered_at, FollowFailure(since, step, error.message, error.hint))


def is_worth_noting(before: LeaderContact, after: LeaderContact) -> bool:
    """A healthy follower writes every `NOTED_EVERY`, a failing one when something else fails."""
    if before.failure != after.failure or before.answered_at is None:
        return before != after
    return after.answered_at is not None and after.answered_at - before.answered_at >= NOTED_EVERY


def get(connection: sa.Connection) -> LeaderContact:
    row = connection.execute(sa.select(leader_contact)).one_or_none()
    if row is None:
        return LeaderContact()
    if row.failing_since is None:
        return LeaderContact(row.answered_at)
    return LeaderContact(
        row.answered_at, FollowFailure(row.failing_since, FollowStep(row.failed_step), row.error, row.hint)
    )


def note(ledger: Ledger, before: LeaderContact, after: LeaderContact) -> LeaderContact:
    """Stores the outcome if it is worth noting, and returns what is stored. If several processes follow for one site,
    the last write counts."""
    if not is_worth_noting(before, after):
        return before
    with ledger.write() as connection:
        _store(connection, after)
    return after


def _store(connection: sa.Connection, contact: LeaderContact) -> None:
    failed = contact.failure
    upsert(
        connection,
        leader_contact,
        {"id": 1},
        answered_at=contact.answered_at,
        failing_since=None if failed is None else failed.since,
        failed_step=None if failed is None else failed.step.value,
        error=None if failed is None else failed.error,
        hint=None if failed is None else failed.hint,
    )


def forget(connection: sa.Connection) -> None:
    """Clears the stored outcome, for a site that gets another leader."""
    _store(connection, LeaderContact())
