"""Plans what a follower applies next, and checks offers. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from strandline.core.errors import FailedError
from strandline.core.sites.replication import Offer
from strandline.core.sites.terms import numbers_of
from strandline.core.types import SEQ_MAX, BlockHead, BlockId, DatasetId, ItemKind, Seq, SeqRange
from strandline.ledger.replicate.following import Followed, OpenItem
from strandline.replicate.take_over.cut_plan import is_cut_out


def check_offer(offer: Offer) -> None:
    """Raises FailedError unless the items lie in `(after, upto]`, in order and without overlaps, in shards of the
    dataset."""
    last = offer.after
    for item in offer.items:
        if item.cut is not None and not (item.cut.term <= offer.term and item.lo in numbers_of(item.cut.term)):
            raise _malformed(offer, f"a cut of term {item.cut.term} with the number {item.lo}")
        if not last < item.lo <= item.hi <= offer.upto:
            raise _malformed(offer, f"item {item.lo}..{item.hi} behind {last}")
        if item.shard is not None and item.shard not in offer.dataset.shard_ids:
            raise _malformed(offer, f"item {item.lo}..{item.hi} in shard {item.shard}, which is not the dataset's")
        if item.rows is not None and item.rows > len(item.numbers):
            raise _malformed(offer, f"item {item.lo}..{item.hi} with {item.rows} rows")
        last = item.hi
    if offer.upto < last:
        raise _malformed(offer, "it ends before its last item")


def check_leaves_nothing_out(followed: Followed, offer: Offer) -> None:
    """Raises FailedError if the leader was promoted by force, and does not know a leader whose cut this site has
    recorded: that one gave up rows which the leader has, and readers of this site have read beyond them
    (docs/adr/0076)."""
    term = followed.reached_term
    for item in offer.items:
        if item.cut is None:
            continue
        if item.cut.leaves_out(term):
            raise FailedError(
                f"{offer.dataset.name}: the leader of term {item.cut.term} was promoted by force, and does not know "
                f"the leader of term {term}, whose cut this site has recorded. It has rows that were given up then, "
                "below the seal of this site",
                hint="Nothing was recorded. Create this site again, in another folder and another warehouse: "
                "`strandline follow init LEADER`. Its own rows stay readable here.",
            )
        term = max(term, item.cut.term)


def _malformed(offer: Offer, what: str) -> FailedError:
    return FailedError(
        f"the leader's offer of {offer.dataset.name} ({offer.after}..{offer.upto}) contradicts itself: {what}",
        hint="Nothing was recorded. Check that leader and follower have the same version of Strandline.",
    )


def check_restored(followed: Followed, sealed: Seq | None, term: int) -> None:
    """Raises FailedError if the leader lacks what this site has recorded of it, or needs: its ledger was created again
    without its cuts, or the whole leader was restored. `sealed`: the leader's seal, from an answer that offers nothing
    more of the dataset."""
    name, bound, seal = followed.dataset.name, followed.bound, sealed or Seq(0)
    if followed.term < term and seal <= bound:
        raise FailedError(
            f"{name}: the leader of term {term} no longer knows which rows of the terms before it were given up, so "
            "nothing of its own term is applied here",
            hint="Create this site again, in another folder and another warehouse: `strandline follow init LEADER`.",
        )
    if followed.term == term and seal < bound and followed.witnessed is None:
        raise FailedError(
            f"{name}: this site has recorded up to {bound}, and the leader has sealed up to {seal}: it was restored "
            "from an older copy",
            hint="If only its ledger was, `strandline ledger resync` at the leader settles it. If its tables were, "
            "too, stop the leader and promote this site, or create this site again: the leader gives the same numbers "
            "again, and they would not come here.",
        )


def next_items(
    opened: Sequence[OpenItem], busy: Collection[BlockId], *, items_max: int, given_up: Collection[BlockId] = ()
) -> list[OpenItem]:
    """The items to apply now: the lowest of each shard, then the second of each, and so on. So a shard with large or
    failing items does not delay the others.

    A purge waits until no lower item is open, including those `given_up` in this pass: another process may have read
    their rows before the purge. Items above a purge need not wait, because the leader no longer has the purged rows. A
    cut waits for lower items that it does not cut out. Items above it wait for the cut: it raises the table's epoch,
    and a concurrent publish would fail."""
    by_dataset: dict[DatasetId, list[OpenItem]] = defaultdict(list)
    for item in opened:
        by_dataset[item.head.dataset].append(item)
    places: dict[tuple[DatasetId, int | None], int] = defaultdict(int)
    ranked = []
    for items in by_dataset.values():
        for item in _applicable(items):
            head = item.head
            if head.id in given_up and head.id not in busy:
                continue
            place = places[head.dataset, head.shard]
            places[head.dataset, head.shard] += 1
            if head.id not in busy:
                ranked.append((place, int(head.rows.lo), item))
    return [item for _, _, item in sorted(ranked, key=lambda r: r[:2])][: max(0, items_max - len(busy))]


def _applicable(items: Sequence[OpenItem]) -> list[OpenItem]:
    """The items of one dataset that need not wait for lower ones."""
    cuts = [i.numbered_cut for i in items if i.numbered_cut is not None]
    left = [i for i in items if not is_cut_out(i.head, cuts)]
    lowest = min((i.head.rows.lo for i in left), default=0)
    first_cut = min((c.number for c in cuts), default=SEQ_MAX)
    return [i for i in left if i.head.rows.lo == lowest or _is_segment_before(i.head, first_cut)]


def _is_segment_before(head: BlockHead, number: Seq) -> bool:
    return head.item is ItemKind.SEGMENT and head.rows.lo < number


@dataclass(frozen=True, slots=True)
class Fetch:
    """What to fetch of an item: the rows in this range; with `subtract`, only those that the table lacks."""

    rows: SeqRange
    subtract: bool


def plan_fetch(rows: SeqRange, floor: int, *, may_have: Callable[[SeqRange], bool]) -> Fetch | None:
    """None if the whole range is at or below the floor of the follower's own table. `may_have` returns whether the
    table may have rows of a range. It is always called: a restored ledger that is not behind its witness does not know
    that it has settled an item before."""
    above = above_floor(rows, floor)
    return None if above is None else Fetch(above, subtract=may_have(above))


def above_floor(rows: SeqRange, floor: int) -> SeqRange | None:
    """The part of the range above the follower's own floor."""
    return SeqRange(Seq(max(int(rows.lo), floor + 1)), rows.hi) if floor < rows.hi else None


def seal_max(witnessed: Seq, sealed: Seq | None, in_table: int) -> Seq:
    """The highest seal that a site whose ledger was behind can have had. The witness alone is too high, because all
    datasets share it. `in_table`, the highest sequence number in the table, alone may be too low, because a seal may
    end with a purge or with deleted rows. `sealed` is the leader's seal now: the site never had more, unless the leader
    was restored itself."""
    return Seq(min(int(witnessed), max(int(sealed or 0), in_table)))
