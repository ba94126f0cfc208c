"""A follower that becomes the leader: with an arbiter and without, and after it died at any step of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from strandline import Lake
from strandline.core import failpoints
from strandline.core.errors import NotLeader, RefusedError, StorageError
from strandline.core.sites.terms import numbers_of
from strandline.core.types import Seq
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.lake_admin import follow_lake, init_lake, rejoin_lake
from strandline.ledger.ingest import blocks
from strandline.ledger.replicate import followers, sites
from strandline.replicate.arbiter.arbiter import VersionedRecord
from strandline.replicate.take_over.promote import Promoted, Promotion
from strandline.replicate.take_over.promote_plan import Begin, Refuse
from tests.campaign import in_torture
from tests.conftest import MakeHome
from tests.spark.followed import SETTINGS, assert_same, follow, new_follower, restarted, table
from tests.spark.protocol import COLUMNS, crash_at, frame

LEASE = 30.0


@dataclass
class Clock:
    now: float = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Sites:
    leader: Lake
    followers: list[Lake]
    clock: Clock

    def promotion(self, lake: Lake) -> Promotion:
        made = lake.replication.promotion
        made._clock, made._sleep = lambda: self.clock.now, self.clock.sleep
        return made

    def promote(self, lake: Lake, *, force: bool = False) -> Promoted:
        if lake.replication.site.follows and lake.replication.site.claimed_term is None:
            restarted(lake)
        return self.promotion(lake).run(leader_is_stopped=True, force=force)

    def record(self) -> VersionedRecord:
        found = self.leader.replication.arbiter
        assert found is not None
        seen = found.read()
        assert seen is not None
        return seen


def made(folder: Path, make_home: MakeHome, *, arbiter: bool, stack: ExitStack, followers: int) -> Sites:
    settings = dict(SETTINGS)
    if arbiter:
        (folder / "arbiter").mkdir()
        settings["replication"] = {"arbiter": f"file:{folder / 'arbiter'}", "lease_seconds": LEASE}
    make_home(folder / "leader", settings)
    leader = stack.enter_context(init_lake(folder / "leader"))
    leader.create_dataset("events", parse_columns(COLUMNS))
    sites_made = []
    for n in range(followers):
        added = new_follower(folder, make_home, leader, f"f{n}", is_added=True, settings=settings)
        lake = stack.enter_context(added)
        follow(lake)
        sites_made.append(lake)
    return Sites(leader, sites_made, Clock())


@pytest.fixture
def alone(tmp_path: Path, make_home: MakeHome) -> Iterator[Sites]:
    with ExitStack() as stack:
        yield made(tmp_path, make_home, arbiter=False, stack=stack, followers=1)


@pytest.fixture
def judged(tmp_path: Path, make_home: MakeHome) -> Iterator[Sites]:
    with ExitStack() as stack:
        yield made(tmp_path, make_home, arbiter=True, stack=stack, followers=2)


def applied_and_recorded(found: Sites) -> None:
    """One batch is applied at the follower, and of the next it has only heard."""
    lake = found.followers[0]
    found.leader.append("events", frame(found.leader, 0, 5), batch_id="applied")
    follow(lake)
    found.leader.append("events", frame(found.leader, 5, 5), batch_id="heard of")
    restarted(lake)
    crash_at(lake, "record.after_commit", lambda: follow(lake))


def test_without_an_arbiter_a_person_says_that_the_leader_is_stopped(alone: Sites) -> None:
    applied_and_recorded(alone)
    [lake] = alone.followers
    with pytest.raises(RefusedError, match="nobody but you"):
        lake.replication.promotion.run(leader_is_stopped=False)
    forecast = lake.replication.promotion.forecast(leader_is_stopped=True)
    assert forecast.step == Begin(1) and [g.batch_id for g in forecast.state.given_up] == ["heard of"]
    done = alone.promote(lake)
    assert done.term == 17 and done.led is not None
    assert [g.batch_id for g in done.led.given_up] == ["heard of"]
    assert len(table(lake)) == 5 and lake.sealed("events") == numbers_of(17).lo
    assert alone.promote(lake) == Promoted(17, led=None)
    lake.append("events", frame(lake, 100, 3), batch_id="mine")
    assert len(table(lake)) == 8 and lake.sealed("events") > numbers_of(17).lo
    assert lake.append("events", frame(lake, 0, 5), batch_id="applied").duplicate
    with pytest.raises(RefusedError, match="follows no other site"):
        lake.replication.check_follows()


# The other points are in `tests/ledger/test_promotions.py`.
POINTS = [
    in_torture("promote.after_put"), "promote.after_put@2", "promote.after_publish", "promote.after_cuts",
    in_torture("promote.after_witness"),
]  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
def test_a_promotion_that_dies_at_any_step_goes_on(tmp_path: Path, make_home: MakeHome, point: str) -> None:
    with ExitStack() as stack:
        _dies_and_goes_on(made(tmp_path, make_home, arbiter=True, stack=stack, followers=1), point)


def _dies_and_goes_on(judged: Sites, point: str) -> None:
    applied_and_recorded(judged)
    lake = judged.followers[0]
    lease = judged.leader.replication.lease
    assert lease is not None
    lease.update_members()
    name, _, nth = point.partition("@")
    failpoints.arm(f"{name}=fail@{nth or 1}")
    with pytest.raises(failpoints.FailpointError):
        judged.promote(lake)
    failpoints.arm("")
    done = judged.promote(lake)
    assert done.term == 17 and not done.already
    record = judged.record().record
    assert (record.term, record.site, record.leads, record.before) == (17, 1, True, 1)
    assert len(table(lake)) == 5
    lake.append("events", frame(lake, 100, 3), batch_id="mine")
    assert len(table(lake)) == 8


def test_with_an_arbiter_it_waits_for_the_lease_and_the_old_leader_takes_no_more_rows(judged: Sites) -> None:
    applied_and_recorded(judged)
    lake, other = judged.followers
    with pytest.raises(RefusedError, match="not a member"):
        judged.promote(lake)
    assert judged.leader.replication.lease is not None
    follow(other)
    assert judged.leader.replication.lease.update_members() == frozenset({1, 2})
    done = judged.promote(lake)
    assert done.term == 17 and judged.clock.now >= LEASE
    with pytest.raises(NotLeader, match="leads in term 17"):
        judged.leader.replication.lease.renew()
    with pytest.raises(NotLeader, match="leads in term 17"):
        judged.leader.append("events", frame(judged.leader, 50, 2), batch_id="too late")
    # Nobody is a member of the new term before its leader waits for somebody.
    with pytest.raises(RefusedError, match="not a member"):
        judged.promote(other)
    assert judged.leader.ledger.query(sites.get).superseded_term == 17


def test_a_site_that_was_made_again_is_not_the_member_that_was_lost(
    judged: Sites, tmp_path: Path, make_home: MakeHome
) -> None:
    """It has the same token and number. The leader may be dead by then, and only the record tells."""
    leader, [lost, other] = judged.leader, judged.followers
    leader.append("events", frame(leader, 0, 5), batch_id="a")
    follow(lost)
    follow(other)
    assert update_members(leader) == frozenset({1, 2})
    lost.close()
    arbiter = {"arbiter": f"file:{tmp_path / 'arbiter'}", "lease_seconds": LEASE}
    make_home(tmp_path / "again", {**SETTINGS, "replication": arbiter})
    token = f"file:{tmp_path / 'token-f0'}"
    with follow_lake(tmp_path / "again", str(leader.config.home), token=token) as again:
        assert again.replication.site.number == 1
        certain = leader.ledger.query(followers.watermarks_by_title, leader.dataset("events"))
        assert certain["follower f0"] is None and certain["follower f1"] is not None
        with pytest.raises(RefusedError, match="made again since"):
            judged.promote(again)
        assert update_members(leader) == frozenset({2})
        follow(again)
        assert update_members(leader) == frozenset({1, 2})
        assert judged.promote(again).term == 17 and len(table(again)) == 5


def test_the_first_leader_rejoins_and_is_promoted_again(judged: Sites, tmp_path: Path) -> None:
    """Each time nothing that was acknowledged is lost, and whoever leads no more takes nothing."""
    first, [lake, _] = judged.leader, judged.followers
    first.append("events", frame(first, 0, 5), batch_id="a")
    follow(lake)
    follow(judged.followers[1])
    update_members(first)
    judged.promote(lake)
    assert judged.record().record.members == frozenset(), "nobody may replace it before it waits for somebody"
    lake.append("events", frame(lake, 5, 5), batch_id="b")
    _, secret = lake.followers.add("first")
    (tmp_path / "back").write_text(secret)
    with pytest.raises(NotLeader, match="leads in term 17"):
        update_members(first)
    rejoin_lake(first.config, str(lake.config.home), token=f"file:{tmp_path / 'back'}")
    restarted(first)
    follow(first)
    assert_same(lake, first)
    with pytest.raises(RefusedError, match="not a member"):
        judged.promote(first)
    assert update_members(lake) == frozenset({0})
    assert judged.promote(first).term == 32
    first.append("events", frame(first, 10, 5), batch_id="c")
    assert len(table(first)) == 15 and first.sealed("events") > numbers_of(32).lo
    assert first.append("events", frame(first, 5, 5), batch_id="b").duplicate
    with pytest.raises(NotLeader, match="leads in term 32"):
        update_members(lake)
    with pytest.raises(NotLeader, match="leads in term 32"):
        lake.append("events", frame(lake, 60, 2), batch_id="too late")


def update_members(lake: Lake) -> frozenset[int]:
    assert lake.replication.lease is not None
    return lake.replication.lease.update_members()


def test_of_two_promotions_at_once_one_wins_and_the_other_says_who_leads(judged: Sites) -> None:
    applied_and_recorded(judged)
    lake, other = judged.followers
    follow(other)
    assert judged.leader.replication.lease is not None
    judged.leader.replication.lease.update_members()
    crash_at(other, "promote.after_begin", lambda: judged.promote(other))
    judged.promote(lake)
    with pytest.raises(RefusedError, match="leads in term 17: this promotion is over"):
        judged.promote(other)
    site = other.ledger.query(sites.get)
    assert site.follows and site.promoting_term is None and site.claimed_term is None


def test_a_leader_that_renews_its_lease_is_not_replaced(judged: Sites) -> None:
    applied_and_recorded(judged)
    lake = judged.followers[0]
    lease = judged.leader.replication.lease
    assert lease is not None
    lease.update_members()
    promotion = judged.promotion(lake)

    def alive(seconds: float) -> None:
        judged.clock.now += seconds
        lease.renew()

    promotion._sleep = alive
    with pytest.raises(RefusedError, match="renews its lease: it is alive"):
        promotion.run(leader_is_stopped=False)
    assert judged.record().record.term == 1 and lake.ledger.query(sites.get).promoting_term is None
    judged.leader.append("events", frame(judged.leader, 50, 2), batch_id="goes on")


def test_nobody_is_promoted_while_the_arbiter_is_away(judged: Sites, tmp_path: Path) -> None:
    applied_and_recorded(judged)
    (tmp_path / "arbiter").rename(tmp_path / "away")
    with pytest.raises(StorageError, match="arbiter"):
        judged.promote(judged.followers[0])
    assert judged.followers[0].ledger.query(sites.get).promoting_term is None
    judged.leader.append("events", frame(judged.leader, 50, 2), batch_id="within its lease")
    assert judged.leader.sealed("events") is not None
    (tmp_path / "away").rename(tmp_path / "arbiter")
    forecast = judged.followers[0].replication.promotion.forecast(leader_is_stopped=False)
    assert isinstance(forecast.step, Refuse)
    assert judged.leader.ledger.query(blocks.sealed, judged.leader.dataset("events").id) != Seq(0)
