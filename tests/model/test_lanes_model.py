"""No mark passes a row that was not sent, however plans and deliveries of one sink run side by side."""

from __future__ import annotations

import pytest

from tests.model.lanes_model import Rules, explored


def test_no_plan_moves_a_mark_past_a_row_that_it_did_not_look_for() -> None:
    found = explored(Rules())
    assert found.why == "" and found.states > 500


@pytest.mark.parametrize(
    "without",
    [
        Rules(moves_only_lanes_that_the_planner_saw_free=False),
        Rules(scans_each_lane_from_its_own_mark=False),
    ],
)
def test_without_this_rule_a_mark_passes_a_row_that_was_never_sent(without: Rules) -> None:
    assert explored(without).why == "a mark has passed a row that was never sent"
