"""A site that takes over has what the leader's sinks lack, and its followers have no row that it has purged."""

from __future__ import annotations

import pytest

from tests.model.kept_model import Rules, explored


def test_whenever_a_site_is_promoted_no_sink_lacks_a_row_and_no_follower_keeps_one_that_was_purged() -> None:
    found = explored(Rules())
    assert found.why == "" and found.states > 100, found.broken


KEEPS, LACKS = "a follower keeps a row that its leader has not", "a sink that nobody gave up lacks a row"


@pytest.mark.parametrize(
    ("without", "why"),
    [
        ("a_delete_is_of_its_epoch", KEEPS),
        ("a_promotion_raises_the_epoch", KEEPS),
        ("a_purge_is_recorded_by_who_has_it", KEEPS),
        ("a_purge_that_was_begun_gets_an_item", KEEPS),
        ("retention_keeps_what_the_leaders_sinks_lack", LACKS),
    ],
)
def test_without_this_rule_the_site_that_takes_over_differs(without: str, why: str) -> None:
    found = explored(Rules(**{without: False}))
    assert found.why == why, found.broken
