"""A table that nobody rolled back is never refused, and one that somebody did is never taken as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.rollback_model import Rules, explored, in_doubt

OWNER = (("delete", 1), ("expire", 1), ("roll back", 1))
CASES = {
    "tag": Rules(happens=(*OWNER, ("maintain", 1))),
    "three writers": Rules(happens=(("expire", 1), ("roll back", 1)), publishers=3),
    "accepted": Rules(happens=(*OWNER, ("accept", 1))),
    "tag removed": Rules(happens=(*OWNER, ("remove the tag", 1))),
    "two reads": Rules(happens=(("delete", 1), ("expire", 1), ("read", 1))),
    "catalog restored": Rules(happens=(("delete", 1), ("expire", 1), ("accept", 1), ("restore the catalog", 1))),
    "ledger restored": Rules(happens=(("delete", 1), ("roll back", 1), ("maintain", 1), ("restore the ledger", 1))),
}


@pytest.mark.parametrize("is_remote", [False, True], ids=["sqlite", "rest"])
@pytest.mark.parametrize("has_log", [False, True], ids=["no log", "log"])
@pytest.mark.parametrize("case", CASES)
def test_no_interleaving_hides_a_rollback_or_makes_one_up(case: str, has_log: bool, is_remote: bool) -> None:
    found = explored(replace(CASES[case], has_log=has_log, is_remote=is_remote))
    assert found.broken == (), found.why
    assert found.states > 500


@pytest.mark.parametrize(
    "without",
    [
        replace(CASES["three writers"], tag_moves_only_forward=False),
        replace(CASES["catalog restored"], ledger_remembers=False),
        replace(CASES["two reads"], ledger_is_read_first=False),
        replace(CASES["ledger restored"], publish_moves_the_tag=False, has_log=False),
        replace(CASES["ledger restored"], tag_is_compared=False, is_remote=True),
    ],
)
def test_without_this_rule_the_model_finds_a_way(without: Rules) -> None:
    assert explored(without).broken


def test_a_doubt_outlives_the_block_that_is_published_on_top() -> None:
    assert explored(Rules(has_log=False), in_doubt()).broken == ()
    assert explored(Rules(has_log=False, doubt_is_recorded=False), in_doubt()).broken
