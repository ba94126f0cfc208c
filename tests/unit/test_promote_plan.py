"""What a promotion does next: each rule of docs/adr/0071 that it keeps, without an arbiter and without a ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.sites.arbiter import LeaderRecord, Member
from strandline.replicate.take_over.promote_plan import (
    Begin,
    Candidate,
    ClaimTerm,
    End,
    Lead,
    Put,
    Refuse,
    Wait,
    next_step,
    next_step_alone,
)

DRIFT = 0.5
RECORD = LeaderRecord("lake", 1, 0, "a", "https://a", True, None, frozenset({Member(1, "b"), Member(2, "c")}), 10.0)
SITE = Candidate(2, "c", "https://c", 1, None, None, {"d": 1, "e": 1}, (), "c")
BEGUN = replace(SITE, promoting=1)
CLAIM = replace(RECORD, term=2, site=2, name="c", address="https://c", leads=False, before=1)


def test_it_begins_with_the_term_that_the_person_saw() -> None:
    assert next_step(SITE, RECORD, 0, DRIFT) == Begin(1)


@pytest.mark.parametrize(("stood", "left"), [(0, 15), (10, 5), (14.5, 0.5)])
def test_it_waits_for_a_lease_and_the_difference_of_clocks(stood: float, left: float) -> None:
    assert next_step(BEGUN, RECORD, stood, DRIFT) == Wait(left)


def test_then_it_takes_a_term_of_its_own_and_does_not_lead_yet() -> None:
    assert next_step(BEGUN, RECORD, 15, DRIFT) == Put(CLAIM)


def test_with_the_term_it_stops_following_then_leads_in_the_record_then_leads() -> None:
    assert next_step(BEGUN, CLAIM, 0, DRIFT) == ClaimTerm(2)
    claimed = replace(BEGUN, claimed=2)
    assert next_step(claimed, CLAIM, 0, DRIFT) == Put(replace(CLAIM, leads=True, members=frozenset()))
    assert next_step(claimed, replace(CLAIM, leads=True), 0, DRIFT) == Lead(2)


def test_another_site_that_was_faster_ends_it_and_is_named() -> None:
    other = replace(RECORD, term=17, site=1, name="b", address="https://b", leads=False, before=1)
    for site in (BEGUN, replace(BEGUN, claimed=2)):
        step = next_step(site, other, 100, DRIFT)
        assert isinstance(step, End) and "site b takes over in term 17" in step.message and "https://b" in step.hint
        step = next_step(site, replace(other, leads=True), 100, DRIFT)
        assert isinstance(step, End) and "site b leads in term 17" in step.message


def test_a_claim_is_known_by_more_than_the_number() -> None:
    """A leader whose ledger was restored may have given two sites the same one."""
    mine, its = replace(BEGUN, claim="mine"), replace(CLAIM, claim="its")
    assert isinstance(next_step(mine, its, 100, DRIFT), End)
    assert isinstance(next_step(replace(mine, claimed=2), replace(its, leads=True), 100, DRIFT), End)
    taken = next_step(mine, RECORD, 15, DRIFT)
    assert taken == Put(replace(CLAIM, claim="mine")) and isinstance(taken, Put)
    assert next_step(mine, taken.record, 0, DRIFT) == ClaimTerm(2)


def test_a_claim_that_never_led_can_be_replaced_by_who_has_the_cut_of_the_leader_before() -> None:
    dead = replace(RECORD, term=17, site=1, name="b", leads=False, before=1)
    assert next_step(SITE, dead, 0, DRIFT) == Begin(17)
    step = next_step(replace(SITE, promoting=17), dead, 100, DRIFT)
    assert isinstance(step, Put) and (step.record.term, step.record.before, step.record.leads) == (18, 1, False)


def test_a_leader_is_replaced_only_by_who_has_recorded_its_cut() -> None:
    leader = replace(RECORD, term=17, site=1, name="b", leads=True, before=1)
    step = next_step(SITE, leader, 100, DRIFT)
    assert isinstance(step, Refuse) and "term 17 for d, e" in step.message
    partly = next_step(replace(SITE, terms={"d": 17, "e": 1}), leader, 100, DRIFT)
    assert isinstance(partly, Refuse) and "for e" in partly.message
    assert next_step(replace(SITE, term=17, terms={"d": 17, "e": 17}), leader, 100, DRIFT) == Begin(17)


def test_a_site_without_datasets_is_judged_by_its_own_term() -> None:
    assert next_step(replace(SITE, terms={}), RECORD, 0, DRIFT) == Begin(1)
    assert isinstance(next_step(replace(SITE, terms={}), replace(RECORD, term=17, site=1), 0, DRIFT), Refuse)


@pytest.mark.parametrize(
    ("site", "record", "words"),
    [
        (replace(SITE, number=None), RECORD, "no number"),
        (SITE, None, "no leader has ever"),
        (SITE, replace(RECORD, members=frozenset({Member(1, "c")})), "not a member"),
        (replace(SITE, instance="made again"), RECORD, "made again"),
        (replace(SITE, behind=("d",)), RECORD, "behind for d"),
    ],
)
def test_who_may_not_be_promoted_is_told_why(site: Candidate, record: LeaderRecord | None, words: str) -> None:
    step = next_step(site, record, 100, DRIFT)
    assert isinstance(step, Refuse) and words in step.message and step.hint


def test_by_force_a_site_that_is_no_member_or_lacks_the_last_cut_is_promoted_all_the_same() -> None:
    forced, later = replace(SITE, by_force=True), replace(RECORD, term=17, site=1, members=frozenset(), before=1)
    for site in (forced, replace(forced, instance="made again"), replace(forced, terms={"d": 1, "e": 17})):
        assert next_step(site, later, 0, DRIFT) == Begin(17)
        begun = replace(site, promoting=17)
        assert next_step(begun, later, 0, DRIFT) == Wait(15), "a leader that renews its lease is alive"
        step = next_step(begun, later, 15, DRIFT)
        assert isinstance(step, Put) and (step.record.term, step.record.leads) == (18, False)
    assert next_step_alone(replace(forced, terms={"d": 17}), leader_is_stopped=True) == Begin(1)


def test_also_by_force_nobody_is_promoted_whose_ledger_is_behind_or_who_has_no_number() -> None:
    for site in (replace(SITE, behind=("d",), by_force=True), replace(SITE, number=None, by_force=True)):
        assert isinstance(next_step(site, RECORD, 0, DRIFT), Refuse)
        assert isinstance(next_step_alone(site, leader_is_stopped=True), Refuse)
    assert isinstance(next_step(replace(SITE, by_force=True), None, 0, DRIFT), Refuse)


def test_without_an_arbiter_a_person_says_that_the_leader_is_stopped() -> None:
    assert isinstance(next_step_alone(SITE, leader_is_stopped=False), Refuse)
    assert next_step_alone(SITE, leader_is_stopped=True) == Begin(1)
    assert next_step_alone(BEGUN, leader_is_stopped=True) == ClaimTerm(2)
    assert next_step_alone(replace(BEGUN, claimed=2), leader_is_stopped=True) == Lead(2)
    for begun in (BEGUN, replace(BEGUN, claimed=2)):  # the leader may have been started again since it was said
        assert isinstance(next_step_alone(begun, leader_is_stopped=False), Refuse)
    assert isinstance(next_step_alone(replace(SITE, behind=("d",)), leader_is_stopped=True), Refuse)
    assert isinstance(next_step_alone(replace(SITE, terms={"d": 17}), leader_is_stopped=True), Refuse)
    assert isinstance(next_step_alone(replace(SITE, number=None), leader_is_stopped=True), Refuse)


@pytest.mark.parametrize("claimed", [None, 2])
@pytest.mark.parametrize("leader_is_stopped", [False, True])
def test_what_began_with_an_arbiter_goes_on_only_with_one(claimed: int | None, leader_is_stopped: bool) -> None:
    """Another member may replace the claim in the record, and nobody would hear of it here."""
    begun = replace(BEGUN, claimed=claimed, with_arbiter=True)
    step = next_step_alone(begun, leader_is_stopped=leader_is_stopped)
    assert isinstance(step, Refuse) and step.keeps_promotion and "replication.arbiter" in step.hint
    assert next_step(begun, RECORD, 15, DRIFT) == Put(CLAIM)
    assert next_step_alone(replace(SITE, with_arbiter=True), leader_is_stopped=True) == Begin(1)


@pytest.mark.parametrize("promoting", [None, 1])
def test_a_record_that_is_older_than_the_site_names_no_members_that_count(promoting: int | None) -> None:
    """The arbiter was restored from an older copy. The leader of term 17 had named nobody when sinks got its rows."""
    site = replace(SITE, term=17, terms={"d": 17, "e": 17}, heard=17, promoting=promoting)
    step = next_step(site, RECORD, 100, DRIFT)
    assert isinstance(step, Refuse) and "older than this site" in step.message and "--force" in step.hint
    forced = next_step(replace(site, by_force=True, promoting=1), RECORD, 100, DRIFT)
    assert isinstance(forced, Put) and forced.record.term == 18


@given(
    st.integers(0, 15), st.integers(0, 15), st.integers(1, 60), st.booleans(), st.floats(0, 100), st.integers(1, 60),
    st.sampled_from([None, 1, 17, 33]),
)  # fmt: skip
def test_nobody_takes_a_term_before_the_lease_is_over_or_in_place_of_another_than_was_seen(
    number: int, holder: int, term: int, leads: bool, stood: float, own: int, promoting: int | None
) -> None:
    record = replace(
        RECORD, term=term, site=holder, leads=leads, before=1, members=frozenset(Member(n, "c") for n in range(16))
    )
    site = replace(SITE, number=number, term=own, promoting=promoting, terms={"d": own})
    step = next_step(site, record, stood, DRIFT)
    if isinstance(step, Put) and not step.record.leads:
        assert stood >= 15 and promoting == term and own == (term if leads else 1)
        assert step.record.term > term and step.record.term % 16 == number
    if isinstance(step, Lead):
        assert record.site == number and record.leads


def test_a_term_that_the_site_has_heard_of_is_never_passed_below() -> None:
    """It was pointed to the leader of term 17, or replaced by it, and has recorded nothing of it."""
    heard = replace(SITE, heard=17)
    step = next_step_alone(heard, leader_is_stopped=True)
    assert isinstance(step, Refuse) and "term 17 for d, e" in step.message and "--force" in step.hint
    forced = replace(heard, by_force=True)
    assert next_step_alone(forced, leader_is_stopped=True) == Begin(17)
    assert next_step_alone(replace(forced, promoting=17), leader_is_stopped=True) == ClaimTerm(18)
    taken = next_step(replace(forced, promoting=1), replace(RECORD, members=frozenset()), 100, DRIFT)
    assert isinstance(taken, Put) and taken.record.term == 18
    followed = replace(heard, term=17, terms={"d": 17, "e": 17})
    assert next_step_alone(followed, leader_is_stopped=True) == Begin(17), "it has recorded the cut since"
