"""Compares the ranges of a lane in the ledger with those at the sink. Pure.

It finds ranges that are missing at the sink or that nobody delivered, and says which ranges `compare` has to read
back and rebuild.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from strandline.core.delivery_types import Chunk, ChunkState, Intent, Lane
from strandline.core.text.wording import plural
from strandline.core.types import Seq, SeqRange, merge_ranges
from strandline.deliver.sink import Held, HeldRange


class Fault(StrEnum):
    GAP = "gap"
    OVERLAP = "overlap"
    MISSING = "missing"  # delivered, and no longer at the sink
    EXTRA = "extra"  # at the sink, and not delivered by this lake
    CORRUPT = "corrupt"
    COUNT = "count"
    DIGEST = "digest"
    DUPLICATE_ROW = "duplicate_row"
    MISSING_ROW = "missing_row"
    UNEXPLAINED = "unexplained"  # rows of the lake below the watermark, and no record says why they were not delivered
    UNREADABLE = "unreadable"  # cannot be checked: neither right nor wrong
    # A rule or a person deleted the rows from the lake, and no record tells what they were. No fault.
    UNPROVABLE = "unprovable"
    NOTE = "note"  # worth knowing, and no fault


@dataclass(frozen=True, slots=True)
class VerifyFinding:
    kind: Fault
    sink: str
    partition: str
    range: SeqRange | None
    what: str  # the object, the rows or the sequence numbers that it is about
    detail: str

    @property
    def is_fault(self) -> bool:
        return self.kind not in (Fault.NOTE, Fault.UNPROVABLE)


OptionsKey = tuple[tuple[str, str], ...]  # the options that an intent was stored with, hashable
Namer = Callable[[SeqRange, OptionsKey | None], str]  # a range's name at the sink; None: with the options of today


def options_key(options: Mapping[str, str]) -> OptionsKey:
    return tuple(sorted(options.items()))


@dataclass(frozen=True, slots=True)
class Recorded:
    """A landed or empty chunk in the ledger, and the options that it was built with."""

    chunk: Chunk
    options: OptionsKey


@dataclass(frozen=True, slots=True)
class Present:
    """A range that the sink holds. Without a chunk of exactly its bounds it is compared with the lake alone."""

    held: HeldRange
    record: Recorded | None
    options: OptionsKey | None


@dataclass
class LaneRanges:
    """What the ledger and the sink say of one lane, before any row is read."""

    sink: str
    lane: Lane
    name: Namer
    floor: int  # sequence numbers up to it are not this generation's to deliver
    findings: list[VerifyFinding] = field(default_factory=list)
    chunks: list[Recorded] = field(default_factory=list)  # landed or empty, in order: compared with the lake
    present: list[Present] = field(default_factory=list)  # in order: read back from the sink
    under_way: int = 0  # chunks of an open intent that are not acknowledged yet
    taken: list[SeqRange] = field(default_factory=list)  # at or below the sink's own watermark, and removed since
    set_aside: frozenset[int] = frozenset()  # sequence numbers of quarantined rows, which explain an empty chunk
    # those of `set_aside` that may be at the sink after all, each as a range of its own
    replayed: frozenset[int] = frozenset()
    # Merged: the watermark was moved past them, and rows of them that the lane had not got count as lost.
    lost: tuple[SeqRange, ...] = ()
    # Beyond everything that the ledger knew when it was asked: a deliverer may have been running meanwhile.
    beyond: list[Present] = field(default_factory=list)

    @property
    def mark(self) -> int:
        return int(self.lane.mark or 0)

    def add(self, kind: Fault, rows: SeqRange | None, detail: str, *, options: OptionsKey | None = None) -> None:
        what = self.name(rows, options) if rows is not None else "the lane"
        self.findings.append(VerifyFinding(kind, self.sink, self.lane.partition, rows, what, detail))

    def holes(self) -> list[SeqRange]:
        """Sequence numbers up to the watermark in no chunk, no held range and no loss: the lane had no rows there."""
        known = [r.chunk.rows for r in self.chunks] + [p.held.rows for p in self.present] + list(self.lost)
        return list(without(range_or_none(self.floor + 1, self.mark), merge_ranges(known)))


def range_or_none(lo: int, hi: int) -> SeqRange | None:
    return SeqRange(Seq(lo), Seq(hi)) if lo <= hi else None


def without(rows: SeqRange | None, merged: Sequence[SeqRange]) -> Iterator[SeqRange]:
    """The parts of `rows` outside `merged`."""
    if rows is None:
        return
    at = int(rows.lo)
    for other in merged:
        if other.hi < at:
            continue
        if other.lo > rows.hi:
            break
        if at < other.lo:
            yield SeqRange(Seq(at), Seq(other.lo - 1))
        at = int(other.hi) + 1
    if at <= rows.hi:
        yield SeqRange(Seq(at), rows.hi)


def lay_out(
    sink: str,
    lane: Lane,
    start: Seq | None,
    intents: Sequence[Intent],
    held: Held,
    name: Namer,
    *,
    set_aside: frozenset[int] = frozenset(),
    replayed: frozenset[int] = frozenset(),
    lost: Sequence[SeqRange] = (),
    taken_is_fine: bool = False,
) -> LaneRanges:
    """`intents` are all that the lane ever had, in order."""
    first = min((int(i.after or 0) for i in intents), default=int(lane.mark or 0))
    layout = LaneRanges(
        sink, lane, name, floor=min(int(start or 0), first), set_aside=set_aside, replayed=replayed,
        lost=tuple(merge_ranges(lost)),
    )  # fmt: skip
    _walk_ledger(layout, intents)
    planned = [
        Recorded(c, options_key(i.options))
        for i in intents
        for c in i.chunks
        if c.state is ChunkState.PLANNED and not _is_lost(layout, c.rows)
    ]
    layout.under_way = sum(1 for r in planned if r.chunk.rows.hi > layout.mark)
    ordered = sorted(held.ranges, key=lambda h: h.rows)
    for a, b in itertools.pairwise(ordered):
        if a.rows.overlaps(b.rows):
            layout.add(Fault.OVERLAP, b.rows, f"it holds rows that {name(a.rows, None)} holds too")
    _sort_held(layout, ordered, planned)
    _find_held_chunks(layout, held, taken_is_fine=taken_is_fine)
    return layout


def _walk_ledger(layout: LaneRanges, intents: Sequence[Intent]) -> None:
    """Checks that chunks tile their intent, intents do not overlap, and nothing below the watermark was left unsent."""
    at = layout.floor
    for intent in intents:
        after, key = int(intent.after or 0), options_key(intent.options)
        if after < at and (twice := range_or_none(after + 1, min(at, int(intent.until)))):
            layout.add(Fault.OVERLAP, twice, "the ledger promised it twice", options=key)
        position = after
        for chunk in intent.chunks:
            if gap := range_or_none(position + 1, int(chunk.rows.lo) - 1):
                layout.add(Fault.GAP, gap, "no chunk of its intent has it", options=key)
            if twice := range_or_none(int(chunk.rows.lo), min(position, int(chunk.rows.hi))):
                layout.add(Fault.OVERLAP, twice, "two chunks of its intent have it", options=key)
            position = max(position, int(chunk.rows.hi))
            if chunk.state is not ChunkState.PLANNED:
                layout.chunks.append(Recorded(chunk, key))
            elif (chunk.rows.lo <= layout.mark or intent.closed_at is not None) and not _is_lost(layout, chunk.rows):
                words = "it was promised and never sent, and the watermark passed it"
                layout.add(Fault.GAP, chunk.rows, words, options=key)
        if gap := range_or_none(position + 1, int(intent.until)):
            layout.add(Fault.GAP, gap, "no chunk of its intent has it", options=key)
        if intent.closed_at is not None and intent.until > layout.mark:
            lost = range_or_none(max(after, layout.mark) + 1, int(intent.until))
            layout.add(Fault.UNEXPLAINED, lost, f"it was delivered, and the watermark is {layout.mark}", options=key)
        at = max(at, int(intent.until))


def _is_lost(layout: LaneRanges, rows: SeqRange) -> bool:
    return rows.hi <= layout.mark and any(r.lo <= rows.lo and rows.hi <= r.hi for r in layout.lost)


def _sort_held(layout: LaneRanges, ordered: Sequence[HeldRange], planned: Sequence[Recorded]) -> None:
    """Sorts the ranges that the sink holds: a chunk of the ledger, one that was cut differently, one that only the
    watermark explains, one under way, or one that nobody delivered."""
    exact = {r.chunk.rows: r for r in layout.chunks}
    sent = {r.chunk.rows for r in planned}
    recorded = sorted([*layout.chunks, *planned], key=lambda r: r.chunk.rows)
    spans = [r.chunk.rows for r in recorded]
    position = 0
    for held in ordered:
        while position < len(recorded) and spans[position].hi < held.rows.lo:
            position += 1
        if held.rows in sent:
            continue  # it landed, and is not acknowledged yet
        if (record := exact.get(held.rows)) is not None:
            if record.chunk.state is ChunkState.EMPTY and _is_replayed(layout, held):
                layout.present.append(Present(held, None, record.options))
            elif record.chunk.state is ChunkState.EMPTY:
                layout.add(
                    Fault.EXTRA, held.rows, "the ledger says that there was nothing to send", options=record.options
                )
            else:
                layout.present.append(Present(held, record, record.options))
            continue
        overlapping = [recorded[n] for n in _touching(spans, position, held.rows)]
        _sort_unmatched(layout, held, overlapping)


def _is_replayed(layout: LaneRanges, held: HeldRange) -> bool:
    return len(held.rows) == 1 and held.rows.lo in layout.replayed


def _touching(spans: Sequence[SeqRange], start: int, rows: SeqRange) -> Iterator[int]:
    """The indexes, from `start` on, of the sorted spans that begin at or below the range's end."""
    return itertools.takewhile(lambda n: spans[n].lo <= rows.hi, range(start, len(spans)))


def _sort_unmatched(layout: LaneRanges, held: HeldRange, overlapping: Sequence[Recorded]) -> None:
    """A held range without a chunk of exactly its bounds."""
    options = overlapping[0].options if overlapping else None
    if not overlapping:
        if held.rows.hi <= layout.mark:
            layout.present.append(Present(held, None, None))
        else:
            layout.beyond.append(Present(held, None, None))
    elif any(r.chunk.state is ChunkState.PLANNED for r in overlapping):
        promised = next(r.chunk.rows for r in overlapping if r.chunk.state is ChunkState.PLANNED)
        layout.add(Fault.OVERLAP, held.rows, f"it overlaps {promised}, which is promised", options=options)
    elif all(r.chunk.state is ChunkState.EMPTY for r in overlapping) and _is_replayed(layout, held):
        layout.present.append(Present(held, None, options))
    elif all(r.chunk.state is ChunkState.EMPTY for r in overlapping):
        layout.add(Fault.EXTRA, held.rows, "the ledger says that there was nothing to send", options=options)
    elif next(without(held.rows, merge_ranges(r.chunk.rows for r in overlapping)), None) is not None:
        layout.add(Fault.EXTRA, held.rows, "the ledger knows of a part of it only", options=options)
    else:
        layout.present.append(Present(held, None, options))


def _find_held_chunks(layout: LaneRanges, held: Held, *, taken_is_fine: bool) -> None:
    listed = {h.rows for h in held.ranges}
    merged = merge_ranges(listed)
    position = 0
    for record in layout.chunks:
        chunk = record.chunk
        if chunk.state is not ChunkState.LANDED or chunk.count == 0 or chunk.rows in listed:
            continue
        while position < len(merged) and merged[position].hi < chunk.rows.lo:
            position += 1
        for lost in without(chunk.rows, [merged[n] for n in _touching(merged, position, chunk.rows)]):
            taken = held.mark is not None and lost.hi <= held.mark
            if taken:
                layout.taken.append(lost)
            if not (taken and taken_is_fine):
                rows = "" if chunk.count is None else f" with {plural(chunk.count, 'row')}"
                detail = f"it was delivered{rows} and is not there"
                if taken:
                    detail += "; if a consumer took it away, --taken-is-fine accepts that"
                layout.add(Fault.MISSING, lost, detail, options=record.options)
