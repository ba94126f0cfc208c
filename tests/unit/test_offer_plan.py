"""Offers: cut anywhere, they tile the sequence, and none passes what is open."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from strandline.core.sites.replication import Item
from strandline.core.types import (
    SEQ_MAX,
    BlockKind,
    Dataset,
    DatasetId,
    DatasetUuid,
    History,
    ItemKind,
    Seq,
    SeqRange,
    ShardId,
    merge_ranges,
    subtract,
)
from strandline.ledger.replicate.offers import SettledBlock, SettledItems
from strandline.replicate.lead.offer_plan import cut_items

FIRST, SHARDS = ShardId(3), 3
DATASET = Dataset(
    DatasetId(1), "default.events", "uuid", (), False, History.DELIVER, datetime(2026, 1, 1, tzinfo=UTC),
    DatasetUuid("u"), FIRST, SHARDS,
)  # fmt: skip


@dataclass(frozen=True)
class Known:
    """A block in any state."""

    block: SettledBlock
    state: str

    @property
    def rows(self) -> SeqRange:
        return self.block.rows


@st.composite
def ledgers(draw: st.DrawFn) -> list[Known]:
    """Blocks as a ledger has them. The ranges of lost ledgers cover some of them, as a resync stores it."""
    found, at, begun = [], 0, None
    for n in range(draw(st.integers(1, 14))):
        at += draw(st.integers(0, 3))  # numbers of other datasets
        state = draw(st.sampled_from(("published", "published", "published", "abandoned", "reserved", "staged")))
        item = draw(st.sampled_from((ItemKind.SEGMENT, ItemKind.SEGMENT, ItemKind.SEGMENT, ItemKind.PURGE)))
        rows = SeqRange(Seq(at + 1), Seq(at + (draw(st.integers(1, 6)) if item is ItemKind.SEGMENT else 1)))
        shard = ShardId(FIRST + draw(st.integers(0, SHARDS - 1))) if item is ItemKind.SEGMENT else None
        kind = draw(st.sampled_from((BlockKind.BATCH, BlockKind.ADOPTED))) if shard is not None else BlockKind.BATCH
        if begun is None and draw(st.booleans()):
            begun = at
        count = len(rows) if draw(st.booleans()) else draw(st.integers(0, len(rows)))
        ranges = () if item is ItemKind.SEGMENT else (SeqRange(Seq(1), Seq(1)),)
        block = SettledBlock(rows, item, kind, shard, count, f"b{n}", f"d{n}", ranges)
        found.append(Known(block, "published" if begun is not None and state != "published" else state))
        at = int(rows.hi)
        if begun is not None and draw(st.booleans()):  # a resync: nothing in its range is open
            lost = SeqRange(Seq(begun + 1), Seq(at + draw(st.integers(0, 2))))
            recovered = SettledBlock(lost, ItemKind.SEGMENT, BlockKind.RECOVERED, FIRST, None, f"r{n}", None, ())
            found.append(Known(recovered, draw(st.sampled_from(("published", "published", "reserved")))))
            at, begun = int(lost.hi), None
    return found


def first_open(known: list[Known]) -> int:
    return min((int(k.rows.lo) for k in known if k.state in ("reserved", "staged")), default=SEQ_MAX)


def read(known: list[Known], after: int, items_max: int) -> SettledItems:
    """As `ledger/replicate/offers.py` reads it."""
    below = first_open(known)
    settled = [k.block for k in known if k.state == "published" and after < k.rows.hi < below]
    own = sorted((b for b in settled if b.kind is not BlockKind.RECOVERED), key=lambda b: b.rows.hi)[: items_max + 1]
    complete_to = below - 1
    if len(own) > items_max:
        complete_to = min(complete_to, own.pop().rows.lo - 1)
    recovered = [b for b in settled if b.kind is BlockKind.RECOVERED]
    return SettledItems(DATASET, Seq(after), Seq(complete_to), (*own, *recovered), None, None)


def follow(known: list[Known], cuts: list[int], after: int = 0) -> list[Item]:
    """All items that a follower gets, offer by offer."""
    found: list[Item] = []
    for n in range(10_000):
        items_max = cuts[n % len(cuts)]
        items = cut_items(read(known, after, items_max), items_max=items_max)
        if not items:
            return found
        assert len(items) <= items_max and items[0].lo > after
        found += items
        after = int(items[-1].hi)
    raise AssertionError("offers without end")


CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=6)


@given(ledgers(), CUTS)
def test_offers_cut_anywhere_tile_what_is_settled_below_everything_open(known: list[Known], cuts: list[int]) -> None:
    items = follow(known, cuts)
    assert all(a.hi < b.lo for a, b in itertools.pairwise(items))
    below = first_open(known)
    settled = merge_ranges(k.rows for k in known if k.state == "published" and k.rows.hi < below)
    assert merge_ranges(i.numbers for i in items) == settled


@given(ledgers(), CUTS)
def test_no_offer_reaches_beyond_the_seal_of_any_shard(known: list[Known], cuts: list[int]) -> None:
    items = follow(known, cuts)
    assert all(item.hi < first_open(known) for item in items)
    for shard in range(FIRST, FIRST + SHARDS):
        of_shard = [k for k in known if k.block.shard in (None, shard)]
        below = first_open(of_shard)
        seal = max((int(k.rows.hi) for k in of_shard if k.state == "published" and k.rows.hi < below), default=0)
        assert all(item.hi <= seal for item in items if item.shard in (None, shard))


@given(ledgers(), CUTS)
def test_where_an_offer_is_cut_changes_nothing_but_the_edges_of_lost_ranges(
    known: list[Known], cuts: list[int]
) -> None:
    whole, parts = follow(known, [1000]), follow(known, cuts)
    assert [i for i in whole if i.source is not BlockKind.RECOVERED] == [
        i for i in parts if i.source is not BlockKind.RECOVERED
    ]
    for items in (whole, parts):  # rows without a block of their own are in the dataset's first shard
        assert {i.shard for i in items if i.source is BlockKind.RECOVERED} <= {FIRST}


@given(ledgers(), CUTS, st.integers(0, 40))
def test_a_range_across_the_bound_begins_behind_it(known: list[Known], cuts: list[int], after: int) -> None:
    behind = follow(known, cuts, after)
    whole = follow(known, [1000])
    assert merge_ranges(i.numbers for i in behind) == [
        SeqRange(Seq(max(int(r.lo), after + 1)), r.hi) for r in merge_ranges(i.numbers for i in whole) if r.hi > after
    ]
    counted = {k.block.batch_id: k.block.row_count for k in known}
    for item in behind:
        if item.kind is ItemKind.SEGMENT and item.batch_id is not None and item.rows is not None:
            assert item.rows == counted[item.batch_id] or item.rows == len(item.numbers)


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 9)), max_size=8),
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 9)), max_size=8),
)
def test_subtracting_ranges_is_subtracting_their_numbers(
    some: list[tuple[int, int]], gone: list[tuple[int, int]]
) -> None:
    ranges = merge_ranges(SeqRange(Seq(lo), Seq(lo + more)) for lo, more in some)
    taken = [SeqRange(Seq(lo), Seq(lo + more)) for lo, more in gone]
    left = {n for r in subtract(ranges, taken) for n in range(r.lo, r.hi + 1)}
    numbers = {n for r in ranges for n in range(r.lo, r.hi + 1)}
    assert left == numbers - {n for r in taken for n in range(r.lo, r.hi + 1)}
