"""What a receiver answered for is in the table once, whoever dies, wakes up late, or is put back from an older copy."""

from __future__ import annotations

import pytest

from tests.model.receive_model import Rules, explored


def test_what_was_answered_is_in_the_table_once_though_the_ledger_is_put_back() -> None:
    found = explored(Rules())
    assert found.why == "" and found.states > 5_000, found.broken


TWICE, UNKNOWN = "a body is in the table twice", "a body that was answered is not known"


@pytest.mark.parametrize(
    ("without", "why"),
    [
        (Rules(a_file_says_whose_it_is=False), UNKNOWN),
        (Rules(a_batch_is_listed_before_it_is_reserved=False), TWICE),
        (Rules(lists_come_before_files=False), UNKNOWN),
        (Rules(what_was_never_published_is_offered=False), UNKNOWN),
        (Rules(a_list_is_taken_over_under_its_own_id=False), TWICE),
        (Rules(forming_asks_the_witness=False), UNKNOWN),
        (Rules(the_batch_is_looked_for_before_the_commit=False), UNKNOWN),
        (Rules(receivers_settle_before_they_record=False), UNKNOWN),
    ],
)
def test_without_this_rule_it_is_not(without: Rules, why: str) -> None:
    assert explored(without).why == why
