"""Makes the items of an offer from settled blocks. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from strandline.core.sites.replication import Item
from strandline.core.types import BlockKind, ItemKind, Seq, SeqRange, merge_ranges, subtract
from strandline.ledger.replicate.offers import SettledBlock, SettledItems


def cut_items(found: SettledItems, *, items_max: int) -> tuple[Item, ...]:
    """The first items above `found.after`, in the order of their numbers. Items do not overlap: of a recovered range,
    only the parts between the blocks inside of it become items. The offer ends with the last item."""
    own = [b for b in found.blocks if b.kind is not BlockKind.RECOVERED]
    recovered = merge_ranges(b.rows for b in found.blocks if b.kind is BlockKind.RECOVERED)
    clipped = _clipped(recovered, found.after, found.complete_to)
    shard = found.dataset.first_shard
    items = [_item(b, found.after) for b in own if b.rows.hi > found.after]
    items += [
        Item(ItemKind.SEGMENT, r.lo, r.hi, shard, None, None, None, BlockKind.RECOVERED)
        for r in subtract(clipped, [b.rows for b in own])
    ]
    items.sort(key=lambda item: item.hi)
    return tuple(items[:items_max])


def _item(block: SettledBlock, after: Seq) -> Item:
    """The block as an item; its part up to `after` is left out."""
    lo, rows = Seq(max(int(block.rows.lo), after + 1)), block.row_count
    if lo != block.rows.lo:
        rows = block.rows.hi - lo + 1 if rows == len(block.rows) else None  # unknown how many rows the rest has
    if block.item is not ItemKind.SEGMENT:
        rows = None
    fixed = (block.batch_id, block.digest, block.kind, block.ranges, block.cut)
    return Item(block.item, lo, block.rows.hi, block.shard, rows, *fixed)


def _clipped(ranges: Iterable[SeqRange], after: Seq, until: Seq) -> list[SeqRange]:
    inside = ((max(int(r.lo), after + 1), min(int(r.hi), int(until))) for r in ranges)
    return [SeqRange(Seq(lo), Seq(hi)) for lo, hi in inside if lo <= hi]
