"""The protocol holds in every interleaving; and each rule that looks fussy is missed when it is taken away."""

from __future__ import annotations

import pytest

from tests.model.ingest_model import Rules, explored


def test_no_interleaving_doubles_a_batch_reuses_a_number_or_slips_a_row_below_a_mark() -> None:
    found = explored(Rules())
    assert found.broken == () and found.states > 5_000


@pytest.mark.parametrize(
    "without",
    [
        Rules(commit_point_asks_the_witness=False),
        Rules(abandoning_takes_a_number=False),
        Rules(one_batch_rolls_forward_once=False),
        Rules(nothing_rolls_forward_below_a_mark=False),
        Rules(a_postponed_dataset_takes_nothing=False),
        Rules(a_postponed_dataset_holds_the_seal=False),
        Rules(the_branch_names_the_digest=False),
        Rules(a_repeat_is_compared_when_its_block_is_settled=False),
    ],
)
def test_without_this_rule_the_model_finds_a_batch_twice_or_below_a_mark_or_taken_for_another(without: Rules) -> None:
    assert explored(without).broken
