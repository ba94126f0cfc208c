"""The lease of a leader at the commit point of a batch: a real folder as arbiter, and a clock that the test moves."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from strandline.core import failpoints
from strandline.core.errors import LeaseOver, NotLeader, RefusedError, ResyncNeeded, StorageError
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.settings.replication import ReplicationSettings
from strandline.core.sites.arbiter import Member
from strandline.core.types import Published, Reserved, Seq, SnapshotId, Staged
from strandline.ledger.ingest import blocks, sequence
from strandline.ledger.replicate import followers, members, sites
from strandline.ledger.witness import Witness
from strandline.replicate.arbiter.arbiter import Arbiter, PutLanded, VersionedRecord
from strandline.replicate.arbiter.folder import FolderCell
from strandline.replicate.lead.lease import SiteLease
from strandline.replicate.lead.manage_followers import Followers
from tests.ledger.conftest import LAKE, LakeState
from tests.ledger.delivery import add_sink
from tests.no_tables import NoTables

LEASE = 30.0


@dataclass
class Led:
    lake: LakeState
    arbiter: Arbiter
    folder: Path
    now: float = 1000.0

    def lease(self) -> SiteLease:
        """As another process of the same site has it."""
        settings = ReplicationSettings(arbiter=f"file:{self.folder}", lease_seconds=LEASE, name="a")
        known = self.lake.config
        config = LakeConfig(known.settings.model_copy(update={"replication": settings}), known.home)
        return SiteLease(LAKE, config, self.lake.ledger, self.arbiter, clock=lambda: self.now)

    def seen(self) -> VersionedRecord:
        found = self.arbiter.read()
        assert found is not None
        return found

    def commit(self, held: Reserved) -> bool:
        return blocks.mark_staged(self.lake.ledger, self.lake.witness, held, SnapshotId(1))

    def cut_off(self) -> Callable[[], None]:
        """Nobody reaches the folder any more, until what is returned is called."""
        away = self.folder.with_name("away")
        shutil.move(self.folder, away)
        return lambda: shutil.move(away, self.folder) and None


@pytest.fixture
def led(lake: LakeState, tmp_path: Path) -> Led:
    folder = tmp_path / "arbiter"
    folder.mkdir()
    made = Led(lake, Arbiter(FolderCell(folder, LAKE), LAKE, call_seconds_max=20), folder)
    lake.ledger.write_right = made.lease()
    return made


def test_the_first_batch_of_a_process_takes_the_lease(led: Led) -> None:
    assert led.arbiter.read() is None
    assert led.commit(led.lake.reserve("a"))
    record = led.seen().record
    assert (record.term, record.site, record.leads, record.lease_seconds, record.beat) == (1, 0, True, LEASE, 0)


def test_it_is_renewed_when_a_third_of_it_is_over_and_not_before(led: Led) -> None:
    led.lake.reserve("a")
    led.now += LEASE / 3 - 1
    led.lake.reserve("b")
    assert led.seen().record.beat == 0
    led.now += 2
    led.lake.reserve("c")
    assert led.seen().record.beat == 1


def test_a_leader_that_is_cut_off_keeps_its_leases_word_and_then_commits_nothing(led: Led) -> None:
    first, second = led.lake.reserve("a"), led.lake.reserve("b")
    back = led.cut_off()
    led.now += LEASE - 1
    assert led.commit(first)
    led.now += 2
    with pytest.raises(LeaseOver, match="must not accept rows") as told:
        led.commit(second)
    assert told.value.hint and told.value.retryable
    with pytest.raises(LeaseOver):
        led.lake.reserve("c")
    back()
    assert led.commit(second) and isinstance(blocks.find_block(led.lake.ledger, second.head), Staged)


def test_a_process_that_stood_still_at_its_commit_point_asks_before_it_commits(led: Led) -> None:
    """It was stopped for long, and another site leads by now."""
    held = led.lake.reserve("a")
    led.now += 10 * LEASE
    other = replace(led.seen().record, term=17, site=1, name="b", address="https://b", before=1)
    assert isinstance(led.arbiter.put(other, over=led.seen()), PutLanded)
    with pytest.raises(NotLeader, match="site b leads in term 17") as told:
        led.commit(held)
    assert "rejoin https://b" in (told.value.hint or "")
    site = led.lake.ledger.query(sites.get)
    assert (site.superseded_term, site.superseded_by) == (17, "https://b")


def test_who_stopped_between_the_look_and_the_transaction_finds_its_lease_over(led: Led) -> None:
    led.lake.reserve("a")
    right = led.lake.ledger.write_right
    right.check()
    led.now += LEASE
    with pytest.raises(LeaseOver):
        right.check()


def test_a_batch_whose_process_stopped_before_the_transaction_of_its_commit_point_is_not_committed(
    led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had looked, and went on when its lease was over: another site may lead by then."""
    held = led.lake.reserve("a")
    check = sequence.check

    def stopped(connection: sa.Connection, witness: Witness) -> None:
        led.now += LEASE
        check(connection, witness)

    monkeypatch.setattr("strandline.ledger.ingest.blocks.sequence.check", stopped)
    with pytest.raises(LeaseOver):
        led.commit(held)
    assert isinstance(blocks.find_block(led.lake.ledger, held.head), Reserved)


def test_a_claim_stops_the_leader_and_is_not_stored_before_that_site_leads(led: Led) -> None:
    held = led.lake.reserve("a")
    claim = replace(led.seen().record, term=17, site=1, name="b", leads=False, before=1)
    assert isinstance(led.arbiter.put(claim, over=led.seen()), PutLanded)
    led.now += LEASE
    with pytest.raises(NotLeader, match="site b takes over in term 17"):
        led.commit(held)
    assert led.lake.ledger.query(sites.get).superseded_term is None


def test_a_superseded_leader_refuses_rows_without_asking_anybody(led: Led) -> None:
    with led.lake.ledger.write() as connection:
        assert sites.supersede(connection, term=17, by="https://b")
    led.cut_off()
    with pytest.raises(NotLeader, match="site https://b leads in term 17") as told:
        led.lake.reserve("a")
    assert "rejoin https://b" in (told.value.hint or "")


def test_several_processes_of_a_site_each_renew_the_lease(led: Led) -> None:
    """What one has put gives the other nothing: nobody knows when it was put."""
    one, other = led.lease(), led.lease()
    one.renew()
    led.now += LEASE - 1
    other.renew()
    led.now += 2
    with pytest.raises(LeaseOver):
        one.check()
    other.check()
    one.obtain()
    one.check()
    assert led.seen().record.beat == 2


def test_a_follower_asks_for_no_lease(led: Led) -> None:
    with led.lake.ledger.write() as connection:
        sites.follow(connection, leader="https://a", token=None, term=1)
    led.lake.ledger.write_right.obtain()
    assert led.arbiter.read() is None


# --- members ---------------------------------------------------------------------------------------------------------


ITS_SITE = Member(1, "its site")


_NO_TABLES = NoTables(StorageError("there is no catalog here"))


def _follower(led: Led, name: str, **options: object) -> followers.RegisteredFollower:
    made, _ = Followers(led.lake.ledger, led.lake.witness, _NO_TABLES, led.lease()).add(name, **options)  # type: ignore[arg-type]
    return made


def _tell(led: Led, found: followers.RegisteredFollower, seal: int, instance: str = "its site") -> None:
    told = followers.Acknowledgement(1, {led.lake.dataset.uuid: Seq(seal)}, {}, instance)
    with led.lake.ledger.write() as connection:
        followers.acknowledge(connection, followers.get(connection, found.name), told)


def _with_sinks_that_wait(led: Led) -> Led:
    known = led.lake.config
    settings = known.settings.model_copy(
        update={"deliver": known.settings.deliver.model_copy(update={"wait_for": "all"})}
    )
    return replace(led, lake=replace(led.lake, config=LakeConfig(settings, known.home)))


def _promise(led: Led, block: Published) -> int:
    with led.lake.ledger.write() as connection:
        made = add_sink(connection, led.lake.dataset)
        connection.exec_driver_sql(f"UPDATE sink SET planned = {block.head.rows.hi} WHERE id = {made.id}")
    return int(block.head.rows.hi)


def test_a_follower_is_a_member_once_it_has_said_how_far_it_is(led: Led) -> None:
    lease = led.lease()
    site_b, _ = _follower(led, "b"), _follower(led, "c")
    led.lake.publish(led.lake.reserve("a"))
    assert lease.update_members() == frozenset()
    assert all(f.waited_for for f in led.lake.ledger.query(followers.list_followers)), "before it is a member"
    _tell(led, site_b, 3)
    assert lease.update_members() == frozenset({1})
    assert led.seen().record.members == {ITS_SITE}
    assert [f.member for f in led.lake.ledger.query(followers.list_followers)] == [True, False]


def test_with_sinks_that_wait_a_member_has_all_that_they_were_promised(led: Led) -> None:
    found = _follower(led, "b")
    promised = _promise(led, led.lake.publish(led.lake.reserve("a")))
    _tell(led, found, promised - 1)
    with led.lake.ledger.write() as connection:
        members.wait_for_all(connection)
    with led.lake.ledger.read_consistent() as connection:
        assert members.choose(connection, (), sinks_wait=True) == frozenset()
        assert members.choose(connection, (), sinks_wait=False) == {ITS_SITE}
    _tell(led, found, promised)
    with led.lake.ledger.read_consistent() as connection:
        assert members.choose(connection, (), sinks_wait=True) == {ITS_SITE}


def test_a_follower_of_some_datasets_is_never_a_member(led: Led) -> None:
    found = _follower(led, "b", only=[led.lake.dataset.name])
    _tell(led, found, 0)
    assert found.site_number is None and led.lease().update_members() == frozenset()


def test_a_follower_is_written_off_in_the_record_before_it_is_removed(led: Led) -> None:
    found = _follower(led, "b")
    _tell(led, found, 0)
    assert led.lease().update_members() == frozenset({1})
    back = led.cut_off()
    with pytest.raises(StorageError):
        Followers(led.lake.ledger, led.lake.witness, _NO_TABLES, led.lease()).remove("b")
    assert [f.name for f in led.lake.ledger.query(followers.list_followers)] == ["b"], "it is waited for as before"
    back()
    Followers(led.lake.ledger, led.lake.witness, _NO_TABLES, led.lease()).remove("b")
    assert led.seen().record.members == frozenset() and led.lake.ledger.query(followers.list_followers) == []


def test_a_site_that_is_made_again_is_no_member_before_it_has_what_was_promised(led: Led) -> None:
    """And the record names the one before until then: the new one finds itself in no record, whatever its number."""
    led = _with_sinks_that_wait(led)
    found = _follower(led, "b")
    promised = _promise(led, led.lake.publish(led.lake.reserve("a")))
    _tell(led, found, promised, "lost")
    assert led.lease().update_members() == frozenset({1})
    _tell(led, found, 0, "made again")
    assert led.seen().record.members == {Member(1, "lost")}
    assert led.lease().update_members() == frozenset() == led.seen().record.members
    _tell(led, found, promised, "made again")
    assert led.lease().update_members() == frozenset({1})
    assert led.seen().record.members == {Member(1, "made again")}


def test_members_that_lack_what_sinks_have_are_none_once_sinks_wait(led: Led) -> None:
    found = _follower(led, "b")
    promised = _promise(led, led.lake.publish(led.lake.reserve("a")))
    _tell(led, found, promised - 1)
    assert led.lease().update_members() == frozenset({1}), "sinks do not wait for followers"
    led = _with_sinks_that_wait(led)
    assert led.lease().update_members() == frozenset()
    _tell(led, found, promised)
    assert led.lease().update_members() == frozenset({1})


def test_a_dataset_that_is_new_to_a_member_leaves_it_one(led: Led) -> None:
    led = _with_sinks_that_wait(led)
    found = _follower(led, "b")
    _tell(led, found, 0)
    assert led.lease().update_members() == frozenset({1})
    led.lake.publish(led.lake.reserve("a"))
    assert led.lease().update_members() == frozenset({1})


REMOVING = ["removal.after_mark", "removal.after_write_off"]


@pytest.mark.parametrize("point", REMOVING)
def test_a_follower_that_is_being_removed_becomes_no_member_again(led: Led, point: str) -> None:
    """A process tends members between the steps of the removal."""
    _tell(led, _follower(led, "b"), 0)
    assert led.lease().update_members() == frozenset({1})
    failpoints.arm(f"{point}=fail")
    with pytest.raises(failpoints.FailpointError):
        Followers(led.lake.ledger, led.lake.witness, _NO_TABLES, led.lease()).remove("b")
    failpoints.arm("")
    assert led.lease().update_members() == frozenset() == led.seen().record.members
    assert [f.name for f in led.lake.ledger.query(followers.list_followers)] == ["b"], "it is waited for as before"
    Followers(led.lake.ledger, led.lake.witness, _NO_TABLES, led.lease()).remove("b")
    assert led.lake.ledger.query(followers.list_followers) == []


def test_who_tends_members_while_a_follower_is_removed_puts_what_the_ledger_has_by_then(
    led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read that the follower may be a member. Before its put the follower is written off."""
    _tell(led, _follower(led, "b"), 0)
    tending, chose = led.lease(), SiteLease._chosen

    def removed_meanwhile(lease: SiteLease, before: frozenset[Member]) -> frozenset[Member]:
        found = chose(lease, before)
        if led.lake.ledger.query(followers.list_followers):
            Followers(led.lake.ledger, led.lake.witness, _NO_TABLES, led.lease()).remove("b")
        return found

    monkeypatch.setattr(SiteLease, "_chosen", removed_meanwhile)
    assert tending.update_members() == frozenset() == led.seen().record.members


def test_a_follower_that_only_the_record_knows_is_written_off_with_any_other(led: Led) -> None:
    """The ledger was lost, and knows neither its number nor its site."""
    led.lease().renew(members=lambda before: before | {ITS_SITE})
    led.lake.ledger.change(followers.add_forgotten, "b")
    Followers(led.lake.ledger, led.lake.witness, _NO_TABLES, led.lease()).remove("b")
    assert led.seen().record.members == frozenset()


def test_site_numbers_are_given_once_and_those_of_removed_followers_last(led: Led) -> None:
    given = [_follower(led, f"f{n}").site_number for n in range(14)]
    assert given == list(range(1, 15))
    Followers(led.lake.ledger, led.lake.witness, _NO_TABLES).remove("f0")
    assert [_follower(led, name).site_number for name in ("x", "y", "z")] == [15, 1, None]


def test_no_number_is_given_while_that_of_a_follower_is_unknown(led: Led) -> None:
    """Of a follower that is known from the tables only, because the ledger was lost."""
    led.lake.ledger.change(followers.add_forgotten, "b")
    for _ in range(2):
        with pytest.raises(RefusedError, match="the number of follower b is unknown"):
            _follower(led, "c")
        [found] = led.lake.ledger.query(followers.list_followers)
        found = _follower(led, "b") if found.token is None else found
    led.lake.ledger.change(followers.acknowledge, found, followers.Acknowledgement(1, {}, {}, "its site", 1))
    assert _follower(led, "c").site_number == 2


def test_a_ledger_from_before_a_follower_was_added_needs_a_resync(led: Led) -> None:
    """Its tables and the arbiter know the follower. Without the resync, nobody would wait for it."""
    before = led.lake.ledger.query(sequence.read).last
    _follower(led, "b")
    assert led.lake.ledger.query(sequence.read).last == led.lake.witness.read().highest == before + 1


@pytest.mark.parametrize("point", ["registration.before_witness", "registration.after_witness"])
def test_a_follower_that_was_added_in_part_is_not_there(led: Led, point: str) -> None:
    failpoints.arm(f"{point}=fail")
    with pytest.raises(failpoints.FailpointError):
        _follower(led, "b")
    failpoints.arm("")
    assert led.lake.ledger.query(followers.list_followers) == []
    with contextlib.suppress(ResyncNeeded):
        _follower(led, "b")
        assert point == "registration.before_witness"


def test_a_site_that_does_not_lead_adds_no_follower(led: Led) -> None:
    with led.lake.ledger.write() as connection:
        sites.follow(connection, leader="https://a", token=None, term=1)
    with pytest.raises(NotLeader, match="follows https://a"):
        _follower(led, "b")


def test_a_promoted_leader_gives_no_numbers_and_followers_bring_their_own(led: Led) -> None:
    led.lake.ledger.change(sites.raise_term, 17)
    found = _follower(led, "c")
    assert found.site_number is None
    for number, is_told in ((1, False), (2, True)):  # 1 is the leader's own
        led.lake.ledger.change(followers.acknowledge, found, followers.Acknowledgement(17, {}, {}, "its site", number))
        found = led.lake.ledger.query(followers.get, "c")
        assert found.site_number == (number if is_told else None)
