"""However batches of received bodies are divided, set aside and replayed, each body is in the table once."""

from __future__ import annotations

import pytest

from tests.model.spool_model import Rules, explored


def test_no_interleaving_of_intakes_and_a_person_loses_or_doubles_a_body() -> None:
    found = explored(Rules(blocks_max=2))
    assert found.broken == (), found.why
    assert found.states > 5_000


def test_nor_does_a_ledger_that_is_restored_meanwhile() -> None:
    found = explored(Rules(restores=True, blocks_max=2))
    assert found.broken == (), found.why
    assert found.states > 20_000


@pytest.mark.parametrize(
    ("without", "why"),
    [
        (Rules(ended_only_while_no_block_has_it=False), "given up is in the table"),
        (Rules(an_ended_batch_gets_no_block=False), "given up is in the table"),
        (Rules(restores=True, blocks_max=2, a_batch_that_the_ledger_has_forgotten_gets_no_block=False), "twice"),
        (Rules(restores=True, blocks_max=2, relatives_count_as_the_same_batch=False), "twice"),
        (Rules(restores=True, blocks_max=2, divided_again_after_a_restore=False), "twice"),
    ],
)
def test_without_this_rule_the_model_finds_a_way(without: Rules, why: str) -> None:
    found = explored(without)
    assert found.broken and why in found.why
