"""A promotion by force gives up what the site lacks, and nothing else; and each rule of it is missed without it."""

from __future__ import annotations

import pytest

from tests.campaign import TORTURE
from tests.model.forced_model import Rules, World, explored
from tests.model.takeover_state import World as TakeOver

ALONE = World(TakeOver(writes=1, promotes=0))
BEHIND = World(TakeOver(writes=1, promotes=0), restores=1)
# Site 1 is promoted before or meanwhile: the site that is forced has not recorded its cut.
CUT = World(TakeOver(writes=0, promotes=1, candidates=(1,)), ingested=True)
BEHIND_A_CUT = World(TakeOver(writes=0, promotes=1, candidates=(1,)), ingested=True, restores=1)
DELIVERED = World(TakeOver(writes=1, promotes=1, candidates=(1,)), ingested=True)

LARGE = [
    World(TakeOver(writes=2, promotes=0)),
    World(TakeOver(writes=2, promotes=0), restores=1),
    World(TakeOver(writes=1, promotes=1, candidates=(1,)), stalls=True),
    BEHIND_A_CUT,
    DELIVERED,
]


@pytest.mark.parametrize("world", [ALONE, BEHIND, CUT, *(LARGE if TORTURE else ())])
def test_a_site_that_is_promoted_by_force_loses_what_it_lacks_and_nothing_else(world: World) -> None:
    found = explored(world, Rules(), 20_000_000)
    assert found.why == "" and found.states > 50, found.broken


DIFFERS, BELOW = "a follower differs from its leader", "a row came in below a mark"
PAST = "a sink has gone past a row that the leader has"


@pytest.mark.parametrize(
    ("world", "without", "why"),
    [
        (CUT, "who_has_a_cut_that_the_leader_lacks_does_not_follow", DIFFERS),
        (BEHIND, "a_site_behind_has_raised_its_epoch", BELOW),
        (BEHIND, "a_site_behind_keeps_what_its_table_has", DIFFERS),
        *([(DELIVERED, "a_lane_in_a_term_that_the_leader_lacks_stops", PAST)] if TORTURE else []),
        (BEHIND_A_CUT, "a_site_behind_waits_for_the_term_of_its_witness", "a seal moved back"),
        *([(BEHIND_A_CUT, "a_site_behind_cuts_from_0", DIFFERS)] if TORTURE else []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_without_this_rule_a_promotion_by_force_does_more_harm(world: World, without: str, why: str) -> None:
    found = explored(world, Rules(**{without: False}))
    assert found.why == why, found.broken


def test_a_site_that_has_gone_past_what_the_leader_has_again_cannot_begin_at_0() -> None:
    """As if its ledger were behind its witness: it gets the rows, and its consumers never do."""
    found = explored(CUT, Rules(who_has_a_cut_that_the_leader_lacks_begins_at_0=True))
    assert found.why == BELOW, found.broken
