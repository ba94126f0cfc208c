"""What a generation that sends rows again builds on."""

from __future__ import annotations

import pytest

from tests.model.generations_model import Rules, World, explored


def test_nothing_is_delivered_over_rows_that_are_gone_however_often_a_destination_is_restored() -> None:
    found = explored(World(), Rules())
    assert not found.broken, found.why
    assert found.states > 500


@pytest.mark.parametrize("without", ["asks_the_generation_before", "asks_all_before_it"])
def test_each_rule_is_needed(without: str) -> None:
    found = explored(World(), Rules(**{without: False}))
    assert "over rows that are gone" in found.why
