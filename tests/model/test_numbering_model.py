"""Rows that get their numbers late never get one that sinks have gone past."""

from __future__ import annotations

import pytest

from tests.model.numbering_model import Rules, explored


def test_no_interleaving_gives_a_row_a_number_that_no_sink_would_see() -> None:
    found = explored(Rules())
    assert found.broken == () and found.states > 5_000


@pytest.mark.parametrize(
    "without",
    [
        Rules(commit_looks_at_the_epoch=False),
        Rules(commit_needs_the_branch=False),
        Rules(epoch_is_of_the_ledger_that_knows_the_block=False),
        Rules(old_block_ends_when_it_can_land_no_more=False),
    ],
)
def test_without_this_rule_the_model_finds_a_way_to_give_a_row_such_a_number(without: Rules) -> None:
    assert explored(without).broken
