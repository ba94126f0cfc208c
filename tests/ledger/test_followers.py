"""Followers at their leader: what they told, and what it counts for."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy as sa

from strandline.core.errors import NoSuchFollower, RefusedError, StorageError, TermPassed, UsageError, WatermarkMoved
from strandline.core.roles import Role
from strandline.core.sites.replication import OnLag
from strandline.core.types import BlockKind, DatasetUuid, Seq, SeqRange, ShardId
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import blocks, datasets, restored_blocks
from strandline.ledger.receive import tokens
from strandline.ledger.replicate import follower_report, followers
from strandline.ledger.replicate.followers import Acknowledgement, NewFollower, RegisteredFollower
from strandline.ledger.schema.core import block
from strandline.ledger.schema.replicate import follower, site
from strandline.replicate.lead.manage_followers import Followers
from tests.ledger.conftest import LakeState
from tests.ledger.delivery import new_delivery
from tests.no_tables import NoTables


def add(lake: LakeState, name: str = "east", **more: object) -> RegisteredFollower:
    with lake.ledger.write() as connection:
        token, _ = tokens.create(connection, f"follower-{name}", None, role=Role.REPLICATE)
        return followers.add(connection, NewFollower(name, token.id, **more))  # type: ignore[arg-type]


def tell(
    lake: LakeState,
    found: RegisteredFollower,
    seal: int | None = None,
    term: int = 1,
    instance: str = "a",
    **marks: int,
) -> RegisteredFollower:
    told = Acknowledgement(
        term,
        {} if seal is None else {lake.dataset.uuid: Seq(seal)},
        {ShardId(int(shard.removeprefix("s"))): Seq(mark) for shard, mark in marks.items()},
        instance,
    )
    with lake.ledger.write() as connection:
        return followers.acknowledge(connection, followers.get(connection, found.name), told)


def seal_of(lake: LakeState, name: str = "east") -> int | None:
    found = lake.ledger.query(followers.list_progress, lake.dataset)
    return next(p.number for p in found if p.follower.name == name)


def test_a_follower_is_known_by_its_name_and_by_every_token_of_its_line(lake: LakeState) -> None:
    made = add(lake)
    with lake.ledger.write() as connection:
        newer, _ = tokens.create(connection, "newer", None, replaces="follower-east")
        assert followers.get(connection, "east") == made
        assert followers.of_token(connection, newer.owner) == made
        other, _ = tokens.create(connection, "other", None, role=Role.REPLICATE)
        assert followers.of_token(connection, other.owner) is None
        with pytest.raises(NoSuchFollower, match="there is no follower west") as refused:
            followers.get(connection, "west")
    assert refused.value.hint == "Followers here: east."


def test_a_site_that_leads_again_adds_its_old_followers_again_and_refuses_their_old_tokens(lake: LakeState) -> None:
    away = NoTables(StorageError("the tables cannot be read now"))
    managed = Followers(lake.ledger, lake.witness, away)
    _, old = managed.add("east")
    lake.ledger.change(followers.remove_all)  # it stopped leading
    assert lake.ledger.query(tokens.find, old) is not None, "whoever asks with it is told who leads"
    made, new = managed.add("east")
    assert lake.ledger.query(tokens.find, old) is None
    found = lake.ledger.query(tokens.find, new)
    assert found is not None and found.owner == made.token
    with pytest.raises(RefusedError, match="named east already"):
        managed.add("east")


def test_a_name_is_taken_until_its_follower_is_removed(lake: LakeState) -> None:
    made = add(lake)
    with pytest.raises(RefusedError, match="named east already"), lake.ledger.write() as connection:
        followers.add(connection, NewFollower("east", made.token))  # type: ignore[arg-type]
    lake.ledger.change(followers.remove, made)
    assert lake.ledger.query(followers.list_followers) == []
    with lake.ledger.write() as connection:
        assert followers.add(connection, NewFollower("east", made.token)).id != made.id  # type: ignore[arg-type]


@pytest.mark.parametrize(("on_lag", "bound"), [(OnLag.DROP, None), (OnLag.HOLD, timedelta(days=1))])
def test_only_a_follower_that_rows_are_dropped_for_says_after_how_long(
    lake: LakeState, on_lag: OnLag, bound: timedelta | None
) -> None:
    with pytest.raises(UsageError, match="needs drop_after"):
        add(lake, on_lag=on_lag, drop_after=bound)


def test_a_seal_and_a_mark_only_rise_whatever_order_they_are_told_in(lake: LakeState) -> None:
    for _ in range(10):
        lake.publish(lake.reserve(f"b{_}", 10))
    made = add(lake)
    assert seal_of(lake) is None
    for seal in (30, 10, 50, 50, 20):
        tell(lake, made, seal, s0=seal)
    assert seal_of(lake) == 50
    assert lake.ledger.query(followers.highest_applied, lake.dataset.id) == 50
    tell(lake, made, s0=90)
    assert (seal_of(lake), lake.ledger.query(followers.highest_applied, lake.dataset.id)) == (50, 90)


def test_what_a_follower_does_not_follow_is_ignored(lake: LakeState) -> None:
    other = lake.add_dataset("default.other")
    lake.reserve("a", 10)
    made = add(lake, datasets=(other.uuid,))
    told = Acknowledgement(
        1, {lake.dataset.uuid: Seq(5), DatasetUuid("nobody's"): Seq(5)}, {ShardId(0): Seq(5), ShardId(99): Seq(5)}, "a"
    )
    lake.ledger.change(followers.acknowledge, made, told)
    assert lake.ledger.query(followers.list_progress, lake.dataset) == []
    assert lake.ledger.query(followers.highest_applied, lake.dataset.id) is None
    assert [p.number for p in lake.ledger.query(followers.list_progress, other)] == [None]


def test_a_number_that_nobody_has_taken_is_refused(lake: LakeState) -> None:
    lake.reserve("a", 10)
    made = add(lake)
    with pytest.raises(RefusedError, match="none above 10"):
        tell(lake, made, 11)
    assert seal_of(lake) is None


def test_a_follower_counts_in_the_leaders_own_term_only(lake: LakeState) -> None:
    lake.reserve("a", 50)
    made = add(lake)
    tell(lake, made, 40)
    with pytest.raises(TermPassed, match="term 2"):
        tell(lake, made, 45, term=2)
    with lake.ledger.write() as connection:
        connection.execute(site.update().values(term=2))
    assert seal_of(lake) is None
    with pytest.raises(TermPassed, match="term 1"):
        tell(lake, made, 45)
    tell(lake, made, 20, term=2)
    assert seal_of(lake) == 20


def test_a_site_that_is_made_again_has_told_nothing_and_is_no_member(lake: LakeState) -> None:
    """With the same token and number: what the one before had is lost with it."""
    lake.reserve("a", 50)
    made = tell(lake, add(lake), 40, instance="lost", s0=45)
    with lake.ledger.write() as connection:
        connection.execute(follower.update().values(waited_for=True, member=True))
        followers.drop_for(connection, lake.dataset.id, made.id, Seq(30))
    again = tell(lake, made, 10, instance="made again", s0=10)
    assert (again.name, again.token, again.site_number) == (made.name, made.token, made.site_number)
    assert not again.member and seal_of(lake) == 10
    assert lake.ledger.query(followers.sealed_by_all) == {lake.dataset.id: 10}
    assert lake.ledger.query(followers.highest_applied, lake.dataset.id) == 10
    assert [f.id for f in lake.ledger.query(followers.list_followers)] == [again.id] != [made.id]


def test_a_late_word_of_a_site_that_was_made_again_is_refused(lake: LakeState) -> None:
    lake.reserve("a", 50)
    made = add(lake)
    tell(lake, made, 40, instance="lost")
    again = tell(lake, made, instance="made again")
    with pytest.raises(RefusedError, match="another site follows as east by now"):
        tell(lake, again, 45, instance="lost")
    assert seal_of(lake) is None


def test_a_removed_follower_holds_nothing(lake: LakeState) -> None:
    lake.reserve("a", 50)
    made = add(lake)
    tell(lake, made, 40)
    lake.ledger.change(followers.remove, made)
    assert lake.ledger.query(followers.list_progress, lake.dataset) == []
    assert lake.ledger.query(followers.highest_applied, lake.dataset.id) is None


def test_sinks_that_wait_for_all_followers_wait_for_the_slowest(lake: LakeState) -> None:
    lake.reserve("a", 50)
    other = lake.add_dataset("default.other")
    assert lake.ledger.query(followers.sealed_by_all) == {}
    tell(lake, add(lake, "east", datasets=(lake.dataset.uuid,)), 40)
    assert lake.ledger.query(followers.sealed_by_all) == {lake.dataset.id: 40}
    west = add(lake, "west")
    assert lake.ledger.query(followers.sealed_by_all) == {lake.dataset.id: None, other.id: None}
    tell(lake, west, 30)
    assert lake.ledger.query(followers.sealed_by_all) == {lake.dataset.id: 30, other.id: None}
    lake.ledger.change(followers.remove, west)
    assert lake.ledger.query(followers.sealed_by_all) == {lake.dataset.id: 40}


def test_a_plan_goes_no_further_than_a_follower_that_came_since_the_planner_looked(lake: LakeState) -> None:
    """It is asked for again in the transaction that promises. What the sink holds already is recorded all the same."""
    delivery = new_delivery(lake)
    lake.reserve("numbers", 100)
    delivery.settle(1, 100)
    tell(replace(lake, dataset=delivery.dataset), add(lake), 60)
    with pytest.raises(WatermarkMoved, match="goes up to 100, and one of them has everything only up to 60"):
        delivery.plan(100, waits_upto=100)
    delivery.refresh()
    assert delivery.sink.planned is None
    delivery.plan(70, waits_upto=60)
    assert delivery.sink.planned == 70
    delivery.plan(70, waits_upto=70)
    assert delivery.plan(100) is not None and delivery.sink.planned == 100, "sinks that do not wait"


def test_retention_waits_for_a_follower_from_the_first_run_that_found_it_behind(lake: LakeState) -> None:
    lake.reserve("a", 50)
    made, now = add(lake), utc_now()
    later = now + timedelta(hours=1)
    with lake.ledger.write() as connection:
        assert followers.keep_holds(connection, lake.dataset.id, [made.id], now) == ([made.id], [])
        assert followers.keep_holds(connection, lake.dataset.id, [made.id], later) == ([], [])
        assert followers.list_progress(connection, lake.dataset)[0].held_since == now
        followers.drop_for(connection, lake.dataset.id, made.id, Seq(30))
        followers.drop_for(connection, lake.dataset.id, made.id, Seq(20))
        found = followers.list_progress(connection, lake.dataset)[0]
        assert (found.number, found.dropped_upto) == (None, 30)
    tell(lake, made, 25)
    with lake.ledger.write() as connection:
        assert followers.keep_holds(connection, lake.dataset.id, [], later) == ([], [made.id])
        found = followers.list_progress(connection, lake.dataset)[0]
        assert (found.number, found.held_since, found.dropped_upto) == (25, None, 30)


def test_a_follower_of_everything_follows_datasets_that_are_made_later(lake: LakeState) -> None:
    made = add(lake)
    later = lake.add_dataset("default.later")
    assert [p.follower for p in lake.ledger.query(followers.list_progress, later)] == [made]


def test_adding_a_follower_waits_for_a_retention_that_does_not_see_it(lake: LakeState) -> None:
    """It locks what it follows, as a new sink does."""
    made = add(lake)
    statements: list[str] = []

    @sa.event.listens_for(lake.ledger.engine, "before_cursor_execute")
    def _note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    add(lake, "west")
    assert made.datasets is None
    if not lake.ledger.is_sqlite:  # SQLite has one writer at a time
        assert any("FOR NO KEY UPDATE" in s and "dataset" in s for s in statements)


def test_dropped_datasets_are_followed_no_more(lake: LakeState) -> None:
    made = add(lake)
    lake.reserve("a", 10)
    with lake.ledger.write() as connection:
        assert datasets.mark_dropped(connection, lake.dataset.id)
    tell(lake, made, 5)
    assert lake.ledger.query(followers.highest_applied, lake.dataset.id) is None


def test_a_follower_of_some_datasets_holds_what_is_made_again_under_their_names(lake: LakeState) -> None:
    lake.add_dataset("default.other")
    add(lake, datasets=(lake.dataset.uuid,))
    with lake.ledger.write() as connection:
        assert datasets.mark_dropped(connection, lake.dataset.id)
        again = datasets.add(connection, name=lake.dataset.name, table_uuid="another-table")
        assert followers.sealed_by_all(connection) == {again.id: None}
        assert [f.name for f in followers.of_name(connection, again.name)] == ["east"]
        assert followers.of_name(connection, "default.other") == []
        told = Acknowledgement(1, {again.uuid: Seq(0)}, {again.first_shard: Seq(0)}, "a")
        found = followers.acknowledge(connection, followers.get(connection, "east"), told)
    assert found.follows(again.uuid)
    assert [p.follower.name for p in lake.ledger.query(followers.list_progress, again)] == ["east"]


def test_what_a_follower_lacks_is_counted_by_shard_and_unknown_is_not_zero(lake: LakeState) -> None:
    with lake.ledger.write() as connection:
        wide = datasets.add(connection, name="default.wide", table_uuid="uuid-of-wide", shards=2)
    first, second = wide.first_shard, ShardId(wide.first_shard + 1)
    made = add(lake, datasets=(wide.uuid,))
    numbers = []
    for name, shard in (("a", first), ("b", second), ("c", first)):
        wanted = blocks.NewBlock(wide.id, 10, name, None, shard=shard)
        reserved, _ = blocks.reserve(lake.ledger, lake.witness, wanted, lease_seconds=60)
        assert isinstance(reserved, blocks.Reserved)
        numbers.append(lake.publish(reserved).head.rows)

    def lags() -> list[tuple[int, int | None, int | None, int | None]]:
        with lake.ledger.read_consistent() as connection:
            return [(x.shard, x.mark, x.segments, x.rows) for x in follower_report.read_lags(connection)]

    assert lags() == [(first, None, None, None), (second, None, None, None)]
    told = Acknowledgement(1, {wide.uuid: numbers[0].hi}, {first: numbers[0].hi, second: Seq(0)}, "a")
    lake.ledger.change(followers.acknowledge, made, told)
    assert lags() == [(first, numbers[0].hi, 1, 10), (second, 0, 1, 10)]
    told = Acknowledgement(1, {wide.uuid: numbers[2].hi}, {first: numbers[2].hi, second: numbers[1].hi}, "a")
    lake.ledger.change(followers.acknowledge, lake.ledger.query(followers.get, "east"), told)
    assert lags() == [(first, numbers[2].hi, 0, 0), (second, numbers[1].hi, 0, 0)]
    with lake.ledger.write() as connection:
        connection.execute(site.update().values(term=2))
    assert lags() == [(first, None, None, None), (second, None, None, None)]


def test_a_range_that_nobody_counted_makes_the_lag_in_rows_unknown(lake: LakeState) -> None:
    lake.reserve("a", 10)
    made = add(lake)
    tell(lake, made, 0, s0=0)
    lake.publish(lake.reserve("b", 5))
    with lake.ledger.write() as connection:
        connection.execute(
            block.update().where(block.c.batch_id == "a").values(state="abandoned", reason="lost", lease_until=None)
        )
        restored_blocks.insert_published(
            connection, lake.dataset.id, SeqRange(Seq(1), Seq(10)), kind=BlockKind.RECOVERED, batch_id="recovered"
        )
    with lake.ledger.read_consistent() as connection:
        [lag] = follower_report.read_lags(connection)
    assert (lag.segments, lag.rows) == (2, None) and lag.oldest is not None
