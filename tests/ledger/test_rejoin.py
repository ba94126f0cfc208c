"""A leader that was replaced becomes a follower, in one transaction, on both ledgers."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import sqlalchemy as sa

from strandline.core import failpoints
from strandline.core.errors import LedgerUnreadable, NotLeader, RefusedError, ResyncNeeded, TermPassed, WatermarkMoved
from strandline.core.sites.replication import SiteRole
from strandline.core.types import Abandoned, Reserved, ShardId, SnapshotId, Staged
from strandline.ingest.resync.run import resync_ledger
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import blocks, datasets, sequence
from strandline.ledger.receive import batches, ended_batches, tokens
from strandline.ledger.replicate import cuts, followers, following, promotion_claims, promotions, rejoining, sites
from strandline.ledger.replicate.followers import NewFollower
from strandline.ledger.replicate.rejoining import NewLeader
from strandline.replicate.follow.context import FollowContext
from strandline.replicate.follow.follow_datasets import make_dataset
from tests.ledger.conftest import LAKE, LakeState
from tests.ledger.receiving import new_receiving
from tests.ledger.test_cuts import CUT, carry_out, sealed
from tests.ledger.test_following import apply, cut, offer, record, segment

if TYPE_CHECKING:
    from strandline.ingest.context import IngestContext


def new_leader(lake: LakeState, term: int = 17, address: str = "https://new") -> NewLeader:
    return NewLeader(address, "env:TOKEN", term, {lake.dataset.uuid})


def led(lake: LakeState) -> tuple[Reserved, Staged, Reserved]:
    """1..10 is published, 11..15 published and nobody has it, 16..20 staged, 21..25 reserved."""
    lake.publish(lake.reserve("a", 10))
    lake.publish(lake.reserve("b", 5))
    held = lake.reserve("c", 5)
    assert blocks.mark_staged(lake.ledger, lake.witness, held, SnapshotId(5))
    staged = blocks.find_block(lake.ledger, held.head)
    assert isinstance(staged, Staged)
    return held, staged, lake.reserve("d", 5)


def test_a_leader_that_was_replaced_follows_from_its_counter_and_its_open_blocks_stay(lake: LakeState) -> None:
    led(lake)
    before = lake.ledger.query(blocks.open_blocks)
    done = rejoining.become_follower(lake.ledger, lake.witness, new_leader(lake))
    assert (done.term, done.followed, done.open_blocks) == (1, (lake.dataset.name,), 2)
    assert lake.ledger.query(blocks.open_blocks) == before and sealed(lake) == 15
    [followed] = lake.ledger.query(following.list_followed)
    assert (followed.bound, followed.term) == (lake.ledger.query(sequence.read).last, 1)
    here = lake.ledger.query(sites.get)
    assert (here.role, here.leader, here.term) == (SiteRole.FOLLOWER, "https://new", 1)
    assert lake.witness.read().role is SiteRole.FOLLOWER
    with pytest.raises(NotLeader, match="follows https://new"):
        lake.reserve("e", 1)


def test_the_cut_of_the_new_leader_ends_what_was_open_published_and_staged(lake: LakeState) -> None:
    _, staged, reserved = led(lake)
    done = rejoining.become_follower(lake.ledger, lake.witness, new_leader(lake))
    assert done.open_blocks == 2
    with pytest.raises(NotLeader):
        blocks.mark_staged(lake.ledger, lake.witness, reserved, SnapshotId(6))
    bound = lake.ledger.query(sequence.read).last
    items = (cut(CUT, 10), segment(CUT + 1, CUT + 3))
    record(lake, offer(lake.dataset, bound, CUT + 3, *items, term=17))
    assert sealed(lake) == 15, "recording settles nothing"
    carry_out(lake)
    assert sealed(lake) == CUT
    for one in (staged.head, reserved.head):
        found = blocks.find_block(lake.ledger, one)
        assert isinstance(found, Abandoned) and found.reason == f"cut:{CUT}"
    assert not blocks.mark_published(lake.ledger, staged, row_count=5, snapshot=SnapshotId(5))


def test_a_batch_that_was_sent_again_to_the_new_leader_is_known_by_its_id_after_the_cut(lake: LakeState) -> None:
    """Also at a site that has it from when it led, under numbers that are cut out."""
    led(lake)
    rejoining.become_follower(lake.ledger, lake.witness, new_leader(lake))
    bound = lake.ledger.query(sequence.read).last
    again = [segment(CUT + n * 10, CUT + n * 10 + 4, batch_id=name) for n, name in ((1, "b"), (2, "c"), (3, "d"))]
    record(lake, offer(lake.dataset, bound, CUT + 24, cut(CUT, 10), again[0], again[1], term=17))
    record(lake, offer(lake.dataset, CUT + 24, CUT + 34, again[2], term=17))  # in an offer of its own
    with lake.ledger.read() as connection:
        known = blocks.of_batch(connection, lake.dataset.id, "b")
        assert known is not None and known.head.rows.lo == 11
    carry_out(lake)
    with lake.ledger.read() as connection:
        for item in again:
            found = blocks.of_batch(connection, lake.dataset.id, item.batch_id or "")
            assert found is not None and found.head.rows == item.numbers
        first = blocks.of_batch(connection, lake.dataset.id, "a")
        assert first is not None and first.head.rows.lo == 1


def test_a_dataset_that_the_new_leader_has_not_stays_and_is_not_followed(lake: LakeState) -> None:
    with lake.ledger.write() as connection:
        datasets.add(connection, name="default.other", table_uuid="uuid-of-other")
    done = rejoining.become_follower(lake.ledger, lake.witness, new_leader(lake))
    assert done.not_at_the_leader == ("default.other",)
    assert [f.dataset.name for f in lake.ledger.query(following.list_followed)] == [lake.dataset.name]


def test_a_dataset_whose_shards_another_one_has_here_is_refused_in_words(lake: LakeState) -> None:
    """Leaders of an older version may have given two datasets the same ones."""
    lake.add_dataset("default.other")
    with lake.ledger.write() as connection, pytest.raises(RefusedError, match="from 1 on, belong to default"):
        datasets.add(connection, name="default.new", table_uuid="uuid", first_shard=ShardId(1), shards=2)


def test_only_what_the_leader_has_never_heard_of_is_only_here(lake: LakeState) -> None:
    other = lake.add_dataset("default.other")
    assert not lake.ledger.query(sites.is_only_here, other.id), "a leader has its own datasets"
    rejoining.become_follower(lake.ledger, lake.witness, new_leader(lake))
    assert lake.ledger.query(sites.is_only_here, other.id)
    assert not lake.ledger.query(sites.is_only_here, lake.dataset.id)


def test_a_dataset_that_a_leader_between_did_not_have_is_followed_on_from_where_it_was(lake: LakeState) -> None:
    """Its items were recorded before: offered from the beginning, none could be recorded, of no dataset."""
    with lake.ledger.write() as connection:
        sites.follow(connection, leader="https://first", token=None, term=1)
        following.follow_dataset(connection, lake.dataset.id)
    record(lake, offer(lake.dataset, 0, 20, segment(1, 10), segment(11, 20)))
    apply(lake, 1)
    [known] = lake.ledger.query(following.list_followed)
    lake.ledger.change(following.leave, known)
    terms = offer(lake.dataset, 0, 0).dataset
    view = SimpleNamespace(main=1, uuid=lake.dataset.table_uuid)
    work = SimpleNamespace(tables=SimpleNamespace(view=lambda name: view))
    parts: Any = SimpleNamespace(catalog=SimpleNamespace(exists=lambda name: True), work=work)
    since = lake.ledger.query(sites.get).changed_at
    context = FollowContext(LAKE, lake.config, lake.ledger, lake.witness, cast("Any", None), since, parts)
    assert make_dataset(context, terms, 32) == lake.dataset
    [again] = lake.ledger.query(following.list_followed)
    assert (again.bound, again.term) == (20, 1)
    later = 32 * 2**40
    record(lake, offer(lake.dataset, 20, later, cut(later, 20, term=32), term=32))
    assert [i.head.rows.lo for i in lake.ledger.query(following.open_items)] == [11, later]


def test_its_own_followers_hold_nothing_any_more(lake: LakeState) -> None:
    with lake.ledger.write() as connection:
        token, _ = tokens.create(connection, "follower-west", None)
        followers.add(connection, NewFollower("west", token.id))
    rejoining.become_follower(lake.ledger, lake.witness, new_leader(lake))
    assert lake.ledger.query(followers.list_followers) == []


def test_a_site_that_follows_receives_nothing(lake: LakeState) -> None:
    rejoining.become_follower(lake.ledger, lake.witness, new_leader(lake))
    with pytest.raises(sa.exc.IntegrityError, match="only_a_leader_receives"), lake.ledger.write() as connection:
        connection.exec_driver_sql(
            "INSERT INTO received (dataset_id, rows, digest, size, spool_bytes, received_at) "
            "VALUES (1, 0, 'd', 1, 0, 1)"
        )


@pytest.mark.parametrize("point", ["rejoin.before_witness", "rejoin.after_witness", "rejoin.after_commit"])
def test_a_rejoin_that_dies_goes_on(lake: LakeState, point: str) -> None:
    led(lake)
    failpoints.arm(f"{point}=fail")
    with pytest.raises(failpoints.FailpointError):
        rejoining.become_follower(lake.ledger, lake.witness, new_leader(lake))
    failpoints.arm("")
    follows = point == "rejoin.after_commit"
    assert lake.ledger.query(sites.get).follows == follows
    assert (lake.witness.read().role is SiteRole.FOLLOWER) == (point != "rejoin.before_witness")
    if follows:
        rejoining.follow_another(lake.ledger, new_leader(lake))
    else:
        rejoining.become_follower(lake.ledger, lake.witness, new_leader(lake))
    [followed] = lake.ledger.query(following.list_followed)
    assert followed.bound == lake.witness.read().highest == lake.ledger.query(sequence.read).last


def restore(lake: LakeState, backup: Path) -> None:
    """As when a person puts a copy of the ledger back while a process runs."""
    assert lake.ledger.path is not None
    for suffix in ("-wal", "-shm"):
        lake.ledger.path.with_name(lake.ledger.path.name + suffix).unlink(missing_ok=True)
    os.replace(backup, lake.ledger.path)


def copied(lake: LakeState, folder: Path) -> Path:
    if lake.ledger.path is None:
        pytest.skip("a PostgreSQL ledger is not restored under a process that runs")
    with sqlite3.connect(lake.ledger.path) as here, sqlite3.connect(folder / "copy.db") as there:
        here.backup(there)
    return folder / "copy.db"


def resync(lake: LakeState) -> None:
    """As a process does that has opened the ledger long ago. It refuses before it reads a table."""
    resync_ledger(cast("IngestContext", SimpleNamespace(ledger=lake.ledger, witness=lake.witness)))


def test_a_running_process_does_not_lead_with_a_ledger_from_before_its_site_followed(
    lake: LakeState, tmp_path: Path
) -> None:
    led(lake)
    backup = copied(lake, tmp_path)
    rejoining.become_follower(lake.ledger, lake.witness, new_leader(lake))
    restore(lake, backup)
    assert not lake.ledger.query(sites.get).follows
    with pytest.raises(ResyncNeeded), lake.ledger.write() as connection:
        sequence.check(connection, lake.witness)
    with pytest.raises(LedgerUnreadable, match="the witness says that this site follows another one"):
        resync(lake)


def test_a_running_process_does_not_follow_with_a_ledger_from_before_its_site_was_promoted(
    lake: LakeState, tmp_path: Path
) -> None:
    rejoining.become_follower(lake.ledger, lake.witness, new_leader(lake))
    backup = copied(lake, tmp_path)
    promotion_claims.claim(lake.ledger, 32, of=promotion_claims.begin(lake.ledger, 17))
    promotions.lead(lake.ledger, lake.witness, 32, prepared=(), lost=(), fenced={})
    restore(lake, backup)
    assert lake.ledger.query(sites.get).follows
    with pytest.raises(LedgerUnreadable, match="the witness says that this site leads in term 32"):
        resync(lake)


def test_a_follower_is_pointed_to_a_leader_of_no_lower_term(lake: LakeState) -> None:
    rejoining.become_follower(lake.ledger, lake.witness, new_leader(lake))
    bound = lake.ledger.query(sequence.read).last
    record(lake, offer(lake.dataset, bound, CUT, cut(CUT, 0), term=17))
    assert lake.ledger.query(sites.get).term == 17
    rejoining.follow_another(lake.ledger, new_leader(lake, 33, "https://newest"))
    assert lake.ledger.query(sites.get).leader == "https://newest"
    with pytest.raises(TermPassed):
        rejoining.follow_another(lake.ledger, new_leader(lake, 1, "https://old"))
    assert lake.ledger.query(sites.get).leader == "https://newest"


def test_a_site_that_led_twice_begins_at_its_counter_again(lake: LakeState) -> None:
    led(lake)
    rejoining.become_follower(lake.ledger, lake.witness, new_leader(lake))
    bound = lake.ledger.query(sequence.read).last
    record(lake, offer(lake.dataset, bound, CUT, cut(CUT, 10), term=17))
    carry_out(lake)
    assert lake.ledger.query(cuts.open_cuts, lake.dataset.id) == []
    assert lake.ledger.query(sites.get).own_number == 0, "the first leader keeps its number, and can lead again"
    promotion_claims.claim(lake.ledger, 32, of=promotion_claims.begin(lake.ledger, 17))
    promotions.lead(lake.ledger, lake.witness, 32, prepared=(), lost=(), fenced={})
    lake.publish(lake.reserve("x", 5))
    rejoining.become_follower(lake.ledger, lake.witness, new_leader(lake, 33))
    [followed] = lake.ledger.query(following.list_followed)
    assert (followed.bound, followed.term) == (lake.ledger.query(sequence.read).last, 32)


def test_bodies_from_before_are_not_taken_in_when_the_site_leads_again(lake: LakeState) -> None:
    """Their files may have been ingested at the other leader. A person decides, body by body."""
    receiving = new_receiving(lake)
    whole = replace(lake, dataset=receiving.dataset)
    receiving.accept("a", "b", "c")
    batch = receiving.form()
    assert batch is not None
    receiving.accept("d")
    under_way = receiving.form()
    assert under_way is not None
    whole.reserve(under_way.batch_id)  # the cut abandons its block
    receiving.accept("e")
    rejoining.become_follower(lake.ledger, lake.witness, new_leader(whole))
    bound = lake.ledger.query(sequence.read).last
    record(lake, offer(whole.dataset, bound, CUT, cut(CUT, 0), term=17))
    carry_out(whole)
    promotion_claims.claim(lake.ledger, 32, of=promotion_claims.begin(lake.ledger, 17))
    led = promotions.lead(lake.ledger, lake.witness, 32, prepared=(), lost=(), fenced={})
    assert led.bodies_aside == ((whole.dataset.name, 5),)
    with lake.ledger.read() as connection:
        aside = ended_batches.list_set_aside(connection, whole.dataset.name)
        assert [(b.key, b.reason) for b in aside] == [(key, promotions.SET_ASIDE_REASON) for key in "abcde"]
        assert batches.due(connection, rows_max=1, older_than=utc_now()) == []
    assert receiving.form() is None and receiving.take() == []
    ended_batches.discard(lake.ledger, [aside[0].id])
    ended_batches.replay(lake.ledger, [aside[1].id])
    assert [b.bodies[0].id for b in receiving.take()] == [aside[1].id]


def test_a_leader_that_hears_of_a_higher_term_takes_nothing_more_and_says_what_to_do(lake: LakeState) -> None:
    _, _, reserved = led(lake)
    with lake.ledger.write() as connection:
        assert sites.supersede(connection, term=17, by="https://new")
        assert not sites.supersede(connection, term=17, by="https://another")
        assert not sites.supersede(connection, term=1, by="https://another")
    said = r"this site led in term 1; site https://new leads in term 17"
    with pytest.raises(NotLeader, match=said) as refused:
        lake.reserve("e", 1)
    assert "strandline rejoin https://new" in str(refused.value.hint)
    with pytest.raises(NotLeader, match=said):
        blocks.mark_staged(lake.ledger, lake.witness, reserved, SnapshotId(6))
    with lake.ledger.read() as connection, pytest.raises(NotLeader, match=said):
        sites.check_offers(connection)
    rejoining.become_follower(lake.ledger, lake.witness, new_leader(lake))
    assert lake.ledger.query(sites.get).superseded_term is None


def test_what_was_staged_in_a_dataset_that_the_other_leader_never_had_is_published_before_the_site_leads_again(
    lake: LakeState,
) -> None:
    """`rejoin` leaves it as it is, and nobody follows that dataset."""
    mine = lake.add_dataset("default.mine")
    held = lake.reserve("m", 5, dataset=mine)
    assert blocks.mark_staged(lake.ledger, lake.witness, held, SnapshotId(5))
    rejoining.become_follower(lake.ledger, lake.witness, new_leader(lake))
    promotion_claims.claim(lake.ledger, 32, of=promotion_claims.begin(lake.ledger, 17))
    with lake.ledger.read_consistent() as connection:
        [(dataset, staged)] = promotions.read(connection).staged
    assert (dataset, staged.head) == (mine, held.head)
    nothing: dict[str, Any] = {"prepared": (), "lost": (), "fenced": {}}
    with pytest.raises(WatermarkMoved, match="was staged meanwhile"):
        promotions.lead(lake.ledger, lake.witness, 32, **nothing)
    assert blocks.mark_published(lake.ledger, staged, row_count=5, snapshot=SnapshotId(5))
    assert (
        dict(promotions.lead(lake.ledger, lake.witness, 32, **nothing).cuts)["default.mine"].cut.above
        == held.head.rows.hi
    )


def heard(lake: LakeState) -> int:
    with lake.ledger.read_consistent() as connection:
        return promotions.read(connection).highest_known_term


def test_the_highest_term_that_a_site_has_heard_of_stays_known(lake: LakeState) -> None:
    """Without an arbiter nothing else keeps it from leading in a lower one."""
    assert heard(lake) == 1
    with lake.ledger.write() as connection:
        assert sites.supersede(connection, term=33, by=None)
    assert heard(lake) == 33
    rejoining.become_follower(lake.ledger, lake.witness, new_leader(lake, 17))
    assert (lake.ledger.query(sites.get).term, heard(lake)) == (1, 33)
    rejoining.follow_another(lake.ledger, new_leader(lake, 18, "https://another"))
    assert heard(lake) == 33
    rejoining.follow_another(lake.ledger, new_leader(lake, 49, "https://another"))
    assert heard(lake) == 49, "the same place, and a later term"
