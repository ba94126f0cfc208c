"""What a cut cuts out, number by number, and when it can be carried out."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.sites.replication import TakeoverCut
from strandline.core.sites.takeover_cuts import NumberedCut
from strandline.core.types import (
    Abandoned,
    Block,
    BlockHead,
    BlockId,
    BlockKind,
    DatasetId,
    Fence,
    ItemKind,
    Published,
    Reserved,
    Seq,
    SeqRange,
    ShardId,
    SnapshotId,
    Staged,
    merge_ranges,
)
from strandline.ledger.replicate.following import OpenItem
from strandline.replicate.follow.apply_plan import next_items
from strandline.replicate.take_over.cut_plan import is_cut_out, plan_cut

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LAST = 60  # the number of the cut


def head(lo: int, hi: int, item: ItemKind = ItemKind.SEGMENT) -> BlockHead:
    shard = ShardId(0) if item is ItemKind.SEGMENT else None
    rows = SeqRange(Seq(lo), Seq(hi))
    return BlockHead(BlockId(lo), DatasetId(1), rows, BlockKind.BATCH, str(lo), None, NOW, shard, item, True)


def block(state: str, lo: int, hi: int | None = None, item: ItemKind = ItemKind.SEGMENT) -> Block:
    of = head(lo, hi or lo, item)
    match state:
        case "reserved":
            return Reserved(of, Fence(1), NOW)
        case "staged":
            return Staged(of, Fence(1), SnapshotId(7), NOW)
        case "published":
            return Published(of, len(of.rows), SnapshotId(7), NOW)
    return Abandoned(of, "its writer died", NOW)


def cut(above: int, *keeps: tuple[int, int], number: int = LAST, term: int = 17) -> NumberedCut:
    return NumberedCut(Seq(number), TakeoverCut(term, Seq(above), tuple(SeqRange(Seq(a), Seq(b)) for a, b in keeps)))


def numbers(ranges: list[SeqRange] | tuple[SeqRange, ...]) -> set[int]:
    return {n for r in ranges for n in range(r.lo, r.hi + 1)}


@st.composite
def ranges(draw: st.DrawFn, first: int = 1, last: int = LAST + 10) -> list[tuple[int, int]]:
    """In order, and apart from each other."""
    edges = sorted(draw(st.sets(st.integers(first, last), max_size=16)))
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=False)]


@st.composite
def cuts(draw: st.DrawFn) -> NumberedCut:
    above = draw(st.integers(0, 40))
    return cut(above, *draw(ranges(above + 1, LAST - 1)))


def stays(at: NumberedCut, number: int) -> bool:
    """The rule itself: above the seal and below the cut, only what is kept."""
    return not at.cut.above < number < at.number or any(number in kept for kept in at.cut.keeps)


@given(cuts(), ranges())
def test_exactly_the_numbers_that_are_not_kept_go(at: NumberedCut, owned: list[tuple[int, int]]) -> None:
    given_ranges = [SeqRange(Seq(a), Seq(b)) for a, b in owned]
    out = at.numbers_out(given_ranges)
    assert numbers(out) == {n for n in numbers(given_ranges) if not stays(at, n)}
    assert out == sorted(out) and all(a.hi < b.lo for a, b in itertools.pairwise(out))


@given(cuts(), ranges(), st.lists(st.sampled_from(["reserved", "staged", "published", "abandoned"]), min_size=8))
def test_a_block_goes_as_a_whole_or_not_at_all_and_every_other_open_one_is_waited_for(
    at: NumberedCut, spans: list[tuple[int, int]], states: list[str]
) -> None:
    blocks = [block(state, lo, hi) for (lo, hi), state in zip(spans, states, strict=False)]
    plan = plan_cut(at, blocks)
    below = [b for b in blocks if b.head.rows.lo < at.number and not isinstance(b, Abandoned)]
    gone = {b.head.id for b in below if not any(stays(at, n) for n in range(b.head.rows.lo, b.head.rows.hi + 1))}
    assert {h.id for h in plan.out} == gone
    opened = [b for b in below if isinstance(b, Reserved | Staged)]
    assert list(plan.waits_for) == sorted(b.head.rows for b in opened if b.head.id not in gone)
    assert {s.head.id for s in plan.staged} == {b.head.id for b in opened if isinstance(b, Staged)} & gone
    rows = numbers(merge_ranges(b.head.rows for b in below))
    assert numbers(plan.rows) == {n for n in rows if not stays(at, n)}


def test_a_cut_never_cuts_out_another_cut_and_waits_for_it() -> None:
    earlier = block("reserved", 30, item=ItemKind.CUT)
    plan = plan_cut(cut(10), [earlier])
    assert plan.out == () and plan.waits_for == (SeqRange(Seq(30), Seq(30)),)
    assert plan_cut(cut(10), [block("published", 30, item=ItemKind.CUT)]).out == ()


def test_a_purge_that_the_new_leader_has_not_carried_out_is_cut_out() -> None:
    plan = plan_cut(cut(10), [block("reserved", 20, item=ItemKind.PURGE)])
    assert [h.item for h in plan.out] == [ItemKind.PURGE] and plan.waits_for == ()


def test_a_cut_does_not_wait_for_what_a_later_cut_cuts_out() -> None:
    """Nobody has it: the leader of the first cut kept it, the one of the second has not got it."""
    first, second = cut(10, (20, 25)), cut(15, number=LAST + 20, term=33)
    blocks = [block("reserved", 20, 25)]
    assert plan_cut(first, blocks).waits_for == (SeqRange(Seq(20), Seq(25)),)
    plan = plan_cut(first, blocks, [second])
    assert plan.waits_for == () and plan.out == (), "it is the later cut that abandons it"


def test_a_ledger_that_is_behind_does_not_know_what_its_table_has() -> None:
    assert plan_cut(cut(10, (15, 16)), [], behind_upto=Seq(20)).rows == (
        SeqRange(Seq(11), Seq(14)), SeqRange(Seq(17), Seq(20)),
    )  # fmt: skip
    assert plan_cut(cut(10), [], behind_upto=Seq(10)).rows == ()


# --- which items are applied ---


def item(
    lo: int, hi: int | None = None, *, kind: ItemKind = ItemKind.SEGMENT, what: TakeoverCut | None = None
) -> OpenItem:
    return OpenItem(Reserved(head(lo, hi or lo, kind), Fence(1), NOW), None, (), what)


def cut_item(number: int, above: int, *keeps: tuple[int, int]) -> OpenItem:
    return item(number, kind=ItemKind.CUT, what=cut(above, *keeps, number=number).cut)


def chosen(*items: OpenItem) -> list[int]:
    return [int(i.head.rows.lo) for i in next_items(items, (), items_max=99)]


def test_what_is_cut_out_is_not_applied_and_what_is_above_a_cut_waits_for_it() -> None:
    kept, gone, at, new = item(21, 25), item(26, 30), cut_item(60, 20, (21, 25)), item(61, 70)
    assert chosen(kept, gone, at, new) == [21]
    assert chosen(gone, at, new) == [60]
    assert chosen(new) == [61]


def test_two_cuts_are_carried_out_in_order() -> None:
    gone, first, second, new = item(21, 25), cut_item(60, 20), cut_item(80, 65), item(81)
    assert chosen(gone, first, item(61, 62), second, new) == [60]
    assert chosen(item(61, 62), second, new) == [61]
    assert chosen(item(70, 71), second, new) == [80]


@pytest.mark.parametrize("which", [ItemKind.SEGMENT, ItemKind.PURGE])
def test_a_purge_below_a_cut_is_carried_out_before_it(which: ItemKind) -> None:
    assert chosen(item(15, kind=which), cut_item(60, 20)) == [15]
    assert chosen(item(25, kind=which), cut_item(60, 20)) == [60], "cut out"


@given(cuts(), ranges(1, LAST - 1))
def test_everything_below_is_applied_or_cut_out_in_the_end(at: NumberedCut, spans: list[tuple[int, int]]) -> None:
    left = [*(item(lo, hi) for lo, hi in spans), item(LAST, kind=ItemKind.CUT, what=at.cut), item(LAST + 1)]
    done: list[int] = []
    while items := next_items(left, (), items_max=3):
        done += [int(i.head.rows.lo) for i in items]
        left = [i for i in left if i not in items]
        if LAST in done:
            left = [i for i in left if not is_cut_out(i.head, [at])]
    assert left == [] and done.index(LAST) < done.index(LAST + 1)
    assert all(lo in done for lo, hi in spans if not at.cuts_out(head(lo, hi)))
