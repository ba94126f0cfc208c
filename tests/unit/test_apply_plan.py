"""What a follower does next."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.errors import FailedError, TermPassed
from strandline.core.sites.replication import DatasetTerms, Item, Offer, TakeoverCut
from strandline.core.sites.terms import numbers_of
from strandline.core.types import (
    BlockHead,
    BlockId,
    BlockKind,
    Dataset,
    DatasetId,
    DatasetUuid,
    Fence,
    History,
    ItemKind,
    Reserved,
    Seq,
    SeqRange,
    ShardId,
)
from strandline.ledger.replicate.following import Followed, OpenItem, check_term
from strandline.replicate.follow.apply_plan import (
    Fetch,
    check_leaves_nothing_out,
    check_offer,
    check_restored,
    next_items,
    plan_fetch,
    seal_max,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def opened(number: int, shard: int | None = 0, dataset: int = 1) -> OpenItem:
    """The block of one number; without a shard, a purge."""
    kind = ItemKind.PURGE if shard is None else ItemKind.SEGMENT
    rows = SeqRange(Seq(number), Seq(number))
    of_shard = None if shard is None else ShardId(shard)
    head = BlockHead(
        BlockId(number), DatasetId(dataset), rows, BlockKind.BATCH, str(number), None, NOW, of_shard, kind, True
    )
    return OpenItem(Reserved(head, Fence(1), NOW), None, ())


def numbers(items: list[OpenItem]) -> list[int]:
    return [int(i.head.rows.lo) for i in items]


def test_the_lowest_of_each_shard_comes_first() -> None:
    items = [opened(1, 0), opened(2, 0), opened(3, 0), opened(4, 1), opened(5, 1), opened(6, 2)]
    assert numbers(next_items(items, (), items_max=4)) == [1, 4, 6, 2]


def test_no_more_than_so_many_are_under_way() -> None:
    items = [opened(1), opened(2), opened(3)]
    assert numbers(next_items(items, {BlockId(1)}, items_max=2)) == [2]
    assert next_items(items, {BlockId(1), BlockId(2)}, items_max=2) == []


def test_a_purge_waits_for_everything_below_and_holds_up_nothing_above() -> None:
    items = [opened(1), opened(2, None), opened(3), opened(9, None, dataset=2)]
    assert numbers(next_items(items, (), items_max=9)) == [1, 9, 3]
    assert numbers(next_items(items, {BlockId(1)}, items_max=9)) == [9, 3], "what is under way is open, too"
    assert numbers(next_items(items[1:], (), items_max=9)) == [2, 3, 9]


@given(st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 3)), st.integers(1, 2)), max_size=30), st.integers(1, 5))
def test_everything_is_applied_in_the_end_and_purges_never_before_what_they_concern(
    drawn: list[tuple[int | None, int]], items_max: int
) -> None:
    left = [opened(n, shard, dataset) for n, (shard, dataset) in enumerate(drawn, 1)]
    while left:
        chosen = next_items(left, (), items_max=items_max)
        assert chosen and len(chosen) <= items_max
        for item in chosen:
            below = [o for o in left if o.head.dataset == item.head.dataset and o.head.rows.lo < item.head.rows.lo]
            assert item.head.item is ItemKind.SEGMENT or not below
        left = [o for o in left if o not in chosen]


def test_a_purge_waits_for_what_another_process_has_or_what_failed_in_this_pass() -> None:
    items = [opened(1), opened(2, None), opened(3)]
    assert numbers(next_items(items, (), items_max=9, given_up={BlockId(1)})) == [3]
    assert numbers(next_items(items[1:], (), items_max=9, given_up={BlockId(3)})) == [2]


def test_what_the_table_may_have_is_subtracted_always_and_what_retention_deleted_does_not_come_back() -> None:
    rows = SeqRange(Seq(11), Seq(20))
    asked = []

    def may_have(above: SeqRange) -> bool:
        asked.append(above)
        return above.lo == 11

    assert plan_fetch(rows, 0, may_have=may_have) == Fetch(rows, subtract=True)
    assert plan_fetch(rows, 10, may_have=may_have) == Fetch(rows, subtract=True)
    rest = SeqRange(Seq(15), Seq(20))
    assert plan_fetch(rows, 14, may_have=may_have) == Fetch(rest, subtract=False)
    assert asked == [rows, rows, rest]
    assert plan_fetch(rows, 19, may_have=may_have) == Fetch(SeqRange(Seq(20), Seq(20)), subtract=False)
    assert plan_fetch(rows, 20, may_have=may_have) is None
    assert plan_fetch(rows, 99, may_have=may_have) is None


def test_a_seal_comes_back_where_neither_the_leader_nor_the_table_has_more() -> None:
    assert seal_max(Seq(50), Seq(20), 12) == 20, "a purge may have the last number"
    assert seal_max(Seq(50), Seq(20), 30) == 30, "the leader was restored, too"
    assert seal_max(Seq(50), Seq(70), 30) == 50, "the site has recorded nothing above its witness"
    assert seal_max(Seq(50), None, 0) == 0


def offer(*items: Item, after: int = 10, upto: int = 20) -> Offer:
    terms = DatasetTerms(DatasetUuid("d"), "default.events", (), (), None, ShardId(4), 2)
    return Offer("lake", 1, terms, Seq(after), Seq(upto), items)


def segment(lo: int, hi: int, shard: int = 4, rows: int | None = None) -> Item:
    return Item(ItemKind.SEGMENT, Seq(lo), Seq(hi), ShardId(shard), rows, None, None)


def test_an_offer_that_fits_is_taken() -> None:
    check_offer(offer(segment(11, 12), segment(13, 13, 5, 1), segment(20, 20)))
    check_offer(offer(upto=10))


@pytest.mark.parametrize(
    "wrong",
    [
        offer(segment(10, 12)),
        offer(segment(20, 21)),
        offer(segment(11, 15), segment(15, 16)),
        offer(segment(14, 15), segment(11, 12)),
        offer(segment(11, 12, 6)),
        offer(segment(11, 12, rows=3)),
        offer(upto=9),
    ],
)
def test_an_offer_that_contradicts_itself_is_refused(wrong: Offer) -> None:
    with pytest.raises(FailedError, match="contradicts itself"):
        check_offer(wrong)


FIRST = numbers_of(17).lo


@pytest.mark.parametrize(
    ("term", "bound", "sealed", "said"),
    [
        (17, FIRST + 3, FIRST + 3, None),
        (17, FIRST + 3, FIRST + 9, None),  # there is more, and its table cannot be read now
        (1, 20, FIRST + 3, None),
        (1, FIRST + 3, FIRST + 3, "no longer knows which rows"),  # past its first numbers, and no cut came
        (1, 20, None, "no longer knows which rows"),
        (17, FIRST + 3, FIRST + 2, "restored from an older copy"),
        (17, FIRST + 3, None, "restored from an older copy"),
        (17, 0, None, None),
    ],
)
def test_a_leader_that_has_forgotten_what_a_follower_recorded_is_not_followed_in_silence(
    term: int, bound: int, sealed: int | None, said: str | None
) -> None:
    history, uuid = History.DELIVER, DatasetUuid("u")
    of = Dataset(DatasetId(1), "default.events", "u", (), False, history, NOW, uuid, ShardId(0), 1)
    followed = Followed(of, Seq(bound), None, None, NOW, term)
    with pytest.raises(FailedError, match=said) if said is not None else nullcontext():
        check_restored(followed, None if sealed is None else Seq(sealed), 17)
    if term == 17:  # a ledger that is behind does not know how far the site was
        check_restored(replace(followed, witnessed=Seq(bound)), None if sealed is None else Seq(sealed), 17)


def test_a_site_behind_its_witness_has_reached_the_term_of_the_number_there() -> None:
    """Its ledger is from before a take-over. The old leader still answers, with a lower seal."""
    of = Dataset(
        DatasetId(1), "default.events", "u", (), False, History.DELIVER, NOW, DatasetUuid("u"), ShardId(0), 1
    )  # fmt: skip
    known = Followed(of, Seq(10), None, None, NOW, 1)
    assert known.reached_term == 1
    assert replace(known, witnessed=Seq(20)).reached_term == 1
    assert replace(known, witnessed=numbers_of(17).lo).reached_term == 17
    with pytest.raises(TermPassed, match="term 1, and this site has recorded that another one took over in term 17"):
        check_term(replace(known, witnessed=numbers_of(17).lo), 1)
    lost = replace(known, witnessed=numbers_of(17).lo)
    upto = int(numbers_of(34).lo)
    check_leaves_nothing_out(lost, offer(cut_of(17, 1), cut_of(34, 17), after=10, upto=upto))
    with pytest.raises(FailedError, match="was promoted by force"):
        check_leaves_nothing_out(lost, offer(cut_of(34, 1), after=10, upto=upto))


def cut_of(term: int, replaces: int | None) -> Item:
    number = numbers_of(term).lo
    return Item(ItemKind.CUT, number, number, None, None, None, None, cut=TakeoverCut(term, Seq(0), (), replaces))


@pytest.mark.parametrize(
    ("own", "cuts", "is_left_out"),
    [
        (1, [(17, 1)], False),
        (1, [(17, 1), (34, 17)], False),  # it was away during two take-overs
        (1, [(34, 1)], False),  # a leader of term 17 was left out, of which this site has never heard either
        (17, [(34, 17)], False),
        (17, [(34, 1)], True),
        (17, [(34, 17), (51, 17)], True),  # the second was promoted by force, and never heard of the first
        (17, [(34, None)], False),
    ],
)
def test_a_site_does_not_follow_a_leader_that_knows_nothing_of_a_cut_that_it_has_recorded(
    own: int, cuts: list[tuple[int, int | None]], is_left_out: bool
) -> None:
    items = tuple(cut_of(term, replaces) for term, replaces in cuts)
    of = Dataset(
        DatasetId(1), "default.events", "u", (), False, History.DELIVER, NOW, DatasetUuid("u"), ShardId(0), 1
    )  # fmt: skip
    followed, made = Followed(of, Seq(0), None, None, NOW, own), offer(*items, after=0, upto=int(items[-1].hi))
    with pytest.raises(FailedError, match="was promoted by force") if is_left_out else nullcontext():
        check_leaves_nothing_out(followed, made)
