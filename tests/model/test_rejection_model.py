"""Rows that a sink refuses hold in every interleaving: none is there twice, and none is lost without a word."""

from __future__ import annotations

import pytest

from tests.model.rejection_model import Rules, explored

TWICE, LOST, STUCK = "a row is there twice", "a row is lost", "stopped for nothing"


@pytest.mark.parametrize(
    ("rows", "leases", "restores"), [(2, 3, False), (3, 2, False), (2, 2, True)], ids=["late", "long", "restored"]
)
def test_splits_quarantine_and_replays_deliver_no_row_twice_and_lose_none(
    rows: int, leases: int, restores: bool
) -> None:
    found = explored(Rules(), rows=rows, leases=leases, restores=restores)
    assert found.why == "" and found.states > 5_000, found.broken


@pytest.mark.parametrize(
    ("without", "why"),
    [
        ("stores_the_split_before_its_parts_are_sent", STUCK),
        ("writes_the_content_first", LOST),
        ("records_with_the_chunk", LOST),
        ("replays_in_its_own_lane", TWICE),
        ("checks_the_token", STUCK),
    ],
)
def test_without_this_rule_the_model_finds_a_way_to_fail(without: str, why: str) -> None:
    found = explored(Rules(**{without: False}), rows=3, leases=3)
    assert found.why == why, found.broken
