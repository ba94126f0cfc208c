"""Whoever stands still or dies while it raises the epoch of a table, somebody can publish there afterwards."""

from __future__ import annotations

import pytest

from tests.model.epoch_model import Rules, World, explored


@pytest.mark.parametrize("world", [World(0, 0), World(1, 0), World(others=0), World()])
def test_no_table_stays_above_its_ledger_and_no_row_that_is_cut_out_comes_in(world: World) -> None:
    found = explored(world, Rules())
    assert found.why == "" and found.states > 100, found.broken


NOBODY, NEVER = "nobody can publish at the leader", "an item is never applied"


@pytest.mark.parametrize(
    ("without", "why"),
    [
        ("a_table_is_raised_only_by_who_has_the_cut_or_the_promotion", NOBODY),
        ("a_raise_repeats_what_the_table_has", NOBODY),
        ("a_follower_records_the_epoch_that_it_finds", NEVER),
        ("a_leader_begins_with_an_epoch_of_its_own", NOBODY),
        ("a_cut_begins_again_when_the_ledger_has_its_epoch", "a row that was cut out is in the table"),
    ],
)
def test_without_this_rule_nobody_can_publish_or_a_row_comes_back(without: str, why: str) -> None:
    found = explored(World(), Rules(**{without: False}))
    assert found.why == why, found.broken
