"""For whom retention at a follower keeps rows: for the sinks of its leader."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from strandline.core.errors import WatermarkMoved
from strandline.core.settings.maintain import RetainSettings
from strandline.core.sites.replication import LaneDefinition, SinkDefinition
from strandline.core.types import Seq
from strandline.ledger.engine import utc_now
from strandline.ledger.replicate import leader_sinks
from strandline.maintain.awaited import Lacking, list_awaited, own_sinks, pass_over, record_holds
from strandline.replicate.follow.leader_sinks import LeaderSinks
from tests.ledger.conftest import LakeState
from tests.ledger.delivery import add_sink
from tests.ledger.test_following import follower

__all__ = ["follower"]

HOLD = RetainSettings(older_than=timedelta(days=30))
DROP = RetainSettings(older_than=timedelta(days=30), on_lag="drop", drop_after=timedelta(days=7))
IGNORE = RetainSettings(older_than=timedelta(days=30), paused_sinks="ignore")


def sink(lake: LakeState, name: str, lowest: int, *, paused: bool = False) -> SinkDefinition:
    at = Seq(lowest) if lowest else None
    return SinkDefinition(
        lake.dataset.uuid, name, "files", f"instance-{name}", 1, (), f"file:///{name}", None, at, None, None, paused,
        (LaneDefinition("", at, None),), at,
    )  # fmt: skip


def awaited(lake: LakeState, rule: RetainSettings = HOLD) -> list[tuple[str, int | None]]:
    return [(p.title, p.number) for p in lake.ledger.query(list_awaited, lake.dataset, rule)]


def lacking(lake: LakeState, *names: str) -> Lacking:
    found = lake.ledger.query(list_awaited, lake.dataset, DROP)
    return tuple((p, 5) for p in found if p.title.removeprefix("the leader's sink ") in names)


def test_a_follower_waits_for_everything_until_its_leader_has_told_of_its_sinks(follower: LakeState) -> None:
    assert awaited(follower) == [("the leader's sinks, which it has not reported yet", None)]
    LeaderSinks(follower.ledger).store((), "v1")
    assert awaited(follower) == []


def test_a_follower_waits_for_each_sink_of_its_leader_paused_ones_too(follower: LakeState) -> None:
    kept = LeaderSinks(follower.ledger)
    kept.store((sink(follower, "fast", 90), sink(follower, "slow", 10, paused=True), sink(follower, "new", 0)), "v1")
    assert awaited(follower) == [
        ("the leader's sink fast", 90), ("the leader's sink new", None), ("the leader's sink slow", 10),
    ]  # fmt: skip
    assert [name for name, _ in awaited(follower, IGNORE)] == ["the leader's sink fast", "the leader's sink new"]
    kept.store((sink(follower, "fast", 95),), "v1")
    assert awaited(follower) == [("the leader's sink fast", 95)]


def test_sinks_that_a_follower_had_when_it_led_count_no_more(follower: LakeState) -> None:
    with follower.ledger.write() as connection:
        add_sink(connection, follower.dataset)
    assert follower.ledger.query(own_sinks, follower.dataset) == []


def test_a_leader_waits_for_its_own_sinks_and_for_none_of_another_leader(lake: LakeState) -> None:
    LeaderSinks(lake.ledger).store((sink(lake, "theirs", 10),), "v1")
    with lake.ledger.write() as connection:
        added = add_sink(connection, lake.dataset)
    assert [p.sink.id for p in lake.ledger.query(own_sinks, lake.dataset)] == [added.id]
    assert awaited(lake) == []


def test_a_sink_that_is_told_of_while_rows_are_counted_keeps_them(follower: LakeState) -> None:
    LeaderSinks(follower.ledger).store((sink(follower, "slow", 10), sink(follower, "reset", 90)), "v1")
    passed = lacking(follower, "slow")
    with follower.ledger.write() as connection:
        pass_over(connection, follower.dataset, DROP, passed, Seq(50))
    LeaderSinks(follower.ledger).store((sink(follower, "slow", 10), sink(follower, "reset", 20)), "v1")
    with pytest.raises(WatermarkMoved, match="the leader's sink reset"), follower.ledger.write() as connection:
        pass_over(connection, follower.dataset, DROP, passed, Seq(50))


def test_rows_are_held_for_a_leaders_sink_since_the_first_run_that_found_it(follower: LakeState) -> None:
    kept = LeaderSinks(follower.ledger)
    kept.store((sink(follower, "slow", 10),), "v1")
    first, now = utc_now() - timedelta(days=3), utc_now()

    def run(held: Lacking, at: object) -> list[str]:
        with follower.ledger.write() as connection:
            return record_holds(connection, follower.dataset, held, due=Seq(50), now=at)  # type: ignore[arg-type]

    assert run(lacking(follower, "slow"), first) == []
    kept.store((sink(follower, "slow", 20),), "v1")
    assert run(lacking(follower, "slow"), now) == []
    [held] = follower.ledger.query(leader_sinks.list_all)
    assert (held.number, held.held_since, held.held_rows, held.held_upto) == (20, first, 5, 50)
    assert run((), now) == ["the leader's sink slow"]
    [held] = follower.ledger.query(leader_sinks.list_all)
    assert held.held_since is None


def test_the_lowest_watermark_comes_along_also_where_there_are_too_many_lanes(follower: LakeState) -> None:
    many = replace(sink(follower, "wide", 40), planned=None, lanes=())
    LeaderSinks(follower.ledger).store((many,), "v1")
    assert awaited(follower) == [("the leader's sink wide", 40)]
