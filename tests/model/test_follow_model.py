"""A follower has what its leader has, whoever is late, dies or is restored; and each rule is missed when taken away."""

from __future__ import annotations

import pytest

from tests.campaign import TORTURE
from tests.model.follow_model import explored
from tests.model.follow_state import Rules, World

PLAIN = World()
PURGED = World(rows=1, purges=1, gives_up=0)
RETAINED = World(retains=True, gives_up=0)
MERGED_PURGE = World(rows=1, merges=True, purges=1, gives_up=0, appliers=1)
MERGED_RESTORED = World(merges=True, restores=True, gives_up=0, appliers=1)
RESTORED = World(rows=1, restores=True, gives_up=0, follower_retains=True)
RESTORED_DEEP = World(ingested=True, merges=True, restores=True, gives_up=0, follower_retains=True, takes=1)
RESTORED_PURGED = World(rows=1, ingested=True, purges=1, restores=True, gives_up=0)
MERGED_PURGED_RESTORED = World(ingested=True, merges=True, purges=1, restores=True, gives_up=0, takes=1)
LEADER_RESTORED = World(leader_restores=True, troubles=0, appliers=1)
LEADER_PURGED_RESTORED = World(rows=1, purges=1, leader_restores=True, gives_up=0, troubles=0, appliers=1)

LARGE = [
    World(merges=True, restores=True, gives_up=0),
    World(rows=1, restores=True, gives_up=0, follower_retains=True, troubles=2),
]


@pytest.mark.parametrize(
    "world",
    [
        PLAIN,
        PURGED,
        RETAINED,
        MERGED_PURGE,
        MERGED_RESTORED,
        RESTORED,
        RESTORED_DEEP,
        RESTORED_PURGED,
        LEADER_RESTORED,
        LEADER_PURGED_RESTORED,
        *(LARGE if TORTURE else ()),
    ],
)
def test_up_to_its_seal_a_follower_has_the_rows_of_its_leader_each_once(world: World) -> None:
    found = explored(world, Rules(), 20_000_000)
    assert found.why == "" and found.states > 800, found.broken


NEVER, BACK, BELOW = "a row never reached the follower", "the seal moved back", "a row came in below a mark"
TWICE = "a row is in the table twice"
STAYS, SEALED, STILL = "a purged row stays", "a purged row is below the seal", "the follower stands still"


# Where several rules guard the same place, all of them are taken away: any would do.
@pytest.mark.parametrize(
    ("world", "without", "why"),
    [
        (PLAIN, "upto_lies_below_open_blocks", STILL),
        (PLAIN, "a_cut_offer_ends_where_it_is_cut", STILL),
        (PLAIN, "recovery_never_abandons_an_item", STILL),
        (PLAIN, "the_seal_waits_for_every_shard", NEVER),
        (PLAIN, "a_branch_carries_its_fence staged_without_a_branch_is_taken_again", STILL),
        (PURGED, "an_offer_is_one_read", STILL),
        (PURGED, "a_purge_waits_for_lower_blocks", SEALED),
        (PURGED, "a_purge_that_died_is_finished", STAYS),
        (RETAINED, "a_follower_holds_the_floor", NEVER),
        (RETAINED, "it_tells_its_seal", NEVER),
        (MERGED_PURGE, "a_purge_is_not_merged_away", STAYS),
        (MERGED_RESTORED, "a_range_begins_behind_after", STILL),
        (MERGED_RESTORED, "a_publish_looks_for_its_own_rows_only", STILL),
        (MERGED_RESTORED, "recorded_only_at_the_bound", NEVER),
        (RESTORED, "the_witness_is_raised_before", BACK),
        (RESTORED, "behind_it_has_no_seal", BACK),
        (RESTORED, "takes_only_what_the_table_lacks", BELOW),
        (RESTORED, "stays_above_its_floor", BELOW),
        (RESTORED, "a_publish_looks_for_its_own_rows settling_removes_every_branch", TWICE),
        (RESTORED_DEEP, "behind_it_raises_the_epoch", BELOW),
        (RESTORED_PURGED, "settling_removes_every_branch", SEALED),
        (RESTORED_PURGED, "a_branch_carries_its_fence", SEALED),
        (LEADER_RESTORED, "a_resync_rolls_nothing_forward", NEVER),
        (LEADER_PURGED_RESTORED, "a_resync_takes_purges_back", STAYS),
        *([(RESTORED_PURGED, "fences", SEALED)] if TORTURE else []),
        *([(MERGED_PURGED_RESTORED, "fences_carry_the_epoch", NEVER)] if TORTURE else []),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_without_this_rule_a_follower_differs_or_stands_still(world: World, without: str, why: str) -> None:
    found = explored(world, Rules(**dict.fromkeys(without.split(), False)))
    assert found.why == why, found.broken
