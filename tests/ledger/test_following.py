"""What a follower records of its leader, on both ledgers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.core import failpoints
from strandline.core.errors import NotLeader, RefusedError, ResyncNeeded, WatermarkMoved
from strandline.core.sites.replication import DatasetTerms, Item, Offer, TakeoverCut
from strandline.core.types import (
    BlockKind,
    Dataset,
    DatasetId,
    DatasetUuid,
    ItemKind,
    Reserved,
    Seq,
    SeqRange,
    ShardId,
    SnapshotId,
    Staged,
)
from strandline.ledger.ingest import blocks, datasets, sequence
from strandline.ledger.replicate import following, leader_seals, sites
from strandline.ledger.replicate.following import Followed
from strandline.replicate.follow.follow_datasets import make_dataset
from tests.ledger.conftest import LAKE, LakeState


@pytest.fixture
def follower(lake: LakeState) -> LakeState:
    with lake.ledger.write() as connection:
        sites.follow(connection, leader="https://leader", token="env:TOKEN", term=1)
        sharded = datasets.add(connection, name="default.sharded", table_uuid="uuid-of-sharded", shards=2)
        for dataset in (lake.dataset, sharded):
            following.follow_dataset(connection, dataset.id)
    return lake


def segment(lo: int, hi: int, shard: int = 0, **further: object) -> Item:
    values: dict[str, object] = {"rows": hi - lo + 1, "batch_id": f"batch-{lo}", "digest": None} | further
    return Item(ItemKind.SEGMENT, Seq(lo), Seq(hi), ShardId(shard), **values)  # type: ignore[arg-type]


def purge(number: int, lo: int, hi: int) -> Item:
    ranges = (SeqRange(Seq(lo), Seq(hi)),)
    return Item(ItemKind.PURGE, Seq(number), Seq(number), None, None, None, None, ranges=ranges)


def cut(number: int, above: int, *keeps: tuple[int, int], term: int = 17) -> Item:
    ranges = tuple(SeqRange(Seq(lo), Seq(hi)) for lo, hi in keeps)
    what = TakeoverCut(term, Seq(above), ranges)
    return Item(ItemKind.CUT, Seq(number), Seq(number), None, None, f"cut-{number}", None, cut=what)


def offer(dataset: Dataset, after: int, upto: int, *items: Item, term: int = 1, lake: str = LAKE) -> Offer:
    terms = DatasetTerms(DatasetUuid(dataset.uuid), dataset.name, (), (), None, dataset.first_shard, dataset.shards)
    return Offer(lake, term, terms, Seq(after), Seq(upto), items, Seq(upto))


def sharded(lake: LakeState) -> Dataset:
    return lake.ledger.query(datasets.get, "default.sharded")


def record(lake: LakeState, *offers: Offer) -> Sequence[str]:
    return following.record(lake.ledger, lake.witness, offers)


def apply(lake: LakeState, lo: int) -> None:
    held = take(lake, lo)
    assert blocks.mark_staged(lake.ledger, lake.witness, held, SnapshotId(7))
    staged = blocks.find_block(lake.ledger, held.head)
    assert isinstance(staged, Staged)
    assert blocks.mark_published(lake.ledger, staged, row_count=len(held.head.rows), snapshot=SnapshotId(7))


def take(lake: LakeState, lo: int) -> Reserved:
    found = next(b for b in lake.ledger.query(blocks.open_blocks) if b.head.rows.lo == lo)
    assert isinstance(found, Reserved)
    held = blocks.take_over(lake.ledger, found, lease_seconds=60)
    assert held is not None
    return held


def bound(lake: LakeState, dataset: Dataset | None = None) -> int:
    wanted = (dataset or lake.dataset).id
    return next(f.bound for f in lake.ledger.query(following.list_followed) if f.dataset.id == wanted)


def counter(lake: LakeState) -> int:
    return lake.ledger.query(sequence.read).last


def test_an_offer_is_recorded_as_open_blocks_that_anyone_may_take_at_once(follower: LakeState) -> None:
    offered = offer(follower.dataset, 0, 25, segment(1, 10), segment(21, 25, digest="d"))
    assert record(follower, offered) == [follower.dataset.uuid]
    assert bound(follower) == 25 and counter(follower) == follower.witness.read().highest == 25
    items = follower.ledger.query(following.open_items)
    assert [(i.head.rows.lo, i.head.rows.hi, i.offered_rows, i.head.offered) for i in items] == [
        (1, 10, 10, True), (21, 25, 5, True),
    ]  # fmt: skip
    assert items[1].head.digest == "d" and items[1].head.batch_id == "batch-21"
    assert take(follower, 1).fence > 1


def test_a_cut_and_a_purge_are_recorded_with_what_they_say(follower: LakeState) -> None:
    items = (purge(5, 1, 2), cut(17 * 2**40, 5, (7, 8), (11, 11)))
    record(follower, offer(follower.dataset, 0, 17 * 2**40, *items))
    found = follower.ledger.query(following.open_items)
    assert [(i.ranges, i.cut) for i in found] == [(i.ranges, i.cut) for i in items]


def test_an_offer_that_does_not_begin_at_the_bound_changes_nothing(follower: LakeState) -> None:
    first = offer(follower.dataset, 0, 10, segment(1, 10))
    record(follower, first)
    before = counter(follower)
    for late in (first, offer(follower.dataset, 5, 20, segment(11, 20)), offer(follower.dataset, 11, 20)):
        assert record(follower, late) == []
    assert bound(follower) == 10 and counter(follower) == before
    assert len(follower.ledger.query(following.open_items)) == 1


def test_offers_of_several_datasets_are_recorded_together_and_each_by_its_own_bound(follower: LakeState) -> None:
    other = sharded(follower)
    record(follower, offer(other, 0, 30, segment(21, 30, other.first_shard)))
    recorded = record(
        follower,
        offer(follower.dataset, 0, 20, segment(1, 20)),
        offer(other, 0, 30, segment(21, 30, other.first_shard)),
    )
    assert recorded == [follower.dataset.uuid]
    assert (bound(follower), bound(follower, other)) == (20, 30)


def test_every_record_raises_the_witness_also_one_below_the_counter(follower: LakeState) -> None:
    other = sharded(follower)
    record(follower, offer(other, 0, 30, segment(21, 30, other.first_shard)))
    record(follower, offer(follower.dataset, 0, 20, segment(1, 20)))
    assert counter(follower) == follower.witness.read().highest == 31


def test_an_offer_without_items_moves_the_bound_and_needs_no_witness(follower: LakeState) -> None:
    record(follower, offer(follower.dataset, 0, 12))
    assert bound(follower) == 12 and follower.witness.read().highest == 0


def test_an_offer_of_another_lake_is_refused(follower: LakeState) -> None:
    with pytest.raises(WatermarkMoved):
        record(follower, offer(follower.dataset, 0, 10, segment(1, 10), lake="another"))
    assert bound(follower) == 0


def test_a_ledger_that_is_behind_its_witness_records_nothing(follower: LakeState) -> None:
    follower.witness.raise_to(5, expected=0)
    with pytest.raises(ResyncNeeded):
        record(follower, offer(follower.dataset, 0, 10, segment(1, 10)))
    assert bound(follower) == 0 and follower.ledger.query(following.open_items) == []


@pytest.mark.parametrize("point", ["record.before_witness", "record.after_witness", "record.after_commit"])
def test_a_follower_that_dies_while_it_records_has_all_of_the_offer_or_nothing(follower: LakeState, point: str) -> None:
    offered = offer(follower.dataset, 0, 20, segment(1, 10), segment(11, 20))
    failpoints.arm(f"{point}=fail")
    with pytest.raises(failpoints.FailpointError):
        record(follower, offered)
    failpoints.arm("")
    done = point == "record.after_commit"
    assert bound(follower) == (20 if done else 0)
    assert len(follower.ledger.query(following.open_items)) == (2 if done else 0)
    assert follower.witness.read().highest == (0 if point == "record.before_witness" else 20)


def test_the_seal_waits_for_the_slowest_shard_and_each_shard_has_its_own_mark(follower: LakeState) -> None:
    other = sharded(follower)
    one, two = other.first_shard, other.first_shard + 1
    items = [segment(1, 5, one), segment(6, 9, two), segment(10, 12, one), purge(13, 1, 2), segment(14, 20, two)]
    record(follower, offer(other, 0, 20, *items))

    def marks() -> list[int]:
        return [int(m) for m in follower.ledger.query(following.applied_upto, [other]).values()]

    assert marks() == [0, 0] and follower.sealed(other) is None
    apply(follower, 1)
    assert marks() == [5, 0] and follower.sealed(other) == 5
    apply(follower, 10)
    assert marks() == [12, 0] and follower.sealed(other) == 5
    apply(follower, 14)
    assert marks() == [12, 0], "a purge is in every shard"
    apply(follower, 6)
    assert marks() == [12, 9] and follower.sealed(other) == 12
    held = take(follower, 13)
    assert following.settle_without_rows(follower.ledger, follower.witness, held, row_count=0)
    assert marks() == [13, 20] and follower.sealed(other) == 20


def test_who_lost_an_item_cannot_settle_it(follower: LakeState) -> None:
    record(follower, offer(follower.dataset, 0, 10, segment(1, 10)))
    zombie = take(follower, 1)
    assert following.release_item(follower.ledger, zombie)
    held = take(follower, 1)
    assert not following.settle_without_rows(follower.ledger, follower.witness, zombie, row_count=10)
    assert not blocks.mark_staged(follower.ledger, follower.witness, zombie, SnapshotId(7))
    assert not following.release_item(follower.ledger, zombie)
    assert following.settle_without_rows(follower.ledger, follower.witness, held, row_count=10)


def test_an_item_is_settled_only_by_a_ledger_that_is_not_behind(follower: LakeState) -> None:
    record(follower, offer(follower.dataset, 0, 10, segment(1, 10)))
    held = take(follower, 1)
    follower.witness.raise_to(50, expected=10)
    with pytest.raises(ResyncNeeded):
        following.settle_without_rows(follower.ledger, follower.witness, held, row_count=10)


def test_fences_of_another_epoch_are_never_the_same(follower: LakeState) -> None:
    record(follower, offer(follower.dataset, 0, 10, segment(1, 10)))
    before = take(follower, 1)
    with follower.ledger.write() as connection:
        sequence.move(connection, last=10, epoch=sequence.read(connection).epoch + 1)
    record(follower, offer(follower.dataset, 10, 20, segment(11, 20)))
    assert take(follower, 11).fence - before.fence >= 1 << 32


def test_an_item_that_cannot_be_published_is_taken_again_and_the_late_publisher_settles_nothing(
    follower: LakeState,
) -> None:
    record(follower, offer(follower.dataset, 0, 10, segment(1, 10)))
    held = take(follower, 1)
    assert blocks.mark_staged(follower.ledger, follower.witness, held, SnapshotId(7))
    staged = blocks.find_block(follower.ledger, held.head)
    assert isinstance(staged, Staged)
    again = following.apply_again(follower.ledger, staged)
    assert again is not None and again.fence > held.fence
    assert following.apply_again(follower.ledger, staged) is None, "once"
    second = take(follower, 1)
    assert second.branch != held.branch
    assert blocks.mark_staged(follower.ledger, follower.witness, second, SnapshotId(8))
    late = (staged, SnapshotId(7))
    assert not blocks.mark_published(follower.ledger, late[0], row_count=10, snapshot=late[1])
    assert follower.sealed() is None


def test_behind_its_witness_every_open_item_is_taken_again_with_fences_that_nobody_had(follower: LakeState) -> None:
    record(follower, offer(follower.dataset, 0, 30, segment(1, 10), segment(11, 20), segment(21, 30)))
    apply(follower, 21)
    one, two = take(follower, 1), take(follower, 11)
    assert blocks.mark_staged(follower.ledger, follower.witness, two, SnapshotId(7))
    with follower.ledger.write() as connection:
        epoch = sequence.read(connection).epoch + 1
        sequence.move(connection, last=30, epoch=epoch)
        assert following.open_again(connection, epoch) == 2
    opened = follower.ledger.query(following.open_items)
    assert [type(i.block) for i in opened] == [Reserved, Reserved]
    for item in opened:
        assert item.block.fence > max(one.fence, two.fence)
        assert following.epoch_of(item.block.fence) == epoch
    assert not blocks.mark_staged(follower.ledger, follower.witness, one, SnapshotId(8))
    assert take(follower, 11).head.rows.lo == 11


def test_an_item_is_taken_with_a_fence_of_the_present_epoch(follower: LakeState) -> None:
    record(follower, offer(follower.dataset, 0, 10, segment(1, 10)))
    with follower.ledger.write() as connection:
        sequence.move(connection, last=10, epoch=5)
    found = follower.ledger.query(following.open_items)[0].block
    assert isinstance(found, Reserved)
    held = following.take(follower.ledger, found, lease_seconds=60)
    assert held is not None and following.epoch_of(held.fence) == 5


def test_a_batch_of_which_the_rest_is_offered_and_a_recovered_range_are_recorded(follower: LakeState) -> None:
    record(follower, offer(follower.dataset, 0, 10, segment(1, 10, batch_id="a")))
    rest = segment(11, 15, batch_id="a")
    unknown = segment(16, 30, batch_id=None, rows=None, source=BlockKind.RECOVERED)
    record(follower, offer(follower.dataset, 10, 30, rest, unknown))
    assert [i.head.batch_id for i in follower.ledger.query(following.open_items)] == [
        "a", "segment-11-15", "segment-16-30",
    ]  # fmt: skip
    apply(follower, 16)


def test_a_ledger_that_is_behind_has_no_seal_until_everything_is_applied_up_to_the_witness(follower: LakeState) -> None:
    record(follower, offer(follower.dataset, 0, 10, segment(1, 10)))
    apply(follower, 1)
    assert follower.sealed() == 10
    follower.ledger.change(following.fall_behind, follower.dataset.id, Seq(18))
    assert follower.sealed() is None
    epoch = follower.ledger.query(sequence.read).epoch

    def catch_up(epoch: int = epoch) -> bool:
        return follower.ledger.change(following.catch_up, follower.dataset.id, Seq(18), epoch=epoch)

    assert not catch_up(), "the bound is not there yet"
    record(follower, offer(follower.dataset, 10, 30, segment(11, 20), segment(21, 30)))
    assert not catch_up(), "not everything is applied"
    apply(follower, 11)
    assert follower.sealed() is None
    assert not catch_up(epoch - 1), "the ledger was restored after the leader was asked"
    assert catch_up() and follower.sealed() == 20
    assert not catch_up(), "it was not behind"


def test_a_seal_comes_back_below_the_witness_if_the_leader_has_no_more(follower: LakeState) -> None:
    other = sharded(follower)
    record(follower, offer(other, 0, 90, segment(81, 90, other.first_shard)))
    record(follower, offer(follower.dataset, 0, 12, segment(1, 10), purge(12, 1, 2)))
    apply(follower, 1)
    follower.ledger.change(following.fall_behind, follower.dataset.id, Seq(91))
    epoch = follower.ledger.query(sequence.read).epoch
    assert not follower.ledger.change(following.catch_up, follower.dataset.id, Seq(12), epoch=epoch), (
        "the purge is open"
    )
    held = take(follower, 12)
    assert following.settle_without_rows(follower.ledger, follower.witness, held, row_count=0)
    assert follower.ledger.change(following.catch_up, follower.dataset.id, Seq(12), epoch=epoch)
    assert follower.sealed() == 12


def test_what_it_was_behind_never_goes_back(follower: LakeState) -> None:
    for witnessed, expected in ((18, 18), (12, 18), (25, 25)):
        follower.ledger.change(following.fall_behind, follower.dataset.id, Seq(witnessed))
        assert follower.ledger.query(following.list_followed)[0].witnessed == expected


def test_a_follower_takes_no_batch_and_names_its_leader(follower: LakeState) -> None:
    with pytest.raises(NotLeader, match="https://leader") as refused:
        follower.reserve("a")
    assert "https://leader" in (refused.value.hint or "")
    assert counter(follower) == 0, "a refusal takes no number"
    assert not sites.Site(sites.SiteRole.LEADER, 1, None, None).follows


def test_a_dataset_that_the_new_leader_never_heard_of_is_left_as_it_is(follower: LakeState) -> None:
    record(follower, offer(follower.dataset, 0, 10, segment(1, 10)))
    apply(follower, 1)
    [_, other] = follower.ledger.query(following.list_followed)
    first = follower.ledger.query(following.list_followed)[0]
    follower.ledger.change(following.leave, first)
    assert [f.dataset.id for f in follower.ledger.query(following.list_followed)] == [other.dataset.id]
    assert follower.ledger.query(blocks.sealed, follower.dataset.id) == 10


def test_a_dropped_dataset_has_no_items(follower: LakeState) -> None:
    record(follower, offer(follower.dataset, 0, 10, segment(1, 10)))
    follower.ledger.change(datasets.mark_dropped, follower.dataset.id)
    assert follower.ledger.query(following.open_items) == []
    assert follower.dataset.uuid not in [f.dataset.uuid for f in follower.ledger.query(following.list_followed)]


def test_an_applier_whose_dataset_was_dropped_meanwhile_commits_nothing(follower: LakeState) -> None:
    record(follower, offer(follower.dataset, 0, 10, segment(1, 10)))
    held = take(follower, 1)
    follower.ledger.change(datasets.mark_dropped, follower.dataset.id)
    assert not blocks.mark_staged(follower.ledger, follower.witness, held, SnapshotId(7))


def test_another_dataset_of_the_same_name_is_not_followed_and_it_is_said(follower: LakeState) -> None:
    theirs = replace(offer(follower.dataset, 0, 0).dataset, id=DatasetUuid("another"))
    context: Any = SimpleNamespace(ledger=follower.ledger)
    with pytest.raises(RefusedError, match="another dataset of this name than this site"):
        make_dataset(context, theirs, 1)


def test_what_the_leader_has_sealed_is_known_also_while_it_offers_nothing_of_it(follower: LakeState) -> None:
    id = follower.dataset.id

    def told(seals: dict[DatasetId, Seq | None], *untold: DatasetId) -> Followed:
        follower.ledger.change(leader_seals.note, seals, dict.fromkeys(untold))
        return next(f for f in follower.ledger.query(following.list_followed) if f.dataset.id == id)

    [before, _] = follower.ledger.query(following.list_followed)
    assert not before.is_offered and leader_seals.is_news(before, None, is_offered=True)
    empty = told({id: None})
    assert (empty.is_offered, empty.leader_seal) == (True, None)
    assert not leader_seals.is_news(empty, None, is_offered=True)
    assert leader_seals.is_news(empty, Seq(5), is_offered=True)
    assert told({id: Seq(5)}).leader_seal == 5
    lower = told({id: Seq(3)})
    assert lower.leader_seal == 5 and not leader_seals.is_news(lower, Seq(3), is_offered=True)
    gone = told({}, id)
    assert not gone.is_offered and leader_seals.is_news(lower, None, is_offered=False)


@pytest.mark.parametrize("point", ["follow.before_settle", "follow.after_settle"])
def test_a_follower_that_dies_when_it_settles_an_item_has_settled_it_or_not(follower: LakeState, point: str) -> None:
    record(follower, offer(follower.dataset, 0, 10, segment(1, 10)))
    held = take(follower, 1)
    failpoints.arm(f"{point}=fail")
    with pytest.raises(failpoints.FailpointError):
        following.settle_without_rows(follower.ledger, follower.witness, held, row_count=3)
    failpoints.arm("")
    assert follower.sealed() == (10 if point == "follow.after_settle" else None)
