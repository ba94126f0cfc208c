"""No row that a sink is owed goes before the sink has it, or is counted: whoever stops, wakes up or is restored."""

from __future__ import annotations

import pytest

from tests.model.floor_model import Rules, explored


def test_retention_takes_no_row_from_a_sink_that_is_owed_it() -> None:
    found = explored(Rules())
    assert found.why == "" and found.states > 5_000


@pytest.mark.parametrize(
    "without",
    [
        Rules(a_new_sink_starts_above_the_floor=False),
        Rules(an_open_intent_holds_its_rows=False),
        Rules(the_floor_is_raised_before_rows_go=False),
        Rules(every_sink_holds=False),
        Rules(a_drop_is_counted_before_rows_go=False),
        Rules(raising_takes_a_number=False),
        Rules(the_table_knows_the_floor_before_rows_go=False),
        Rules(an_opening_takes_the_floor_from_the_table=False),
        Rules(looks_at_the_epoch_after_it_told_the_table=False),
        Rules(the_property_never_goes_back=False),
        Rules(an_opening_counts_what_the_copy_forgot=False),
        Rules(a_resend_counts_what_may_be_gone=False),
    ],
)
def test_without_this_rule_a_row_is_gone_that_a_sink_was_owed(without: Rules) -> None:
    assert explored(without).why == "a row that a sink is owed is gone, and nobody counted it"


def test_a_resend_that_begins_above_the_floor_passes_rows_that_are_still_there() -> None:
    without = Rules(a_resend_sends_what_is_left_below_the_floor=False)
    assert explored(without).why == "a mark has passed a row that could still be sent, and that no rule dropped"


def test_a_recovery_that_goes_by_what_was_planned_passes_rows_that_were_never_sent_again() -> None:
    without = Rules(a_recovery_goes_by_where_the_lane_began=False)
    assert explored(without).why == "a mark has passed a row that was never sent"
