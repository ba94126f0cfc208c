"""What a follower does next, as pure functions over what it has recorded."""

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
    """Raises FailedError unless the items lie in `(after, upto]`, apart from each other and in order, in shards of the
    dataset. What came over a network is checked before it is recorded."""
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
    """Raises FailedError if the leader was promoted by force, and knows nothing of a leader whose cut this site has
    recorded: that one gave up rows which the leader has, and readers here have gone past them (docs/adr/0076)."""
    term = followed.reached_term
    for item in offer.items:
        if item.cut is None:
            continue
        if item.cut.leaves_out(term):
            raise FailedError(
                f"{offer.dataset.name}: the leader of term {item.cut.term} was promoted by force, and knows nothing of "
                f"the leader of term {term}, whose cut this site has recorded. Rows that were given up then are there, "
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
    """Raises FailedError if the leader lacks what this site recorded of it, or needs: its ledger was made anew without
    its cuts, or it was restored as a whole. `sealed` is the leader's seal, told in an answer that offers nothing more
    of the dataset."""
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
    """Which items to apply now: the lowest of each shard, then the second of each, and so on. So a shard whose items
    fail or are large does not hold up the others. A purge waits until nothing below it is open, also not what is
    `given_up` in this pass: another process may have read its rows before the purge. What is above it may go on,
    because the leader no longer has what was purged. A cut waits, too, and what it cuts out is not applied. What is
    above it waits for it: a cut raises the table's epoch, and would end whoever publishes meanwhile."""
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
    """Of one dataset."""
    cuts = [i.numbered_cut for i in items if i.numbered_cut is not None]
    left = [i for i in items if not is_cut_out(i.head, cuts)]
    lowest = min((i.head.rows.lo for i in left), default=0)
    first_cut = min((c.number for c in cuts), default=SEQ_MAX)
    return [i for i in left if i.head.rows.lo == lowest or _is_segment_before(i.head, first_cut)]


def _is_segment_before(head: BlockHead, number: Seq) -> bool:
    return head.item is ItemKind.SEGMENT and head.rows.lo < number


@dataclass(frozen=True, slots=True)
class Take:
    """What to take of an item: the rows in this range, and of those only what the table lacks, if it may hold any."""

    rows: SeqRange
    subtract: bool


def what_to_take(rows: SeqRange, floor: int, *, may_hold: Callable[[SeqRange], bool]) -> Take | None:
    """None: nothing, because all of it is at or below the floor of the follower's own table. `may_hold` says whether
    the table may have rows of a range. It is always asked: a ledger that was restored, and is not behind its witness,
    does not know that it has settled an item before."""
    above = above_floor(rows, floor)
    return None if above is None else Take(above, subtract=may_hold(above))


def above_floor(rows: SeqRange, floor: int) -> SeqRange | None:
    """What the follower's own retention has not deleted."""
    return SeqRange(Seq(max(int(rows.lo), floor + 1)), rows.hi) if floor < rows.hi else None


def had_at_most(witnessed: Seq, sealed: Seq | None, held: int) -> Seq:
    """Up to where a site whose ledger was behind can have had its seal. Its witness alone does not tell, because all
    datasets share it; nor does the highest sequence number that its table holds, because a seal may end with a purge or
    with rows that are gone. `sealed` is how far the leader has sealed the dataset now: the site never had more, unless
    the leader was restored itself."""
    return Seq(min(int(witnessed), max(int(sealed or 0), held)))
