"""What a follower notes of its passes: what is worth a write, and what is read of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from strandline.core import failpoints
from strandline.core.errors import CalledOff, FailedError, StorageError
from strandline.ledger.replicate import following, leader_contact
from strandline.ledger.replicate.following_report import FollowedShard, read_followed
from strandline.ledger.replicate.leader_contact import (
    NOTED_EVERY,
    FollowFailure,
    FollowStep,
    LeaderContact,
    after_pass,
    is_worth_noting,
)
from strandline.replicate.follow.note_passes import PassNotes
from tests.ledger.conftest import LakeState
from tests.ledger.test_following import apply, follower, offer, purge, record, segment, sharded

__all__ = ["follower"]

NOW = datetime(2031, 4, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(minutes=3)
AWAY = StorageError("the leader does not answer", hint="Check its address.")


def noted(lake: LakeState) -> LeaderContact:
    return lake.ledger.query(leader_contact.get)


def test_a_failure_keeps_its_beginning_while_the_same_step_fails_and_ends_with_a_good_pass() -> None:
    first = after_pass(LeaderContact(NOW), NOW, answered=False, step=FollowStep.ASK, error=AWAY)
    assert first == LeaderContact(NOW, FollowFailure(NOW, FollowStep.ASK, AWAY.message, AWAY.hint))
    again = after_pass(first, LATER, answered=False, step=FollowStep.ASK, error=FailedError("otherwise"))
    assert again.failure == FollowFailure(NOW, FollowStep.ASK, "otherwise", None) and again.answered_at == NOW
    other = after_pass(again, LATER, answered=True, step=FollowStep.APPLY, error=AWAY)
    assert other.failure is not None and (other.failure.since, other.answered_at) == (LATER, LATER)
    assert after_pass(other, LATER, answered=True, step=FollowStep.TELL, error=None) == LeaderContact(LATER)


def test_an_idle_follower_writes_now_and_then_and_a_change_at_once() -> None:
    well = LeaderContact(NOW)
    failing = LeaderContact(NOW, FollowFailure(NOW, FollowStep.ASK, "no", None))
    soon = NOW + NOTED_EVERY - timedelta(seconds=1)
    assert is_worth_noting(LeaderContact(), well)
    assert not is_worth_noting(LeaderContact(), LeaderContact())
    assert not is_worth_noting(well, LeaderContact(soon))
    assert is_worth_noting(well, LeaderContact(NOW + NOTED_EVERY))
    assert is_worth_noting(well, failing) and is_worth_noting(failing, LeaderContact(soon))
    assert not is_worth_noting(failing, failing)
    assert is_worth_noting(failing, replace(failing, failure=FollowFailure(NOW, FollowStep.ASK, "else", None)))


def test_what_is_noted_is_read_by_another_process_and_forgotten_with_another_leader(lake: LakeState) -> None:
    assert noted(lake) == LeaderContact()
    notes = PassNotes(lake.ledger)
    with pytest.raises(StorageError), notes.one_pass():
        raise AWAY
    found = noted(lake)
    assert found.answered_at is None and found.failure is not None
    assert (found.failure.step, found.failure.error, found.failure.hint) == (FollowStep.ASK, AWAY.message, AWAY.hint)
    since = found.failure.since
    with pytest.raises(StorageError), PassNotes(lake.ledger).one_pass():  # as after a restart
        raise AWAY
    again = noted(lake).failure
    assert again is not None and again.since == since
    lake.ledger.change(leader_contact.forget)
    assert noted(lake) == LeaderContact()


def test_a_pass_that_cannot_apply_something_says_that_the_leader_answered(lake: LakeState) -> None:
    with PassNotes(lake.ledger).one_pass() as notes:
        notes.answered()
        notes.failed(FailedError("no space", hint="Make room."))
        notes.failed(FailedError("another"))
        notes.begins(FollowStep.TELL)
    found = noted(lake)
    assert found.answered_at is not None and found.failure is not None
    assert (found.failure.step, found.failure.error, found.failure.hint) == (
        FollowStep.APPLY, "no space", "Make room.",
    )  # fmt: skip


def test_what_failed_before_counts_until_a_pass_has_ended_well(lake: LakeState) -> None:
    notes = PassNotes(lake.ledger)
    with notes.one_pass():
        notes.answered()
        notes.failed(FailedError("no space"))
    with notes.one_pass():
        notes.answered()
        assert noted(lake).failure is not None
    assert noted(lake).failure is None


@pytest.mark.parametrize("error", [CalledOff("stopped"), failpoints.FailpointError("here")])
def test_a_pass_that_was_called_off_or_killed_notes_no_failure(lake: LakeState, error: Exception) -> None:
    with pytest.raises(type(error)), PassNotes(lake.ledger).one_pass() as notes:
        notes.answered()
        raise error
    assert noted(lake).failure is None


def shards(lake: LakeState, dataset: str) -> list[FollowedShard]:
    with lake.ledger.read_consistent() as connection:
        return [s for s in read_followed(connection) if s.of.dataset.name == dataset]


def test_each_shard_has_its_mark_and_what_is_open_in_it(follower: LakeState) -> None:
    of = sharded(follower)
    one, two = of.first_shard, of.first_shard + 1
    record(
        follower,
        offer(of, 0, 60, segment(1, 10, one), segment(11, 20, two), segment(21, 40, one), segment(41, 50, two)),
    )
    for lo in (11, 21):
        apply(follower, lo)
    [first, second] = shards(follower, of.name)
    assert (first.shard, first.mark, first.open_items, first.open_rows) == (one, 0, 1, 10)
    assert (second.shard, second.mark, second.open_items, second.open_rows) == (two, 20, 1, 10)
    assert first.oldest is not None and first.seal is None and first.of.bound == 60
    apply(follower, 1)
    [first, second] = shards(follower, of.name)
    assert (first.mark, first.open_items, first.open_rows, first.oldest) == (40, 0, 0, None)
    assert first.seal == 40
    with follower.ledger.read() as connection:
        assert {s.shard: s.mark for s in (first, second)} == following.applied_upto(connection, [of])


def test_a_purge_is_open_in_every_shard_and_an_uncounted_segment_makes_the_rows_unknown(follower: LakeState) -> None:
    of = sharded(follower)
    record(follower, offer(of, 0, 30, segment(1, 10, of.first_shard, rows=None), purge(30, 1, 10)))
    [first, second] = shards(follower, of.name)
    assert (first.open_items, first.open_rows) == (2, None)
    assert (second.open_items, second.open_rows, second.mark) == (1, 0, 0)
    with follower.ledger.read() as connection:
        assert {s.shard: s.mark for s in (first, second)} == following.applied_upto(connection, [of])


def test_a_leader_follows_nothing(lake: LakeState) -> None:
    with lake.ledger.read_consistent() as connection:
        assert read_followed(connection) == []
