"""What a purge found, and which ranges of numbers a sink was sent or may have been: as functions over values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from strandline.core.delivery_types import ChunkState, Intent
from strandline.core.types import SEQ_COLUMN, Seq, SeqRange, merge_ranges
from strandline.ledger.deliver.sink_exposure import Holder, LanePast, Span
from strandline.maintain.retain_plan import RANGES_MAX, range_or_none

UNDER_WAY = "a delivery of them was under way, or never ended"
CONDITION_CHANGED = "its condition was changed since"
CONDITION_UNFIT = "its condition no longer tells which rows it was sent"
NOT_RECORDED = "how it came this far is not recorded here"
SENT_AGAIN = "rows that it had refused were sent again, and whether they landed is not known"
MEANWHILE = "somebody delivered to it while rows were deleted"
RETAINED = "retention had deleted rows before that nobody can look at any more"


@dataclass(frozen=True, slots=True)
class AtSink:
    """A sink, and how many of the rows it was sent, or will not get."""

    sink: str
    kind: str
    destination: str
    rows: int
    generation: int = 1
    older: bool = False
    """The sink was reset since: what it got before lies apart."""
    removed: bool = False


@dataclass(frozen=True, slots=True)
class MayHold:
    """A sink of which nobody can prove that it does not hold such rows, beside those that it was sent for certain."""

    sink: str
    kind: str
    destination: str
    rows: int | None
    """At most; None where nobody can tell."""
    why: tuple[str, ...]
    generation: int = 1
    older: bool = False
    removed: bool = False


@dataclass(frozen=True, slots=True)
class Purged:
    deleted_rows: int
    first: int | None
    last: int | None
    without_number: int
    """Rows that nobody had numbered; they are among those that were deleted."""
    foreign: int
    """Rows with numbers that nobody here gave them, and that no sink was ever sent; they are among those, too."""
    not_settled: int
    """Rows above the seal: they stay, and a run after the blocks below them are settled takes them."""
    holding: tuple[AtSink, ...]
    """Sinks that were sent such rows, in any of their generations, removed or not: what they hold is theirs to
    delete."""
    may_hold: tuple[MayHold, ...]
    undelivered: tuple[AtSink, ...]
    """Sinks that will not get such rows any more: counted as lost to them."""
    named_before: tuple[str, ...]
    """Sinks that runs named which did not end, and whose rows are gone from the table already."""
    floor: int | None
    """What retention deleted before, up to here, cannot be looked for any more."""
    bodies_ingested: int
    quarantined: int
    """Rows that sinks had refused, and that were kept for them."""
    quarantined_not_judged: int
    rejects: int
    """Lines of reject files."""
    rejects_not_judged: int
    """Lines of which nobody can tell whether they fit the condition."""
    rejects_folders: tuple[str, ...]
    """Where reject files were looked for."""
    rejects_elsewhere: tuple[str, ...]
    """Folders of other machines, which cannot be seen from here."""
    delete_files_left: int
    """Rows that they hide are still in data files: another commit came first."""
    snapshots_expired: int | None
    """None where snapshots were to be kept, or could not be expired."""
    refs_kept: int
    """Branches and tags that may still show the rows."""
    left: tuple[str, ...]
    """What this run could not do, and the next one will: run it again until nothing is left."""


# --- which rows go ---------------------------------------------------------------------------------------------------

OUT_OF_REACH = 10**9
"""More numbers than are taken while a purge runs."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """Rows of a table that fit, by what their numbers say."""

    sealed: Seq | None
    range: SeqRange | None
    """Of those up to the seal, ours or not."""
    rows: int
    """In that range."""
    ours: int
    """Of these: the only ones that a sink can have, or be owed."""
    below: int
    """Numbered 0 or less."""
    unnumbered: int
    waiting: int
    """Above the seal, and ours: a run after they are settled takes them."""
    beyond: int
    """Above the seal, and nobody's."""
    near: int
    """The highest of these that the counter may come to while rows are deleted; 0: none."""
    far: int
    """What lies above is out of its reach."""

    @property
    def total(self) -> int:
        """All but those that wait."""
        return self.rows + self.below + self.unnumbered + self.beyond

    @property
    def foreign(self) -> int:
        return self.rows - self.ours + self.below + self.beyond

    @property
    def numbered(self) -> bool:
        return self.range is not None or self.beyond > 0

    def to_take(self, counter: int) -> int:
        """How many numbers, so that those up to `near` are never given to anyone: what is there is foreign for good."""
        return max(1, self.near - counter)


def delete_condition(where: str, fits: Fitting, counter: int, ours_above: Sequence[SeqRange]) -> str:
    """No row that was not counted, even if others change the table meanwhile: settled ones only in the range that is
    told, and above the seal none whose number is ours or may yet be. The condition may end in a comment."""
    number, sealed = f"`{SEQ_COLUMN}`", int(fits.sealed or 0)
    spans = []
    if fits.range is not None:
        spans.append(f"{number} BETWEEN {fits.range.lo} AND {fits.range.hi}")
    if fits.below:
        spans.append(f"{number} < 1")
    if fits.unnumbered:
        spans.append(f"{number} IS NULL")
    if fits.beyond and len(ours_above) <= RANGES_MAX:
        kept = "".join(f" AND {number} NOT BETWEEN {r.lo} AND {r.hi}" for r in ours_above)
        spans.append(f"({number} > {sealed} AND ({number} <= {counter} OR {number} > {fits.far}){kept})")
    return f"(\n{where}\n) AND ({' OR '.join(spans) or 'false'})"


# --- which numbers a sink was sent ----------------------------------------------------------------------------------


@dataclass
class Reached:
    """Of one generation of a sink: by the condition under which rows were chosen, the ranges of each lane."""

    sent: dict[str | None, dict[str, list[SeqRange]]] = field(default_factory=dict)
    may: dict[str | None, dict[str, list[SeqRange]]] = field(default_factory=dict)
    why: list[str] = field(default_factory=list)

    def add_sent(self, where: str | None, partition: str, rows: SeqRange | None) -> None:
        _add(self.sent, where, partition, rows)

    def add_may(self, where: str | None, partition: str, rows: SeqRange | None, why: str) -> None:
        if rows is not None:
            _add(self.may, where, partition, rows)
            self.because(why)

    def because(self, why: str) -> None:
        if why not in self.why:
            self.why.append(why)


def _add(to: dict[str | None, dict[str, list[SeqRange]]], where: str | None, lane: str, rows: SeqRange | None) -> None:
    if rows is not None:
        to.setdefault(where, {})[lane] = merge_ranges([*to.get(where, {}).get(lane, []), rows])


def reached(holder: Holder, sealed: Seq, begun: Mapping[str, Intent]) -> Reached:
    """`begun` are the open intents of the present generation, by partition: their chunks tell more than their bounds.
    Where conditions took turns, what lies under one is not known by its bounds alone."""
    found = Reached()
    start = holder.record.start if holder.is_current else None
    for past in holder.lanes:
        _of_lane(found, past, start, int(sealed), begun.get(past.partition))
        if any(_overlap(a, b) for n, a in enumerate(past.spans) for b in past.spans[n + 1 :]):
            found.because(CONDITION_CHANGED)
    if CONDITION_CHANGED in found.why:
        for where, lanes in found.sent.items():
            for partition, ranges in lanes.items():
                for rows in ranges:
                    _add(found.may, where, partition, rows)
        found.sent = {}
    return found


def _of_lane(found: Reached, past: LanePast, start: Seq | None, sealed: int, begun: Intent | None) -> None:
    mark = int(past.mark or 0)
    for span in past.spans:
        after, until = int(span.after or 0), min(int(span.until), sealed)
        found.add_sent(span.where, past.partition, range_or_none(after, min(until, mark)))
        if begun is None:
            found.add_may(span.where, past.partition, range_or_none(max(after, mark), until), UNDER_WAY)
    if begun is not None:
        where = begun.options.get("where") or None
        for chunk in begun.chunks:
            rows = range_or_none(int(chunk.rows.lo) - 1, min(int(chunk.rows.hi), sealed))
            if chunk.state is ChunkState.LANDED:
                found.add_sent(where, past.partition, rows)
            elif chunk.state is ChunkState.PLANNED:
                found.add_may(where, past.partition, rows, UNDER_WAY)
    for rows in _uncovered(int(start or 0), min(mark, sealed), [(int(s.after or 0), int(s.until)) for s in past.spans]):
        found.add_may(None, past.partition, rows, NOT_RECORDED)


def _overlap(a: Span, b: Span) -> bool:
    return (a.after or 0) < b.until and (b.after or 0) < a.until


def _uncovered(after: int, until: int, spans: Iterable[tuple[int, int]]) -> list[SeqRange]:
    """What of `after+1..until` lies in none of the spans."""
    found = []
    at = after
    for lo, hi in sorted(spans):
        if (rows := range_or_none(at, min(lo, until))) is not None:
            found.append(rows)
        at = max(at, hi)
    if (rows := range_or_none(at, until)) is not None:
        found.append(rows)
    return found


def began_below(holder: Holder, floor: Seq | None) -> bool:
    """Whether it was sent anything, or may have been, at or below the floor."""
    if floor is None:
        return False
    start = int(holder.record.start or 0) if holder.is_current else 0
    lowest = [start for past in holder.lanes if past.mark is not None and past.mark > start]
    lowest += [int(s.after or 0) for past in holder.lanes for s in past.spans]
    return min(lowest, default=int(floor)) < floor


# --- what a person is told ------------------------------------------------------------------------------------------


def at_sink(holder: Holder, count: int) -> AtSink:
    r = holder.record
    return AtSink(r.name, r.kind, r.destination, count, holder.generation, _older(holder), holder.removed)


def may_hold(holder: Holder, count: int | None, why: Sequence[str]) -> MayHold:
    r = holder.record
    return MayHold(r.name, r.kind, r.destination, count, tuple(why), holder.generation, _older(holder), holder.removed)


def _older(holder: Holder) -> bool:
    return holder.generation != holder.record.generation
