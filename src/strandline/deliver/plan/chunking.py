"""Pure decisions of a tick: what is due, and how a range is cut into chunks.

A scan counts and weighs small runs of a lane's rows: portions. A chunk is as many neighbouring portions as fit into
it.
Ranges that the sink was found to hold are never cut again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from strandline.core.delivery_types import ChunkPlan, ChunkState, LanePlan
from strandline.core.retry import backoff_seconds
from strandline.core.types import Seq, SeqRange, merge_ranges
from strandline.deliver.sink import Cut, Held, HeldRange, covers
from strandline.deliver.sink_options import DeliveryOptions


@dataclass(frozen=True, slots=True)
class RowPortion:
    """Neighbouring rows of one lane: no other portion of the lane has rows between them."""

    first: int
    last: int
    rows: int
    size: int
    matching: int | None = None  # rows that meet the sink's condition; None if not counted, or without a condition
    ends_file: bool = False  # a large file ends here, and so does the chunk: no two tasks have to read the file


def promise_limit(sealed: Seq, planned: Seq | None, followed: Seq | None) -> Seq | None:
    """How far a plan may go: not above the seal, nor above what all followers have that sinks wait for. What is planned
    stays planned. None: nothing can be planned."""
    limit = max(min(int(sealed), int(followed or 0)), int(planned or 0))
    return Seq(limit) if limit else None


def batch_is_ready(
    options: DeliveryOptions, *, rows: int, oldest: datetime | None, now: datetime, lanes_behind: bool
) -> bool:
    """Whether the rows that are not planned yet are worth an intent of their own."""
    if lanes_behind:
        return True
    if rows <= 0:
        return False
    if rows >= options.batch_rows_min or oldest is None:
        return True
    return now - oldest >= timedelta(seconds=options.batch_wait_seconds_max)


ASKED_SECONDS_MAX = 3600.0
_TRIES_PER_AGE = 10  # a sink that has failed for ten hours is tried once an hour


def retry_wait_seconds(
    failures: int,
    asked: float | None,
    seconds_max: float,
    jitter: float,
    *,
    failing_seconds: float = 0,
    long_seconds_max: float = 0,
) -> float:
    """Doubles from one second up to a bound, which grows while the sink does nothing but fail (`failing_seconds`). What
    the sink asked for counts if it is longer, up to `ASKED_SECONDS_MAX`. `jitter` is in 0..1."""
    bound = max(seconds_max, min(failing_seconds / _TRIES_PER_AGE, long_seconds_max))
    ladder = backoff_seconds(failures, jitter, longest=bound)
    wanted = asked if asked is not None and asked > 0 else 0.0
    return max(ladder, min(wanted, ASKED_SECONDS_MAX))


def lacking(acknowledged: Sequence[SeqRange], held: Held, *, stores_watermarks: bool) -> list[SeqRange]:
    """Ranges that a closed intent landed and the sink no longer has: it was restored from a backup, or is another one.
    All ranges of the intent count, not only the last: they landed in any order."""
    if stores_watermarks and held.known:
        return [r for r in acknowledged if held.mark is None or held.mark < r.hi]
    return not_held(acknowledged, held)


def not_held(ranges: Sequence[SeqRange], held: Held) -> list[SeqRange]:
    if not held.known:
        return []
    known = merge_ranges(r.rows for r in held.ranges)
    return [r for r in ranges if not (held.mark is not None and r.hi <= held.mark) and not covers(known, r)]


@dataclass(frozen=True, slots=True)
class FoundAtSink:
    """What the sink holds of a lane beyond the ledger's watermark: listed ranges, and its own watermark."""

    listed: tuple[HeldRange, ...]
    mark: Seq | None
    # Sequence numbers of quarantined rows. They are never planned again, because they may have been replayed.
    quarantined: frozenset[int] = frozenset()

    @property
    def is_empty(self) -> bool:
        return not self.listed and self.mark is None and not self.quarantined

    @property
    def highest(self) -> int:
        return max([self.mark or 0, *(r.rows.hi for r in self.listed)])


def found_beyond(after: Seq | None, held: Held) -> FoundAtSink:
    floor = after or 0
    mark = held.mark if held.mark is not None and held.mark > floor else None
    return FoundAtSink(tuple(r for r in held.ranges if r.rows.hi > floor), mark)


def straddles(after: Seq | None, found: FoundAtSink) -> HeldRange | None:
    """A held range that begins at or below the watermark and ends above it: neither new nor a repeat."""
    return next((r for r in found.listed if after is not None and r.rows.lo <= after < r.rows.hi), None)


def cut(
    after: Seq | None, until: Seq, portions: Sequence[RowPortion], options: DeliveryOptions
) -> tuple[ChunkPlan, ...]:
    """Chunks that tile `after+1..until`. `portions` are sorted; without any there is nothing to send, and no chunk."""
    groups = _groups(portions, options.chunk_rows_max, options.chunk_bytes_max)
    return _tile(int(after or 0) + 1, until, groups)


def _groups(portions: Sequence[RowPortion], rows_max: int, bytes_max: int) -> list[RowPortion]:
    groups: list[RowPortion] = []
    for p in portions:
        last = groups[-1] if groups else None
        fits = (
            last is not None
            and last.rows + p.rows <= rows_max
            and last.size + p.size <= bytes_max
            and not last.ends_file
        )
        # A sequence number on two rows may end one portion and begin the next: building the chunk finds it.
        if last is not None and (fits or p.first <= last.last):
            rows, size = last.rows + p.rows, last.size + p.size
            groups[-1] = RowPortion(last.first, max(p.last, last.last), rows, size, ends_file=p.ends_file)
        else:
            groups.append(p)
    return groups


def _tile(lo: int, until: int, groups: Sequence[RowPortion]) -> tuple[ChunkPlan, ...]:
    """Each chunk ends with its last row, the last chunk at `until`."""
    chunks = []
    for i, g in enumerate(groups):
        hi = until if i == len(groups) - 1 else g.last
        chunks.append(ChunkPlan(SeqRange(Seq(lo), Seq(hi)), g.rows))
        lo = hi + 1
    return tuple(chunks)


def segments(after: Seq | None, until: Seq, found: FoundAtSink) -> list[tuple[SeqRange, HeldRange | None, bool]]:
    """The parts of `after+1..until`, in order: a listed range, a range at or below the sink's own watermark that was
    delivered and is no longer there, a quarantined row, or a range to be sent. The flag says that it was delivered."""
    at = int(after or 0) + 1
    parts: list[tuple[SeqRange, HeldRange | None, bool]] = []

    def gap(to: int) -> None:
        nonlocal at
        if found.mark is not None and at <= found.mark and at <= to:
            upper = min(to, int(found.mark))
            parts.append((SeqRange(Seq(at), Seq(upper)), None, True))
            at = upper + 1
        if at <= to:
            parts.append((SeqRange(Seq(at), Seq(to)), None, False))
            at = to + 1

    def skip_quarantined(to: int) -> None:
        nonlocal at
        for number in sorted(n for n in found.quarantined if at <= n <= to):
            gap(number - 1)
            parts.append((SeqRange(Seq(number), Seq(number)), None, False))
            at = number + 1

    for r in sorted(found.listed, key=lambda r: r.rows.lo):
        skip_quarantined(r.rows.lo - 1)
        gap(r.rows.lo - 1)
        parts.append((r.rows, r, True))
        at = r.rows.hi + 1
    skip_quarantined(until)
    gap(until)
    return parts


def cut_around(
    after: Seq | None,
    until: Seq,
    found: FoundAtSink,
    portions: Mapping[SeqRange, Sequence[RowPortion]],
    options: DeliveryOptions,
) -> tuple[ChunkPlan, ...]:
    """Like `cut`, but ranges that the sink holds become landed chunks. `portions` are by segment. A segment without
    rows becomes a chunk without rows, so that the chunks still tile the range."""
    chunks: list[ChunkPlan] = []
    for segment, listed, delivered in segments(after, until, found):
        own = portions.get(segment, ())
        rows = sum(p.rows for p in own)
        if listed is not None:
            count = rows if listed.count is None else listed.count
            chunks.append(ChunkPlan(segment, max(rows, count), ChunkState.LANDED, count, listed.digest, listed.size))
        elif len(segment) == 1 and segment.lo in found.quarantined:
            chunks.append(ChunkPlan(segment, 0, ChunkState.EMPTY, 0, None, None))
        elif delivered:
            sent = sum(p.rows if p.matching is None else p.matching for p in own)
            # EMPTY if the condition withholds all of them, or there are none
            state = ChunkState.LANDED if sent else ChunkState.EMPTY
            chunks.append(ChunkPlan(segment, rows, state, sent, None, None))
        elif own:
            chunks += _tile(segment.lo, segment.hi, _groups(own, options.chunk_rows_max, options.chunk_bytes_max))
        else:
            chunks.append(ChunkPlan(segment, 0, ChunkState.EMPTY, 0, None, None))
    return tuple(chunks)


def ranges_to_pin(plan: LanePlan, mark: Seq | None) -> tuple[SeqRange, ...]:
    """The ranges of the chunks beyond the sink's own watermark."""
    return tuple(c.rows for c in plan.chunks if c.rows.hi > (mark or 0))


def with_pinned_cut(plan: LanePlan, cut: Cut, mark: Seq | None) -> LanePlan | None:
    """The plan with the chunks of a cut that the sink stored earlier; None if a range of that cut crosses a watermark
    or a range that was found. Landed chunks stay landed. Only the plan knows row counts, so a range gets the rows of
    the plan's chunks that begin in it."""
    if ranges_to_pin(plan, mark) == cut.ranges:
        return plan
    start = max(int(plan.after or 0), int(mark or 0))
    ranges = [r for r in cut.ranges if r.hi > start]
    landed = {c.rows: c for c in plan.chunks if c.state is ChunkState.LANDED and c.rows.lo > start}
    if not ranges or ranges[0].lo != start + 1 or any(r.overlaps(f) and r != f for r in ranges for f in landed):
        return None
    chunks = [c for c in plan.chunks if c.rows.hi <= start]
    for r in ranges:
        expected = sum(c.expected for c in plan.chunks if c.state is ChunkState.PLANNED and c.rows.lo in r)
        chunks.append(landed.get(r) or ChunkPlan(r, expected))
    return LanePlan(plan.partition, plan.after, cut.until, tuple(chunks))
