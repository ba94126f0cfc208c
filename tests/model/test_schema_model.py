"""After a take-over each column of a follower has the values of the leader's, or the follower stops and says why."""

from __future__ import annotations

import pytest

from tests.campaign import TORTURE
from tests.model.schema_model import Rules, explored


@pytest.mark.parametrize("old", [False, True], ids=["another follower", "the old leader"])
def test_a_follower_has_its_new_leaders_values_or_stops(old: bool) -> None:
    found = explored(3 if TORTURE else 2, Rules(), the_old_leader_follows=old)
    assert found.broken == () and 0 < found.stopped < found.orders / 2


def test_a_follower_does_not_stop_where_nothing_was_changed_while_the_sites_were_apart() -> None:
    assert explored(1, Rules()).needless == ()


@pytest.mark.parametrize("without", ["knows_columns_across_leaders", "stops_where_a_column_was_dropped_here"])
def test_without_this_rule_a_follower_has_other_values_than_its_leader(without: str) -> None:
    assert explored(2, Rules(**{without: False})).broken != ()
