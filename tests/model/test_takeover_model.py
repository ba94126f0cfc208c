"""A take-over loses and doubles nothing that was promised; and each rule of it is missed when it is taken away."""

from __future__ import annotations

import pytest

from tests.campaign import TORTURE
from tests.model.takeover_model import explored
from tests.model.takeover_state import Rules, World

ONE = World(writes=1, candidates=(1,))
TWO_ROWS = World(candidates=(1,))
TWICE = World(writes=1, promotes=2)
MEMBERS = World(writes=1, members=4, candidates=(2,))
LOST = World(writes=1, members=2, lost=1, candidates=(2,))
RESTORED = World(writes=1, promotes=2, restored=1)
NO_ARBITER = World(writes=0, promotes=2, arbiter=False)

LARGE = [RESTORED, World(promotes=2), World(members=4, candidates=(2,)), World(writes=1, promotes=2, members=2)]


@pytest.mark.parametrize("world", [ONE, TWO_ROWS, TWICE, MEMBERS, LOST, NO_ARBITER, *(LARGE if TORTURE else ())])
def test_a_promoted_site_has_what_sinks_hold_and_the_others_become_like_it(world: World) -> None:
    found = explored(world, Rules(), 20_000_000)
    assert found.why == "" and found.states > 50, found.broken


DIFFERS, SINK = "a follower differs from its leader", "a sink holds a row that the leader has not"
PASSES, STILL = "a write passes after another site leads", "a promotion stands still"


@pytest.mark.parametrize(
    ("world", "without", "why"),
    [
        (ONE, "promote_waits_for_the_lease", PASSES),
        (ONE, "the_commit_point_asks_for_the_lease", PASSES),
        (MEMBERS, "promote_is_for_members", SINK),
        (TWICE, "promote_replaces_the_term_that_was_asked", "a leader was replaced that nobody asked to replace"),
        (TWICE, "promote_needs_the_cut_of_the_last_leader", DIFFERS),
        (RESTORED, "an_older_record_names_no_members", PASSES),
        (TWICE, "it_leads_in_the_record_before_it_leads", DIFFERS),
        (TWICE, "a_claim_that_does_not_lead_can_be_replaced", "a claim that never led keeps everybody from leading"),
        (TWICE, "a_lost_claim_ends", STILL),
        (NO_ARBITER, "terms_belong_to_sites", "two sites lead in one term"),
        (ONE, "sinks_wait_for_members", SINK),
        (MEMBERS, "waited_for_before_member", SINK),
        (MEMBERS, "a_member_has_what_was_promised", SINK),
        (MEMBERS, "written_off_before_it_is_not_waited_for", SINK),
        (MEMBERS, "who_is_removed_is_no_candidate", SINK),
        (MEMBERS, "a_refused_put_is_computed_anew", SINK),
        (MEMBERS, "a_promise_reads_its_limit_itself", SINK),
        (LOST, "a_member_is_one_instance", SINK),
        (LOST, "a_site_made_again_tells_anew", SINK),
        (TWICE, "seals_count_in_their_own_term", SINK),
        (TWO_ROWS, "a_cut_keeps_what_lies_above_the_seal", DIFFERS),
        (TWO_ROWS, "recording_a_cut_settles_nothing", "a row came in below a mark"),
        (ONE, "a_cut_does_not_wait_for_what_it_cuts_out", "a follower stands still"),
        (TWO_ROWS, "a_cut_waits_for_lower_blocks", "a seal moved back"),
        (ONE, "a_cut_sets_rows_aside", "a row that was acknowledged is nowhere"),
        (ONE, "a_cut_ends_late_publishers", "a row came in below a mark"),
        (TWICE, "a_promotion_carries_out_recorded_cuts", DIFFERS),
        (TWICE, "followers_pass_cuts_on", DIFFERS),
        (TWICE, "a_promotion_needs_no_leader_for_that", STILL),
        *([(LARGE[1], "a_promotion_settles_cuts_in_its_transaction", "a seal moved back")] if TORTURE else []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_without_this_rule_a_take_over_loses_or_blocks(world: World, without: str, why: str) -> None:
    found = explored(world, Rules(**dict.fromkeys(without.split(), False)))
    assert found.why == why, found.broken
