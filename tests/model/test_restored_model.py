"""A receiver whose ledger was restored from an older copy."""

from __future__ import annotations

import pytest

from tests.model.restored_model import Rules, World, explored


@pytest.mark.parametrize("expires", [True, False])
def test_a_restored_receiver_loses_no_body_takes_none_twice_and_holds_only_if_it_must(expires: bool) -> None:
    found = explored(World(expires=expires), Rules())
    assert not found.broken, (found.why, found.broken)
    assert found.states > 10_000


@pytest.mark.parametrize("expires", [True, False])
def test_a_restore_that_is_undone_or_followed_by_another_loses_and_doubles_nothing(expires: bool) -> None:
    """From two copies, in any order. The world is smaller, so that all of it can be explored."""
    found = explored(World(sends=1, expires=expires, restores=2), Rules())
    assert not found.broken, (found.why, found.broken)
    assert found.states > 5_000
    found = explored(World(sends=1, expires=expires, restores=2), Rules(puts_back_what_is_gone=False))
    assert "never gets into the table" in found.why or "gone" in found.why, found


@pytest.mark.parametrize(
    ("without", "expires", "why"),
    [
        ("door_asks_the_witness", False, "told that the table lacks"),
        ("receipt_before_publishing", False, "holds though"),
        ("opening_reads_receipts", False, "holds though"),
        ("opens_before_it_forms", False, "holds though"),
        ("opening_holds_when_unsure", True, "twice"),
        ("intake_looks_for_a_hold", True, "twice"),
        ("adopts_spooled_bodies", False, "never gets into the table"),
        ("adopts_a_copy", False, "gone"),
        ("leaves_what_may_be_in", True, "twice"),
        ("reconciler_leaves_bodies", False, "gone"),
    ],
)
def test_each_rule_is_needed(without: str, expires: bool, why: str) -> None:
    found = explored(World(expires=expires), Rules(**{without: False}))
    assert why in found.why and found.broken, found
