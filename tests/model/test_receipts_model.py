"""Bodies that a receiver took, and a site that takes over."""

from __future__ import annotations

import pytest

from tests.model.receipts_model import Rules, World, explored


@pytest.mark.parametrize("tells", [True, False])
def test_after_take_overs_a_repeated_body_is_in_once_and_is_called_in_only_if_it_is(tells: bool) -> None:
    found = explored(World(tells=tells), Rules())
    assert not found.broken, (found.why, found.broken)
    assert found.states > 1_000, found.states


@pytest.mark.parametrize(
    ("without", "tells", "why"),
    [
        ("receipt_before_rows", True, "holds though"),
        ("receipt_has_the_fence", True, "it is not"),
        ("given_up_is_withdrawn", True, "it is not"),
        ("cut_out_is_withdrawn", True, "it is not"),
        ("only_settled_is_withdrawn", True, "nowhere"),
        ("told_replaces_waiting", True, "twice"),
        ("settled_is_in_the_table", True, "it is not"),
        ("unknown_holds", False, "twice"),
    ],
)
def test_each_rule_is_needed(without: str, tells: bool, why: str) -> None:
    found = explored(World(tells=tells), Rules(**{without: False}))
    assert why in found.why and found.broken, found
