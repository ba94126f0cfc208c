"""The transaction that makes a follower the leader, on both ledgers, and what comes before it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest

from strandline.core import failpoints
from strandline.core.errors import (
    BlockLost,
    FailedError,
    LedgerUnreadable,
    NotLeader,
    RefusedError,
    ResyncNeeded,
    WatermarkMoved,
)
from strandline.core.records.audit_events import Event
from strandline.core.sites.arbiter import LeaderRecord, Member
from strandline.core.sites.replication import LaneDefinition, SinkDefinition, SiteRole, TakeoverCut
from strandline.core.types import (
    Abandoned,
    BlockId,
    DatasetId,
    DatasetUuid,
    ItemKind,
    Published,
    Reserved,
    Seq,
    SeqRange,
    SnapshotId,
)
from strandline.ledger import audit
from strandline.ledger.deliver import lanes, sinks
from strandline.ledger.ingest import blocks, datasets, purge_items, sequence
from strandline.ledger.replicate import (
    cuts,
    following,
    offers,
    promotion_claims,
    promotion_failures,
    promotions,
    sites,
    table_epochs,
)
from strandline.ledger.replicate.cuts import PreparedCut
from strandline.ledger.replicate.promotions import Lack, Led
from strandline.ledger.witness import WitnessRecord
from strandline.replicate.arbiter.arbiter import Arbiter, PutLanded
from strandline.replicate.arbiter.folder import FolderCell
from strandline.replicate.follow import carry_out_purge
from strandline.replicate.follow.leader_sinks import LeaderSinks
from strandline.replicate.take_over.promote import Promotion
from strandline.replicate.take_over.promote_plan import Begin, Refuse
from tests.ledger.conftest import LAKE, LakeState
from tests.ledger.test_following import apply, cut, follower, offer, purge, record, segment, sharded, take

if TYPE_CHECKING:
    from strandline.replicate.follow.context import FollowContext

__all__ = ["follower"]

TERM = 18  # of site 2
FIRST = TERM * 2**40


@pytest.fixture
def behind_its_leader(follower: LakeState) -> LakeState:
    """Of one dataset 1..10 is applied, 11..20 recorded and purge 21 recorded; of the other, the faster shard has
    31..40, and the slower one lacks 22..30."""
    other = sharded(follower)
    first, second = other.first_shard, other.first_shard + 1
    record(follower, offer(follower.dataset, 0, 21, segment(1, 10), segment(11, 20), purge(21, 1, 5)))
    record(follower, offer(other, 0, 40, segment(22, 30, first), segment(31, 40, second)))
    apply(follower, 1)
    apply(follower, 31)
    with follower.ledger.write() as connection:
        sites.take_number(connection, 2)
    return follower


class AllTablesGood:
    def check(self) -> None:
        pass


def claimed(lake: LakeState) -> LakeState:
    promotion_claims.claim(lake.ledger, TERM, of=promotion_claims.begin(lake.ledger, 1))
    return lake


def claim_of(lake: LakeState) -> str | None:
    with lake.ledger.read_consistent() as connection:
        return promotions.read(connection).claim


def fences(lake: LakeState) -> dict[DatasetId, int]:
    """As when the epochs of the tables were raised."""
    with lake.ledger.read_consistent() as connection:
        epoch = sequence.read(connection).epoch + 1
        return {d.id: epoch for d in promotions.read(connection).purged}


def lead(lake: LakeState, prepared: tuple[PreparedCut, ...] = (), lost: tuple[BlockId, ...] = ()) -> Led:
    return promotions.lead(
        lake.ledger, lake.witness, TERM, prepared=prepared, lost=lost, fenced=fences(lake),
    )  # fmt: skip


def test_the_sinks_that_the_leader_told_of_are_the_new_leaders(behind_its_leader: LakeState) -> None:
    lake = claimed(behind_its_leader)
    told = SinkDefinition(
        lake.dataset.uuid, "archive", "files", "instance-1", 2, (("path", "out"),), "file:///out", Seq(3), Seq(9),
        None, None, False, (LaneDefinition("", Seq(7), None),),
    )  # fmt: skip
    LeaderSinks(lake.ledger).store((told, replace(told, name="far", dataset=DatasetUuid("elsewhere"))), "v1")
    assert lake.ledger.query(sinks.list_sinks) == [] == lake.ledger.query(sinks.due), "a follower has none"
    assert lead(lake).sinks.left == ("far",), "its dataset is not here"
    [work] = lake.ledger.query(sinks.due)
    record = work.sink
    assert (record.name, record.instance, record.generation, record.start, record.planned) == (
        "archive", "instance-1", 2, 3, 9,
    )  # fmt: skip
    assert [lane.mark for lane in lake.ledger.query(lanes.unchecked, record)] == [7] and work.behind


def test_one_transaction_makes_the_site_the_leader_with_a_cut_for_each_dataset(behind_its_leader: LakeState) -> None:
    lake, other = claimed(behind_its_leader), sharded(behind_its_leader)
    led = lead(lake)
    site = lake.ledger.query(sites.get)
    assert (site.role, site.term, site.leader, site.promoting_term, site.claimed_term) == (
        SiteRole.LEADER, TERM, None, None, None,
    )  # fmt: skip
    assert lake.ledger.query(sequence.read).last == FIRST + 1
    assert lake.witness.read() == WitnessRecord(LAKE, FIRST + 1, SiteRole.LEADER, TERM)
    cuts = {name: (found.number, found.cut) for name, found in led.cuts}
    assert cuts == {
        lake.dataset.name: (FIRST, TakeoverCut(TERM, Seq(10), (), 1)),
        other.name: (FIRST + 1, TakeoverCut(TERM, Seq(0), (SeqRange(Seq(31), Seq(40)),), 1)),
    }
    assert lake.sealed() == FIRST and lake.sealed(other) == FIRST + 1
    assert lake.ledger.query(following.list_followed) == []


def test_a_dataset_of_the_new_leader_has_shards_that_no_leader_before_can_have_given(
    behind_its_leader: LakeState,
) -> None:
    """The old leader may have made a dataset that never came here. It still has it when it follows."""
    lake = claimed(behind_its_leader)
    with lake.ledger.read() as connection:
        assert datasets.next_shard(connection) == 3
    lead(lake)
    assert [lake.add_dataset(name).first_shard for name in ("late", "later")] == [TERM << 20, (TERM << 20) + 1]


def test_by_force_it_says_what_the_site_lacks_as_far_as_it_was_told(behind_its_leader: LakeState) -> None:
    lake = behind_its_leader
    told = SinkDefinition(
        lake.dataset.uuid, "archive", "files", "instance-1", 1, (("path", "out"),), "file:///out", None, Seq(15),
        None, None, False, (LaneDefinition("", Seq(15), None),), Seq(15),
    )  # fmt: skip
    LeaderSinks(lake.ledger).store((told,), "v1")
    promotion_claims.claim(lake.ledger, TERM, of=promotion_claims.begin(lake.ledger, 1, by_force=True))
    with lake.ledger.read_consistent() as connection:
        standing = promotions.read(connection)
    assert standing.by_force and standing.answered_at is None
    lacks = {one.dataset: one for one in standing.lacks}
    assert lacks[lake.dataset.name] == Lack(lake.dataset.name, Seq(10), Seq(21), (("archive", Seq(15)),))
    led = lead(lake)
    assert led.lacks == standing.lacks
    with lake.ledger.read() as connection:
        said = audit.newest(connection, Event.SITE_PROMOTED)
    assert said is not None and said.detail["by_force"] and said.detail["lacks"][0]["sinks"] == {"archive": 15}


def test_a_promotion_that_is_not_by_force_lacks_nothing_that_it_has_to_say(behind_its_leader: LakeState) -> None:
    assert lead(claimed(behind_its_leader)).lacks is None


def test_numbers_of_a_leader_that_was_left_out_are_known_by_their_term(behind_its_leader: LakeState) -> None:
    """Term 17 led between: this site has never heard of it, and takes over by force."""
    lake = behind_its_leader
    promotion_claims.claim(lake.ledger, TERM, of=promotion_claims.begin(lake.ledger, 17, by_force=True))
    lead(lake)

    def left_out(*found: int) -> int | None:
        return lake.ledger.query(cuts.left_out_term, lake.dataset.id, [Seq(n) for n in found])

    assert left_out(1, 10, FIRST, FIRST + 5) is None
    assert left_out(1, 17 * 2**40 + 5, FIRST) == 17


def test_what_never_came_is_given_up_and_named(behind_its_leader: LakeState) -> None:
    lake = claimed(behind_its_leader)
    with lake.ledger.read_consistent() as connection:
        foreseen = promotions.read(connection).given_up
    led = lead(lake)
    assert led.given_up == foreseen
    assert [(g.numbers.lo, g.kind.value, g.rows) for g in led.given_up] == [
        (11, "segment", 10), (21, "purge", None), (22, "segment", 9),
    ]  # fmt: skip
    with lake.ledger.read() as connection:
        gone = [b for b in (blocks.get(connection, BlockId(n)) for n in range(1, 9)) if isinstance(b, Abandoned)]
    assert {b.reason for b in gone} == {f"cut:{FIRST}", f"cut:{FIRST + 1}"} and len(gone) == 3


def test_a_purge_is_given_up_only_when_whoever_carries_it_out_is_fenced_off(behind_its_leader: LakeState) -> None:
    held, lake = take_purge(behind_its_leader), behind_its_leader
    assert record_purge(lake, held) == 1, "it goes on, with this epoch"
    claimed(lake)
    with pytest.raises(WatermarkMoved, match="about to lead in term 18"):
        record_purge(lake, held)
    for fenced in ({}, {lake.dataset.id: 1}):
        with pytest.raises(WatermarkMoved, match="the epoch was raised, or a purge was recorded, meanwhile"):
            promotions.lead(lake.ledger, lake.witness, TERM, prepared=(), lost=(), fenced=fenced)
    assert fences(lake) == {lake.dataset.id: 2}
    lead(lake)
    assert lake.ledger.query(sequence.read).epoch == 2, "the new leader publishes with the epoch of its tables"
    with pytest.raises(BlockLost, match="another process has purge 21, or it was given up"):
        record_purge(lake, held)


def test_a_site_leads_in_a_higher_epoch_than_any_that_a_paused_process_can_raise(follower: LakeState) -> None:
    """It has read the ledger's epoch, and raises that of a table by one whenever it goes on (docs/adr/0089)."""
    follower.ledger.change(sites.take_number, 2)
    claimed(follower)
    before = follower.ledger.query(sequence.read).epoch
    assert lead(follower).given_up == () and fences(follower) == {}
    assert follower.ledger.query(sequence.read).epoch == before + 1


def test_a_paused_promotion_raises_no_epoch_once_another_process_has_led_or_ended_it(
    behind_its_leader: LakeState,
) -> None:
    lake = claimed(behind_its_leader)
    claim = claim_of(lake)
    with lake.ledger.read() as connection:
        promotion_claims.check_claimed(connection, TERM, of=claim)
    promotion_claims.end(lake.ledger, lake.witness, "a person has chosen another site", of=claim)
    claimed(lake)  # alone, it takes the same term
    with lake.ledger.read() as connection, pytest.raises(WatermarkMoved, match="ended or finished"):
        promotion_claims.check_claimed(connection, TERM, of=claim)
    lead(lake)
    with lake.ledger.read() as connection, pytest.raises(WatermarkMoved, match="ended or finished"):
        promotion_claims.check_claimed(connection, TERM, of=claim_of(lake))


def test_a_follower_records_an_epoch_that_nobody_recorded_and_a_leader_does_not(behind_its_leader: LakeState) -> None:
    lake = behind_its_leader
    before = lake.ledger.query(sequence.read)
    with lake.ledger.write() as connection:
        table_epochs.record(connection, lake.witness, lake.dataset, before.epoch)
    assert lake.ledger.query(sequence.read) == before
    with lake.ledger.write() as connection:
        table_epochs.record(connection, lake.witness, lake.dataset, before.epoch + 1)
    assert lake.ledger.query(sequence.read) == replace(before, epoch=before.epoch + 2)
    lead(claimed(lake))
    last = lake.ledger.query(sequence.read)
    with lake.ledger.write() as connection:
        table_epochs.record(connection, lake.witness, lake.dataset, last.epoch + 1)
    assert lake.ledger.query(sequence.read) == last


def test_a_follower_behind_its_witness_records_no_epoch_another_ledger_may_have_raised_it(follower: LakeState) -> None:
    found = follower.ledger.query(sequence.read)
    follower.witness.raise_to(found.last + 1, expected=found.last)
    with pytest.raises(ResyncNeeded), follower.ledger.write() as connection:
        table_epochs.record(connection, follower.witness, follower.dataset, found.epoch + 1)


def test_followers_delete_what_a_purge_that_was_given_up_has_deleted_already(behind_its_leader: LakeState) -> None:
    lake = behind_its_leader
    record_purge(lake, take_purge(lake))  # and the process died, before the delete or after it
    claimed(lake)
    [given_up] = [g for g in lead(lake).given_up if g.kind is ItemKind.PURGE]
    assert given_up.numbers.lo == 21, "others may have carried it out, or nobody"
    with lake.ledger.read_consistent() as connection:
        state = offers.read_state(connection, {lake.dataset.uuid: Seq(21)}, items_max=10)
    [news] = [n for n in state.news if n.dataset.id == lake.dataset.id]
    assert [(b.rows.lo, b.item, b.ranges) for b in news.blocks] == [
        (FIRST, ItemKind.CUT, ()), (FIRST + 2, ItemKind.PURGE, (SeqRange(Seq(1), Seq(5)),)),
    ]  # fmt: skip
    assert lake.ledger.query(sequence.read).last == FIRST + 2 == lake.witness.read().highest
    with lake.ledger.read() as connection:
        assert [p.number for p in cuts.purges_given_up(connection, [lake.dataset])] == [21], (
            "it does not make up for it"
        )
    with lake.ledger.write() as connection:
        purge_items.take_number(connection, lake.witness, lake.dataset.id, [SeqRange(Seq(1), Seq(5))])
    with lake.ledger.read() as connection:
        assert cuts.purges_given_up(connection, [lake.dataset]) == []


def take_purge(lake: LakeState) -> Reserved:
    apply(lake, 11)
    return take(lake, 21)


def record_purge(lake: LakeState, held: Reserved) -> int:
    context = cast("FollowContext", SimpleNamespace(ledger=lake.ledger, witness=lake.witness))
    return carry_out_purge._record(context, lake.dataset, held, SeqRange(Seq(1), Seq(5)), 5)


def test_a_purge_of_a_site_that_follows_by_now_takes_none_of_its_leaders_numbers(follower: LakeState) -> None:
    with pytest.raises(NotLeader, match="became a follower of"), follower.ledger.write() as connection:
        purge_items.take_number(connection, follower.witness, follower.dataset.id, [SeqRange(Seq(1), Seq(5))])


def test_followers_of_the_new_leader_get_the_cut_as_an_item(behind_its_leader: LakeState) -> None:
    lake = claimed(behind_its_leader)
    lead(lake)
    with lake.ledger.read_consistent() as connection:
        state = offers.read_state(connection, {lake.dataset.uuid: Seq(20)}, items_max=10)
    assert state.term == TERM
    [news] = [n for n in state.news if n.dataset.id == lake.dataset.id]
    assert [b.rows for b in news.blocks] == [SeqRange(Seq(FIRST), Seq(FIRST))]


def test_the_new_leader_goes_on_behind_its_cuts(behind_its_leader: LakeState) -> None:
    lake = claimed(behind_its_leader)
    with pytest.raises(NotLeader):
        lake.reserve("too early")
    lead(lake)
    assert lake.publish(lake.reserve("mine")).head.rows.lo == FIRST + 2


def test_a_batch_that_was_applied_is_known_and_one_that_was_given_up_is_not(behind_its_leader: LakeState) -> None:
    lake = claimed(behind_its_leader)
    lead(lake)
    known, new = blocks.reserve(
        lake.ledger, lake.witness, blocks.NewBlock(lake.dataset.id, 10, "batch-1", None), lease_seconds=60
    )
    assert isinstance(known, Published) and not new
    assert lake.reserve("batch-11").head.rows.lo > FIRST


def test_a_site_that_claims_a_term_records_and_commits_nothing_of_its_leader(behind_its_leader: LakeState) -> None:
    held = take(behind_its_leader, 11)
    lake = claimed(behind_its_leader)
    with pytest.raises(WatermarkMoved, match="about to lead in term 18"):
        blocks.mark_staged(lake.ledger, lake.witness, held, SnapshotId(7))
    with pytest.raises(RefusedError, match=r"being promoted \(term 18\)"):
        record(lake, offer(lake.dataset, 21, 30, segment(22, 30)))
    promotion_claims.end(lake.ledger, lake.witness, "another site was faster", of=claim_of(lake))
    assert blocks.mark_staged(lake.ledger, lake.witness, held, SnapshotId(7))
    record(lake, offer(lake.dataset, 21, 50, segment(41, 50)))


def test_a_block_that_was_staged_meanwhile_has_to_be_published_first(behind_its_leader: LakeState) -> None:
    held = take(behind_its_leader, 11)
    assert blocks.mark_staged(behind_its_leader.ledger, behind_its_leader.witness, held, SnapshotId(7))
    lake = claimed(behind_its_leader)
    before = lake.witness.read()
    with pytest.raises(WatermarkMoved, match="was staged"):
        lead(lake)
    assert lake.ledger.query(sites.get).follows and lake.witness.read() == before
    led = lead(lake, lost=(held.head.id,))  # its branch is gone, and so are its rows
    assert 11 in [g.numbers.lo for g in led.given_up]


def test_recorded_cuts_are_settled_in_the_same_transaction(behind_its_leader: LakeState) -> None:
    """Of a leader in term 17 that came between: its cut gives up 11..20, and the site lacks what that leader had."""
    lake, other = behind_its_leader, sharded(behind_its_leader)
    before = 17 * 2**40
    record(lake, offer(lake.dataset, 21, before, cut(before, 10), term=17))
    record(lake, offer(other, 40, before + 1, cut(before + 1, 0, (31, 40)), term=17))
    promotion_claims.claim(lake.ledger, TERM, of=promotion_claims.begin(lake.ledger, 17))
    with pytest.raises(WatermarkMoved, match="a cut was recorded"):
        lead(lake)
    with lake.ledger.read_consistent() as connection:
        standing = promotions.read(connection)
    assert standing.given_up == ()  # whatever is open, these cuts cut out
    epoch = lake.ledger.query(sequence.read).epoch + 1
    prepared = tuple(PreparedCut(d, c.block, c.at, epoch) for d, c in standing.cuts)
    led = lead(lake, prepared)
    assert led.given_up == ()
    assert [(c.cut.above, c.cut.keeps) for _, c in led.cuts] == [
        (10, ()), (0, (SeqRange(Seq(31), Seq(40)),)),
    ]  # fmt: skip
    assert lake.sealed() == FIRST and lake.ledger.query(sequence.read).epoch == epoch


def test_what_is_staged_and_cut_out_is_not_published_and_does_not_keep_the_site_from_leading(
    behind_its_leader: LakeState,
) -> None:
    lake, other, before = behind_its_leader, sharded(behind_its_leader), 17 * 2**40
    held = take(lake, 11)
    assert blocks.mark_staged(lake.ledger, lake.witness, held, SnapshotId(7))
    with lake.ledger.read_consistent() as connection:
        assert [b.head.id for _, b in promotions.read(connection).staged] == [held.head.id]
    record(lake, offer(lake.dataset, 21, before, cut(before, 10), term=17))
    record(lake, offer(other, 40, before + 1, cut(before + 1, 0, (31, 40)), term=17))
    promotion_claims.claim(lake.ledger, TERM, of=promotion_claims.begin(lake.ledger, 17))
    with lake.ledger.read_consistent() as connection:
        standing = promotions.read(connection)
    assert standing.staged == () and standing.claim
    epoch = lake.ledger.query(sequence.read).epoch + 1
    lead(lake, tuple(PreparedCut(d, c.block, c.at, epoch) for d, c in standing.cuts))
    found = blocks.find_block(lake.ledger, held.head)
    assert isinstance(found, Abandoned) and found.reason == f"cut:{before}"
    assert lake.sealed() == FIRST


def test_a_leader_that_has_used_up_the_numbers_of_its_term_says_so(behind_its_leader: LakeState) -> None:
    lake = claimed(behind_its_leader)
    lead(lake)
    last = FIRST + 2**40 - 4
    lake.witness.raise_to(last, expected=lake.witness.read().highest)
    with lake.ledger.write() as connection:
        sequence.move(connection, last=last, epoch=sequence.read(connection).epoch)
    assert lake.reserve("the last", 3).head.rows.hi == FIRST + 2**40 - 1
    with pytest.raises(RefusedError, match="used up the sequence numbers of term 18"):
        lake.reserve("one too many", 1)


def test_a_dataset_whose_ledger_is_behind_has_no_seal_and_so_no_cut(behind_its_leader: LakeState) -> None:
    lake = claimed(behind_its_leader)
    with lake.ledger.write() as connection:
        following.fall_behind(connection, lake.dataset.id, Seq(99))
    with pytest.raises(WatermarkMoved, match="behind"):
        lead(lake)


def test_a_ledger_that_is_behind_its_witness_does_not_lead(behind_its_leader: LakeState) -> None:
    lake = claimed(behind_its_leader)
    highest = lake.witness.read().highest
    lake.witness.raise_to(highest + 5, expected=highest)
    with pytest.raises(ResyncNeeded):
        lead(lake)


def test_a_claim_that_was_given_up_does_not_lead(behind_its_leader: LakeState) -> None:
    lake = claimed(behind_its_leader)
    promotion_claims.end(lake.ledger, lake.witness, "another site was faster", of=claim_of(lake))
    with pytest.raises(WatermarkMoved, match="has abandoned the promotion to term 18"):
        lead(lake)
    assert lake.ledger.query(sites.get).follows


def test_a_site_that_followed_another_leader_meanwhile_takes_no_older_term(behind_its_leader: LakeState) -> None:
    begun = promotion_claims.begin(behind_its_leader.ledger, 1)
    with behind_its_leader.ledger.write() as connection:
        sites.raise_term(connection, 33)
    with pytest.raises(WatermarkMoved, match="another leader"):
        promotion_claims.claim(behind_its_leader.ledger, TERM, of=begun)


def test_a_process_whose_promotion_was_ended_ends_begins_and_claims_no_other_one(behind_its_leader: LakeState) -> None:
    """It stood still meanwhile, and goes on with what it had seen."""
    lake = behind_its_leader
    old = promotion_claims.begin(lake.ledger, 1)
    assert promotion_claims.begin(lake.ledger, 1) is None and claim_of(lake) == old, "two began at once: one counts"
    promotion_claims.end(lake.ledger, lake.witness, "another site was faster", of=old)
    new = promotion_claims.begin(lake.ledger, 1)
    assert promotion_claims.begin(lake.ledger, 1, instead_of=old) is None
    promotion_claims.end(lake.ledger, lake.witness, "another site was faster", of=old)
    with pytest.raises(WatermarkMoved):
        promotion_claims.claim(lake.ledger, TERM, of=old)
    assert claim_of(lake) == new
    promotion_claims.claim(lake.ledger, TERM, of=new)
    promotion_claims.end(lake.ledger, lake.witness, "another site was faster", of=old)
    assert lead(lake).term == TERM


def alone(lake: LakeState) -> Promotion:
    """Without an arbiter. It reads no table: nothing is staged, and there is no cut and no purge."""
    parts = cast("Any", SimpleNamespace(work=None))
    return Promotion(lake.config, lake.ledger, lake.witness, parts, None, AllTablesGood())


def test_a_claim_without_an_arbiter_waits_until_a_person_says_again_that_the_leader_is_stopped(
    follower: LakeState,
) -> None:
    follower.ledger.change(sites.take_number, 2)
    claimed(follower)
    for _ in range(2):
        with pytest.raises(RefusedError, match="nobody but you can know"):
            alone(follower).run(leader_is_stopped=False)
        assert follower.ledger.query(sites.get).claimed_term == TERM
    assert alone(follower).run(leader_is_stopped=True).term == TERM


@pytest.mark.parametrize("is_claimed", [False, True])
@pytest.mark.parametrize("is_old", [False, True])
def test_a_promotion_with_an_arbiter_goes_on_only_with_it(follower: LakeState, is_claimed: bool, is_old: bool) -> None:
    """Also before its claim is stored: the record may have it. A version that did not say counts as if it had one."""
    follower.ledger.change(sites.take_number, 2)
    claim = promotion_claims.begin(follower.ledger, 1, with_arbiter=True)
    if is_old:
        with follower.ledger.write() as connection:
            audit.record(connection, Event.PROMOTION_BEGUN, replaces=1, claim=claim, by_force=False)
    if is_claimed:
        promotion_claims.claim(follower.ledger, TERM, of=claim)
    for said in (False, True):
        with pytest.raises(RefusedError, match="began with an arbiter"):
            alone(follower).run(leader_is_stopped=said)
        assert claim_of(follower) == claim
    assert isinstance(alone(follower).forecast(leader_is_stopped=True).step, Refuse)
    assert alone(follower).forecast(leader_is_stopped=True, force=True).step == Begin(1)
    led = alone(follower).run(leader_is_stopped=True, force=True).led
    assert led is not None and led.lacks is not None and follower.ledger.query(sites.get).leads


def test_a_promote_that_stood_still_replaces_no_leader_that_nobody_asked_to_replace(
    behind_its_leader: LakeState, tmp_path: Path
) -> None:
    """Its promotion was ended by another process. By now the site follows the winner and is its member, so a promotion
    that began here again would wait for that leader's lease, and take over from it."""
    lake = behind_its_leader
    (tmp_path / "arbiter").mkdir()
    arbiter = Arbiter(FolderCell(tmp_path / "arbiter", LAKE), LAKE, call_seconds_max=30)
    members = frozenset({Member(2, lake.ledger.query(sites.get).own_instance)})
    first = LeaderRecord(LAKE, 1, 0, "a", None, True, None, members, 10.0)
    assert isinstance(arbiter.put(first, over=None), PutLanded)
    now = [0.0]

    def stands_still(seconds: float) -> None:
        now[0] += seconds
        if now[0] > seconds:
            return
        promotion_claims.end(lake.ledger, lake.witness, "site b leads in term 17", of=claim_of(lake))
        arbiter.put(replace(first, term=17, site=1, name="b", before=1), over=arbiter.read())
        for of, after in ((lake.dataset, 21), (sharded(lake), 40)):
            cut_of_17 = offer(of, after, 17 * 2**40 + after, cut(17 * 2**40 + after, after), term=17)
            record(lake, cut_of_17)

    promotion = Promotion(
        lake.config, lake.ledger, lake.witness, cast("Any", object()), arbiter, AllTablesGood(),
        clock=lambda: now[0], sleep=stands_still,
    )  # fmt: skip
    with pytest.raises(RefusedError, match="another process has ended this promotion meanwhile"):
        promotion.run(leader_is_stopped=False)
    seen = arbiter.read()
    assert seen is not None and (seen.record.term, seen.record.name) == (17, "b")
    assert claim_of(lake) is None


@pytest.mark.parametrize("point", ["promote.before_witness", "promote.after_witness", "promote.after_commit"])
def test_a_promotion_that_dies_at_its_transaction_goes_on(behind_its_leader: LakeState, point: str) -> None:
    lake = claimed(behind_its_leader)
    failpoints.arm(f"{point}=fail")
    with pytest.raises(failpoints.FailpointError):
        lead(lake)
    failpoints.arm("")
    if point == "promote.after_commit":
        assert lake.ledger.query(sites.get).role is SiteRole.LEADER
    else:
        if point == "promote.after_witness":
            # Nobody takes the ledger for one that was restored: nothing is missing in it.
            with lake.ledger.read() as connection, pytest.raises(RefusedError, match="promotion was interrupted"):
                promotions.check_none_under_way(connection, lake.witness.read())
        promotions.resume(lake.ledger, lake.witness)
        with lake.ledger.read() as connection:
            assert sequence.read(connection).last == lake.witness.read().highest
        lead(lake)
    assert lake.sealed() == FIRST
    assert lake.witness.read().highest == lake.ledger.query(sequence.read).last == FIRST + 1


def test_a_site_whose_promotion_died_at_its_transaction_follows_whoever_took_over_by_force(
    behind_its_leader: LakeState,
) -> None:
    """Its witness has said that it leads."""
    lake = claimed(behind_its_leader)
    failpoints.arm("promote.after_witness=fail")
    with pytest.raises(failpoints.FailpointError):
        lead(lake)
    failpoints.arm("")
    promotions.resume(lake.ledger, lake.witness)
    promotion_claims.end(lake.ledger, lake.witness, "site c leads in term 19", of=claim_of(lake))
    mark = lake.witness.read()
    assert (mark.role, mark.term) == (SiteRole.FOLLOWER, 1)
    mark.check_leads(True, None)  # as when the lake is opened
    number = 19 * 2**40
    record(lake, offer(lake.dataset, 21, number, cut(number, 21, term=19), term=19))
    assert lake.witness.read().highest == lake.ledger.query(sequence.read).last == number


def test_a_promotion_that_died_at_its_transaction_goes_on_also_if_a_dataset_was_dropped_since(
    behind_its_leader: LakeState,
) -> None:
    """Then it needs fewer numbers than its witness has."""
    lake = claimed(behind_its_leader)
    failpoints.arm("promote.after_witness=fail")
    with pytest.raises(failpoints.FailpointError):
        lead(lake)
    failpoints.arm("")
    with lake.ledger.write() as connection:
        assert datasets.mark_dropped(connection, sharded(lake).id)
    promotions.resume(lake.ledger, lake.witness)
    assert [name for name, _ in lead(lake).cuts] == [lake.dataset.name]
    assert lake.witness.read().highest == lake.ledger.query(sequence.read).last == FIRST + 1
    assert lake.sealed() == FIRST


@pytest.mark.parametrize("point", ["promote.after_begin", "promote.after_claim"])
def test_a_promotion_that_dies_before_has_changed_nothing_but_that_it_began(follower: LakeState, point: str) -> None:
    failpoints.arm(f"{point}=fail")
    with pytest.raises(failpoints.FailpointError):
        claimed(follower)
    failpoints.arm("")
    site = follower.ledger.query(sites.get)
    assert site.follows and site.promoting_term == 1 and site.claimed_term in (None, TERM)
    promotion_claims.end(follower.ledger, follower.witness, "it is over", of=claim_of(follower))
    assert follower.ledger.query(sites.get).promoting_term is None


def test_the_ledger_is_behind_only_if_no_promotion_explains_it(behind_its_leader: LakeState) -> None:
    highest = behind_its_leader.witness.read().highest
    behind_its_leader.witness.raise_to(highest + 5, expected=highest)
    with behind_its_leader.ledger.read() as connection:
        promotions.check_none_under_way(connection, behind_its_leader.witness.read())
    promotions.resume(behind_its_leader.ledger, behind_its_leader.witness)
    assert behind_its_leader.ledger.query(sequence.read).last == highest


def test_a_ledger_from_before_the_promotion_is_refused_and_one_that_is_about_to_lead_is_not() -> None:
    mark = WitnessRecord(LAKE, FIRST, SiteRole.LEADER, TERM)
    with pytest.raises(LedgerUnreadable, match="leads in term 18"):
        mark.check_leads(True, None)
    mark.check_leads(True, TERM)
    mark.check_leads(False, None)
    WitnessRecord(LAKE, 5, SiteRole.FOLLOWER, 1).check_leads(True, None)


def test_why_a_promotion_failed_stays_in_the_audit_log(behind_its_leader: LakeState) -> None:
    lake = behind_its_leader

    def failures() -> list[str]:
        with lake.ledger.read() as connection:
            return [e.detail["reason"] for e in audit.latest(connection, events=(Event.PROMOTION_FAILED,))]

    class Unreadable:
        @property
        def work(self) -> NoReturn:
            raise FailedError("default.events: the rows of block 1..10 cannot be read")

    unreadable = cast("Any", Unreadable())

    promotion = Promotion(lake.config, lake.ledger, lake.witness, unreadable, None, AllTablesGood())

    with pytest.raises(RefusedError, match="leader is stopped"):
        promotion.run(leader_is_stopped=False)
    assert failures() == [], "none was under way"
    for _ in range(2):
        with pytest.raises(FailedError):
            promotion.run(leader_is_stopped=True)
        assert failures() == ["default.events: the rows of block 1..10 cannot be read"], "once for each reason"
    promotion_failures.record(lake.ledger, "another reason")
    assert failures()[0] == "another reason"
