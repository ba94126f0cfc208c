"""A follower deletes what was purged at its leader, and nothing else; and each rule is missed when taken away."""

from __future__ import annotations

import pytest

from tests.model.purged_model import Rules, World, explored

FEW, FEW_DROPPED = World(by_column=True, restores=True), World(by_column=True, restores=True, drops=True)
MANY, MANY_DROPPED = World(many=True), World(many=True, by_column=True, restores=True, drops=True)


@pytest.mark.parametrize("world", [FEW, FEW_DROPPED, MANY, MANY_DROPPED])
def test_a_follower_deletes_what_was_purged_and_keeps_what_only_retention_deleted(world: World) -> None:
    found = explored(world, Rules())
    assert found.why == "" and found.states > 20, found.broken


GONE, STAYS = "a row that nobody purged is gone", "a purged row stays"
LACKS = "the follower lacks a row that its leader has"


@pytest.mark.parametrize(
    ("world", "without", "why"),
    [
        (FEW, "a_purge_names_its_rows", GONE),
        (FEW, "the_table_names_them_too", GONE),
        (FEW, "a_purge_deletes_only_what_it_named", STAYS),
        (FEW, "a_follower_keeps_what_the_leader_has", LACKS),
        (FEW, "rows_below_the_floor_are_judged_too", STAYS),
        (MANY, "an_open_purge_holds_retention", GONE),
        (MANY, "a_purge_that_was_begun_holds_retention", GONE),
        (MANY_DROPPED, "rows_below_the_floor_are_judged_too", STAYS),
    ],
)
def test_without_this_rule_a_follower_deletes_too_much_or_too_little(world: World, without: str, why: str) -> None:
    found = explored(world, Rules(**{without: False}))
    assert found.why == why, found.broken
