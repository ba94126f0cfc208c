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
from strandline.ledger.replicate import cuts, following, offers, promotion_claims, promotion_failures, promotions, sites
from strandline.ledger.replicate.cuts import PreparedCut
from strandline.ledger.replicate.promotions import Lack, Led
from strandline.ledger.witness import WitnessRecord
from strandline.replicate.arbiter.arbiter import Arbiter, PutLanded
from strandline.replicate.arbiter.folder import FolderCell
from strandline.replicate.follow import carry_out_purge
from strandline.replicate.follow.leader_sinks import LeaderSinks
from strandline.replicate.take_over.promote import Promotion
from tests.ledger.conftest import LAKE, Bench
from tests.ledger.test_following import apply, cut, follower, offer, purge, record, segment, sharded, take

if TYPE_CHECKING:
    from strandline.replicate.follow.context import FollowContext

__all__ = ["follower"]

TERM = 18  # of site 2
FIRST = TERM * 2**40


@pytest.fixture
def behind_its_leader(follower: Bench) -> Bench:
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


def claimed(bench: Bench) -> Bench:
    promotion_claims.claim(bench.ledger, TERM, of=promotion_claims.begin(bench.ledger, 1))
    return bench


def claim_of(bench: Bench) -> str | None:
    with bench.ledger.read_at_once() as connection:
        return promotions.read(connection).claim


def fences(bench: Bench) -> dict[DatasetId, int]:
    """As when the epochs of the tables were raised."""
    with bench.ledger.read_at_once() as connection:
        epoch = sequence.read(connection).epoch + 1
        return {d.id: epoch for d in promotions.read(connection).purged}


def lead(bench: Bench, prepared: tuple[PreparedCut, ...] = (), lost: tuple[BlockId, ...] = ()) -> Led:
    return promotions.lead(
        bench.ledger, bench.witness, TERM, prepared=prepared, lost=lost, fenced=fences(bench),
    )  # fmt: skip


def test_the_sinks_that_the_leader_told_of_are_the_new_leaders(behind_its_leader: Bench) -> None:
    bench = claimed(behind_its_leader)
    told = SinkDefinition(
        bench.dataset.uuid, "archive", "files", "instance-1", 2, (("path", "out"),), "file:///out", Seq(3), Seq(9),
        None, None, False, (LaneDefinition("", Seq(7), None),),
    )  # fmt: skip
    LeaderSinks(bench.ledger).store((told, replace(told, name="far", dataset=DatasetUuid("elsewhere"))), "v1")
    assert bench.ledger.query(sinks.list_sinks) == [] == bench.ledger.query(sinks.due), "a follower has none"
    assert lead(bench).sinks.left == ("far",), "its dataset is not here"
    [work] = bench.ledger.query(sinks.due)
    record = work.sink
    assert (record.name, record.instance, record.generation, record.start, record.planned) == (
        "archive", "instance-1", 2, 3, 9,
    )  # fmt: skip
    assert [lane.mark for lane in bench.ledger.query(lanes.unchecked, record)] == [7] and work.behind


def test_one_transaction_makes_the_site_the_leader_with_a_cut_for_each_dataset(behind_its_leader: Bench) -> None:
    bench, other = claimed(behind_its_leader), sharded(behind_its_leader)
    led = lead(bench)
    site = bench.ledger.query(sites.get)
    assert (site.role, site.term, site.leader, site.promoting_term, site.claimed_term) == (
        SiteRole.LEADER, TERM, None, None, None,
    )  # fmt: skip
    assert bench.ledger.query(sequence.read).last == FIRST + 1
    assert bench.witness.read() == WitnessRecord(LAKE, FIRST + 1, SiteRole.LEADER, TERM)
    cuts = {name: (found.number, found.cut) for name, found in led.cuts}
    assert cuts == {
        bench.dataset.name: (FIRST, TakeoverCut(TERM, Seq(10), (), 1)),
        other.name: (FIRST + 1, TakeoverCut(TERM, Seq(0), (SeqRange(Seq(31), Seq(40)),), 1)),
    }
    assert bench.sealed() == FIRST and bench.sealed(other) == FIRST + 1
    assert bench.ledger.query(following.list_followed) == []


def test_a_dataset_of_the_new_leader_has_shards_that_no_leader_before_can_have_given(behind_its_leader: Bench) -> None:
    """The old leader may have made a dataset that never came here. It still has it when it follows."""
    bench = claimed(behind_its_leader)
    with bench.ledger.read() as connection:
        assert datasets.next_shard(connection) == 3
    lead(bench)
    assert [bench.add_dataset(name).first_shard for name in ("late", "later")] == [TERM << 20, (TERM << 20) + 1]


def test_by_force_it_says_what_the_site_lacks_as_far_as_it_was_told(behind_its_leader: Bench) -> None:
    bench = behind_its_leader
    told = SinkDefinition(
        bench.dataset.uuid, "archive", "files", "instance-1", 1, (("path", "out"),), "file:///out", None, Seq(15),
        None, None, False, (LaneDefinition("", Seq(15), None),), Seq(15),
    )  # fmt: skip
    LeaderSinks(bench.ledger).store((told,), "v1")
    promotion_claims.claim(bench.ledger, TERM, of=promotion_claims.begin(bench.ledger, 1, by_force=True))
    with bench.ledger.read_at_once() as connection:
        standing = promotions.read(connection)
    assert standing.by_force and standing.answered_at is None
    lacks = {one.dataset: one for one in standing.lacks}
    assert lacks[bench.dataset.name] == Lack(bench.dataset.name, Seq(10), Seq(21), (("archive", Seq(15)),))
    led = lead(bench)
    assert led.lacks == standing.lacks
    with bench.ledger.read() as connection:
        said = audit.newest(connection, Event.SITE_PROMOTED)
    assert said is not None and said.detail["by_force"] and said.detail["lacks"][0]["sinks"] == {"archive": 15}


def test_a_promotion_that_is_not_by_force_lacks_nothing_that_it_has_to_say(behind_its_leader: Bench) -> None:
    assert lead(claimed(behind_its_leader)).lacks is None


def test_numbers_of_a_leader_that_was_left_out_are_known_by_their_term(behind_its_leader: Bench) -> None:
    """Term 17 led between: this site has never heard of it, and takes over by force."""
    bench = behind_its_leader
    promotion_claims.claim(bench.ledger, TERM, of=promotion_claims.begin(bench.ledger, 17, by_force=True))
    lead(bench)

    def left_out(*found: int) -> int | None:
        return bench.ledger.query(cuts.left_out_term, bench.dataset.id, [Seq(n) for n in found])

    assert left_out(1, 10, FIRST, FIRST + 5) is None
    assert left_out(1, 17 * 2**40 + 5, FIRST) == 17


def test_what_never_came_is_given_up_and_named(behind_its_leader: Bench) -> None:
    bench = claimed(behind_its_leader)
    with bench.ledger.read_at_once() as connection:
        foreseen = promotions.read(connection).given_up
    led = lead(bench)
    assert led.given_up == foreseen
    assert [(g.numbers.lo, g.kind.value, g.rows) for g in led.given_up] == [
        (11, "segment", 10), (21, "purge", None), (22, "segment", 9),
    ]  # fmt: skip
    with bench.ledger.read() as connection:
        gone = [b for b in (blocks.get(connection, BlockId(n)) for n in range(1, 9)) if isinstance(b, Abandoned)]
    assert {b.reason for b in gone} == {f"cut:{FIRST}", f"cut:{FIRST + 1}"} and len(gone) == 3


def test_a_purge_is_given_up_only_when_whoever_carries_it_out_is_fenced_off(behind_its_leader: Bench) -> None:
    held, bench = take_purge(behind_its_leader), behind_its_leader
    assert record_purge(bench, held) == 1, "it goes on, with this epoch"
    claimed(bench)
    with pytest.raises(WatermarkMoved, match="about to lead in term 18"):
        record_purge(bench, held)
    for fenced in ({}, {bench.dataset.id: 1}):
        with pytest.raises(WatermarkMoved, match="the epoch was raised, or a purge was recorded, meanwhile"):
            promotions.lead(
                bench.ledger, bench.witness, TERM, prepared=(), lost=(), fenced=fenced
            )
    assert fences(bench) == {bench.dataset.id: 2}
    lead(bench)
    assert bench.ledger.query(sequence.read).epoch == 2, "the new leader publishes with the epoch of its tables"
    with pytest.raises(BlockLost, match="another process has purge 21, or it was given up"):
        record_purge(bench, held)


def test_followers_delete_what_a_purge_that_was_given_up_has_deleted_already(behind_its_leader: Bench) -> None:
    bench = behind_its_leader
    record_purge(bench, take_purge(bench))  # and the process died, before the delete or after it
    claimed(bench)
    [given_up] = [g for g in lead(bench).given_up if g.kind is ItemKind.PURGE]
    assert given_up.numbers.lo == 21, "others may have carried it out, or nobody"
    with bench.ledger.read_at_once() as connection:
        state = offers.read_state(connection, {bench.dataset.uuid: Seq(21)}, items_max=10)
    [news] = [n for n in state.news if n.dataset.id == bench.dataset.id]
    assert [(b.rows.lo, b.item, b.ranges) for b in news.blocks] == [
        (FIRST, ItemKind.CUT, ()), (FIRST + 2, ItemKind.PURGE, (SeqRange(Seq(1), Seq(5)),)),
    ]  # fmt: skip
    assert bench.ledger.query(sequence.read).last == FIRST + 2 == bench.witness.read().highest
    with bench.ledger.read() as connection:
        assert [p.number for p in cuts.purges_given_up(connection, [bench.dataset])] == [21], (
            "it does not make up for it"
        )
    with bench.ledger.write() as connection:
        purge_items.take_number(connection, bench.witness, bench.dataset.id, [SeqRange(Seq(1), Seq(5))])
    with bench.ledger.read() as connection:
        assert cuts.purges_given_up(connection, [bench.dataset]) == []


def take_purge(bench: Bench) -> Reserved:
    apply(bench, 11)
    return take(bench, 21)


def record_purge(bench: Bench, held: Reserved) -> int:
    context = cast("FollowContext", SimpleNamespace(ledger=bench.ledger, witness=bench.witness))
    return carry_out_purge._record(context, bench.dataset, held, SeqRange(Seq(1), Seq(5)), 5)


def test_a_purge_of_a_site_that_follows_by_now_takes_none_of_its_leaders_numbers(follower: Bench) -> None:
    with pytest.raises(NotLeader, match="became a follower of"), follower.ledger.write() as connection:
        purge_items.take_number(connection, follower.witness, follower.dataset.id, [SeqRange(Seq(1), Seq(5))])


def test_followers_of_the_new_leader_get_the_cut_as_an_item(behind_its_leader: Bench) -> None:
    bench = claimed(behind_its_leader)
    lead(bench)
    with bench.ledger.read_at_once() as connection:
        state = offers.read_state(connection, {bench.dataset.uuid: Seq(20)}, items_max=10)
    assert state.term == TERM
    [news] = [n for n in state.news if n.dataset.id == bench.dataset.id]
    assert [b.rows for b in news.blocks] == [SeqRange(Seq(FIRST), Seq(FIRST))]


def test_the_new_leader_goes_on_behind_its_cuts(behind_its_leader: Bench) -> None:
    bench = claimed(behind_its_leader)
    with pytest.raises(NotLeader):
        bench.reserve("too early")
    lead(bench)
    assert bench.publish(bench.reserve("mine")).head.rows.lo == FIRST + 2


def test_a_batch_that_was_applied_is_known_and_one_that_was_given_up_is_not(behind_its_leader: Bench) -> None:
    bench = claimed(behind_its_leader)
    lead(bench)
    known, new = blocks.reserve(
        bench.ledger, bench.witness, blocks.NewBlock(bench.dataset.id, 10, "batch-1", None), lease_seconds=60
    )
    assert isinstance(known, Published) and not new
    assert bench.reserve("batch-11").head.rows.lo > FIRST


def test_a_site_that_claims_a_term_records_and_commits_nothing_of_its_leader(behind_its_leader: Bench) -> None:
    held = take(behind_its_leader, 11)
    bench = claimed(behind_its_leader)
    with pytest.raises(WatermarkMoved, match="about to lead in term 18"):
        blocks.mark_staged(bench.ledger, bench.witness, held, SnapshotId(7))
    with pytest.raises(RefusedError, match=r"being promoted \(term 18\)"):
        record(bench, offer(bench.dataset, 21, 30, segment(22, 30)))
    promotion_claims.end(bench.ledger, bench.witness, "another site was faster", of=claim_of(bench))
    assert blocks.mark_staged(bench.ledger, bench.witness, held, SnapshotId(7))
    record(bench, offer(bench.dataset, 21, 50, segment(41, 50)))


def test_a_block_that_was_staged_meanwhile_has_to_be_published_first(behind_its_leader: Bench) -> None:
    held = take(behind_its_leader, 11)
    assert blocks.mark_staged(behind_its_leader.ledger, behind_its_leader.witness, held, SnapshotId(7))
    bench = claimed(behind_its_leader)
    before = bench.witness.read()
    with pytest.raises(WatermarkMoved, match="was staged"):
        lead(bench)
    assert bench.ledger.query(sites.get).follows and bench.witness.read() == before
    led = lead(bench, lost=(held.head.id,))  # its branch is gone, and so are its rows
    assert 11 in [g.numbers.lo for g in led.given_up]


def test_recorded_cuts_are_settled_in_the_same_transaction(behind_its_leader: Bench) -> None:
    """Of a leader in term 17 that came between: its cut gives up 11..20, and the site lacks what that leader had."""
    bench, other = behind_its_leader, sharded(behind_its_leader)
    before = 17 * 2**40
    record(bench, offer(bench.dataset, 21, before, cut(before, 10), term=17))
    record(bench, offer(other, 40, before + 1, cut(before + 1, 0, (31, 40)), term=17))
    promotion_claims.claim(bench.ledger, TERM, of=promotion_claims.begin(bench.ledger, 17))
    with pytest.raises(WatermarkMoved, match="a cut was recorded"):
        lead(bench)
    with bench.ledger.read_at_once() as connection:
        standing = promotions.read(connection)
    assert standing.given_up == ()  # whatever is open, these cuts cut out
    epoch = bench.ledger.query(sequence.read).epoch + 1
    prepared = tuple(PreparedCut(d, c.block, c.at, epoch) for d, c in standing.cuts)
    led = lead(bench, prepared)
    assert led.given_up == ()
    assert [(c.cut.above, c.cut.keeps) for _, c in led.cuts] == [
        (10, ()), (0, (SeqRange(Seq(31), Seq(40)),)),
    ]  # fmt: skip
    assert bench.sealed() == FIRST and bench.ledger.query(sequence.read).epoch == epoch


def test_what_is_staged_and_cut_out_is_not_published_and_does_not_keep_the_site_from_leading(
    behind_its_leader: Bench,
) -> None:
    bench, other, before = behind_its_leader, sharded(behind_its_leader), 17 * 2**40
    held = take(bench, 11)
    assert blocks.mark_staged(bench.ledger, bench.witness, held, SnapshotId(7))
    with bench.ledger.read_at_once() as connection:
        assert [b.head.id for _, b in promotions.read(connection).staged] == [held.head.id]
    record(bench, offer(bench.dataset, 21, before, cut(before, 10), term=17))
    record(bench, offer(other, 40, before + 1, cut(before + 1, 0, (31, 40)), term=17))
    promotion_claims.claim(bench.ledger, TERM, of=promotion_claims.begin(bench.ledger, 17))
    with bench.ledger.read_at_once() as connection:
        standing = promotions.read(connection)
    assert standing.staged == () and standing.claim
    epoch = bench.ledger.query(sequence.read).epoch + 1
    lead(bench, tuple(PreparedCut(d, c.block, c.at, epoch) for d, c in standing.cuts))
    found = blocks.find_block(bench.ledger, held.head)
    assert isinstance(found, Abandoned) and found.reason == f"cut:{before}"
    assert bench.sealed() == FIRST


def test_a_leader_that_has_used_up_the_numbers_of_its_term_says_so(behind_its_leader: Bench) -> None:
    bench = claimed(behind_its_leader)
    lead(bench)
    last = FIRST + 2**40 - 4
    bench.witness.raise_to(last, expected=bench.witness.read().highest)
    with bench.ledger.write() as connection:
        sequence.move(connection, last=last, epoch=sequence.read(connection).epoch)
    assert bench.reserve("the last", 3).head.rows.hi == FIRST + 2**40 - 1
    with pytest.raises(RefusedError, match="used up the sequence numbers of term 18"):
        bench.reserve("one too many", 1)


def test_a_dataset_whose_ledger_is_behind_has_no_seal_and_so_no_cut(behind_its_leader: Bench) -> None:
    bench = claimed(behind_its_leader)
    with bench.ledger.write() as connection:
        following.fall_behind(connection, bench.dataset.id, Seq(99))
    with pytest.raises(WatermarkMoved, match="behind"):
        lead(bench)


def test_a_ledger_that_is_behind_its_witness_does_not_lead(behind_its_leader: Bench) -> None:
    bench = claimed(behind_its_leader)
    highest = bench.witness.read().highest
    bench.witness.raise_to(highest + 5, expected=highest)
    with pytest.raises(ResyncNeeded):
        lead(bench)


def test_a_claim_that_was_given_up_does_not_lead(behind_its_leader: Bench) -> None:
    bench = claimed(behind_its_leader)
    promotion_claims.end(bench.ledger, bench.witness, "another site was faster", of=claim_of(bench))
    with pytest.raises(WatermarkMoved, match="has abandoned the promotion to term 18"):
        lead(bench)
    assert bench.ledger.query(sites.get).follows


def test_a_site_that_followed_another_leader_meanwhile_takes_no_older_term(behind_its_leader: Bench) -> None:
    begun = promotion_claims.begin(behind_its_leader.ledger, 1)
    with behind_its_leader.ledger.write() as connection:
        sites.raise_term(connection, 33)
    with pytest.raises(WatermarkMoved, match="another leader"):
        promotion_claims.claim(behind_its_leader.ledger, TERM, of=begun)


def test_a_process_whose_promotion_was_ended_ends_begins_and_claims_no_other_one(behind_its_leader: Bench) -> None:
    """It stood still meanwhile, and goes on with what it had seen."""
    bench = behind_its_leader
    old = promotion_claims.begin(bench.ledger, 1)
    assert promotion_claims.begin(bench.ledger, 1) is None and claim_of(bench) == old, "two began at once: one counts"
    promotion_claims.end(bench.ledger, bench.witness, "another site was faster", of=old)
    new = promotion_claims.begin(bench.ledger, 1)
    assert promotion_claims.begin(bench.ledger, 1, instead_of=old) is None
    promotion_claims.end(bench.ledger, bench.witness, "another site was faster", of=old)
    with pytest.raises(WatermarkMoved):
        promotion_claims.claim(bench.ledger, TERM, of=old)
    assert claim_of(bench) == new
    promotion_claims.claim(bench.ledger, TERM, of=new)
    promotion_claims.end(bench.ledger, bench.witness, "another site was faster", of=old)
    assert lead(bench).term == TERM


def test_a_promote_that_stood_still_replaces_no_leader_that_nobody_asked_to_replace(
    behind_its_leader: Bench, tmp_path: Path
) -> None:
    """Its promotion was ended by another process. By now the site follows the winner and is its member, so a promotion
    that began here again would wait for that leader's lease, and take over from it."""
    bench = behind_its_leader
    (tmp_path / "arbiter").mkdir()
    arbiter = Arbiter(FolderCell(tmp_path / "arbiter", LAKE), LAKE, call_seconds_max=30)
    members = frozenset({Member(2, bench.ledger.query(sites.get).own_instance)})
    first = LeaderRecord(LAKE, 1, 0, "a", None, True, None, members, 10.0)
    assert isinstance(arbiter.put(first, over=None), PutLanded)
    now = [0.0]

    def stands_still(seconds: float) -> None:
        now[0] += seconds
        if now[0] > seconds:
            return
        promotion_claims.end(bench.ledger, bench.witness, "site b leads in term 17", of=claim_of(bench))
        arbiter.put(replace(first, term=17, site=1, name="b", before=1), over=arbiter.read())
        for of, after in ((bench.dataset, 21), (sharded(bench), 40)):
            cut_of_17 = offer(of, after, 17 * 2**40 + after, cut(17 * 2**40 + after, after), term=17)
            record(bench, cut_of_17)

    promotion = Promotion(
        bench.config, bench.ledger, bench.witness, cast("Any", object()), arbiter, AllTablesGood(),
        clock=lambda: now[0], sleep=stands_still,
    )  # fmt: skip
    with pytest.raises(RefusedError, match="another process has ended this promotion meanwhile"):
        promotion.run(leader_is_stopped=False)
    seen = arbiter.read()
    assert seen is not None and (seen.record.term, seen.record.name) == (17, "b")
    assert claim_of(bench) is None


@pytest.mark.parametrize("point", ["promote.before_witness", "promote.after_witness", "promote.after_commit"])
def test_a_promotion_that_dies_at_its_transaction_goes_on(behind_its_leader: Bench, point: str) -> None:
    bench = claimed(behind_its_leader)
    failpoints.arm(f"{point}=fail")
    with pytest.raises(failpoints.FailpointError):
        lead(bench)
    failpoints.arm("")
    if point == "promote.after_commit":
        assert bench.ledger.query(sites.get).role is SiteRole.LEADER
    else:
        if point == "promote.after_witness":
            # Nobody takes the ledger for one that was restored: nothing is missing in it.
            with bench.ledger.read() as connection, pytest.raises(RefusedError, match="promotion was interrupted"):
                promotions.check_none_under_way(connection, bench.witness.read())
        promotions.resume(bench.ledger, bench.witness)
        with bench.ledger.read() as connection:
            assert sequence.read(connection).last == bench.witness.read().highest
        lead(bench)
    assert bench.sealed() == FIRST
    assert bench.witness.read().highest == bench.ledger.query(sequence.read).last == FIRST + 1


def test_a_site_whose_promotion_died_at_its_transaction_follows_whoever_took_over_by_force(
    behind_its_leader: Bench,
) -> None:
    """Its witness has said that it leads."""
    bench = claimed(behind_its_leader)
    failpoints.arm("promote.after_witness=fail")
    with pytest.raises(failpoints.FailpointError):
        lead(bench)
    failpoints.arm("")
    promotions.resume(bench.ledger, bench.witness)
    promotion_claims.end(bench.ledger, bench.witness, "site c leads in term 19", of=claim_of(bench))
    mark = bench.witness.read()
    assert (mark.role, mark.term) == (SiteRole.FOLLOWER, 1)
    mark.check_leads(True, None)  # as when the lake is opened
    number = 19 * 2**40
    record(bench, offer(bench.dataset, 21, number, cut(number, 21, term=19), term=19))
    assert bench.witness.read().highest == bench.ledger.query(sequence.read).last == number


def test_a_promotion_that_died_at_its_transaction_goes_on_also_if_a_dataset_was_dropped_since(
    behind_its_leader: Bench,
) -> None:
    """Then it needs fewer numbers than its witness has."""
    bench = claimed(behind_its_leader)
    failpoints.arm("promote.after_witness=fail")
    with pytest.raises(failpoints.FailpointError):
        lead(bench)
    failpoints.arm("")
    with bench.ledger.write() as connection:
        assert datasets.mark_dropped(connection, sharded(bench).id)
    promotions.resume(bench.ledger, bench.witness)
    assert [name for name, _ in lead(bench).cuts] == [bench.dataset.name]
    assert bench.witness.read().highest == bench.ledger.query(sequence.read).last == FIRST + 1
    assert bench.sealed() == FIRST


@pytest.mark.parametrize("point", ["promote.after_begin", "promote.after_claim"])
def test_a_promotion_that_dies_before_has_changed_nothing_but_that_it_began(follower: Bench, point: str) -> None:
    failpoints.arm(f"{point}=fail")
    with pytest.raises(failpoints.FailpointError):
        claimed(follower)
    failpoints.arm("")
    site = follower.ledger.query(sites.get)
    assert site.follows and site.promoting_term == 1 and site.claimed_term in (None, TERM)
    promotion_claims.end(follower.ledger, follower.witness, "it is over", of=claim_of(follower))
    assert follower.ledger.query(sites.get).promoting_term is None


def test_the_ledger_is_behind_only_if_no_promotion_explains_it(behind_its_leader: Bench) -> None:
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


def test_why_a_promotion_failed_stays_in_the_audit_log(behind_its_leader: Bench) -> None:
    bench = behind_its_leader

    def failures() -> list[str]:
        with bench.ledger.read() as connection:
            return [e.detail["reason"] for e in audit.latest(connection, events=(Event.PROMOTION_FAILED,))]

    class Unreadable:
        @property
        def work(self) -> NoReturn:
            raise FailedError("default.events: the rows of block 1..10 cannot be read")

    unreadable = cast("Any", Unreadable())

    promotion = Promotion(bench.config, bench.ledger, bench.witness, unreadable, None, AllTablesGood())

    with pytest.raises(RefusedError, match="leader is stopped"):
        promotion.run(leader_is_stopped=False)
    assert failures() == [], "none was under way"
    for _ in range(2):
        with pytest.raises(FailedError):
            promotion.run(leader_is_stopped=True)
        assert failures() == ["default.events: the rows of block 1..10 cannot be read"], "once for each reason"
    promotion_failures.record(bench.ledger, "another reason")
    assert failures()[0] == "another reason"
