"""What a leader puts into the arbiter's record."""

from __future__ import annotations

from dataclasses import replace

from strandline.core.sites.arbiter import LeaderRecord, Member
from strandline.replicate.lead.lease_plan import Contradicts, LeadingSite, Replaced, renewed

SITE = LeadingSite("lake", 17, 1, "b", "https://b", 30.0)
OWN = LeaderRecord("lake", 17, 1, "b", "https://b", True, 1, frozenset({Member(2, "c")}), 30.0, beat=9)


def test_the_first_leader_makes_the_record() -> None:
    assert renewed(replace(SITE, term=1, number=0), None) == LeaderRecord(
        "lake", 1, 0, "b", "https://b", True, None, frozenset(), 30.0
    )


def test_a_renewal_keeps_the_members_and_says_where_the_site_is_now() -> None:
    found = renewed(replace(SITE, address="https://new"), OWN)
    assert found == replace(OWN, address="https://new")
    assert renewed(SITE, replace(OWN, leads=False)) == OWN  # it leads: its own ledger says so


def test_members_are_changed_only_in_a_record_of_the_own_term() -> None:
    add = lambda members: members | {Member(3, "d")}  # noqa: E731
    assert renewed(SITE, OWN, add) == replace(OWN, members=OWN.members | {Member(3, "d")})
    assert isinstance(renewed(SITE, replace(OWN, term=18, site=2), add), Replaced)


def test_the_longest_lease_counts_within_a_term() -> None:
    assert renewed(replace(SITE, lease_seconds=10.0), OWN) == OWN
    assert renewed(replace(SITE, lease_seconds=60.0), OWN) == replace(OWN, lease_seconds=60.0)


def test_a_higher_term_replaces_the_site_whether_it_leads_yet_or_not() -> None:
    for leads in (True, False):
        other = replace(OWN, term=18, site=2, leads=leads)
        assert renewed(SITE, other) == Replaced(other)


def test_a_site_that_was_promoted_without_the_arbiter_takes_the_record_and_forgets_its_members() -> None:
    before = replace(OWN, term=1, site=0, members=frozenset({Member(1, "b")}))
    assert renewed(SITE, before) == replace(OWN, before=1, members=frozenset(), beat=0)


def test_two_sites_with_one_term_are_noticed() -> None:
    assert renewed(SITE, replace(OWN, site=2)) == Contradicts(replace(OWN, site=2))
