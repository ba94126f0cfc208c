"""What a purge found, and which sequence numbers a sink was sent or may have been sent. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from strandline.core.delivery_types import ChunkState, Intent
from strandline.core.purged_ranges import bound, in_ranges, span_of
from strandline.core.types import SEQ_COLUMN, Seq, SeqRange, merge_ranges
from strandline.iceberg.metadata.table_metadata import RecordedPurge
from strandline.ledger.deliver.sink_exposure import LanePast, SentSpan, SinkGeneration
from strandline.maintain.retain_plan import RANGES_MAX, range_or_none

UNDER_WAY = "a delivery of them was under way, or never ended"
CONDITION_CHANGED = "its condition was changed since"
CONDITION_UNFIT = "its condition no longer shows which rows it was sent"
NOT_RECORDED = "the deliveries up to its watermark are not recorded here"
SENT_AGAIN = "rows that it had refused were sent again, and whether they landed is not known"
MEANWHILE = "another process delivered to it while rows were deleted"
RETAINED = "retention had deleted rows before, which cannot be searched any more"


@dataclass(frozen=True, slots=True)
class AtSink:
    """A sink, and how many of the matching rows it was sent, or will not get."""

    sink: str
    kind: str
    destination: str
    rows: int | None  # None if nobody can tell
    generation: int = 1
    older: bool = False  # an older generation: the sink was reset since, and those rows are stored separately
    removed: bool = False


@dataclass(frozen=True, slots=True)
class MayHold(AtSink):
    """A sink that may have up to this many matching rows, besides those that it was certainly sent."""

    why: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PurgeResult:
    deleted_rows: int
    first: int | None
    last: int | None
    without_number: int  # deleted rows without a sequence number
    foreign: int  # deleted foreign rows, which no sink was ever sent
    not_settled: int  # rows above the seal: they stay until a run after they are settled
    holding: tuple[AtSink, ...]  # sinks that were sent such rows, in any generation, removed or not: they must delete
    may_hold: tuple[MayHold, ...]
    undelivered: tuple[AtSink, ...]  # sinks that will not get such rows any more; recorded as losses
    named_before: tuple[str, ...]  # sinks named by unfinished runs, whose rows are already gone from the table
    floor: int | None  # rows that retention deleted, up to here, cannot be searched any more
    bodies_ingested: int
    quarantined: int  # rows that sinks had refused
    quarantined_not_judged: int
    rejects: int  # lines of reject files
    rejects_not_judged: int  # lines for which nobody can tell whether they match
    rejects_folders: tuple[str, ...]  # where reject files were searched
    rejects_elsewhere: tuple[str, ...]  # folders of other machines, which this one cannot search
    delete_files_left: int  # the rows that they hide are still in data files, because another commit came first
    snapshots_expired: int | None  # None if snapshots were to be kept, or could not be expired
    refs_kept: int  # branches and tags that may still show the rows
    left: tuple[str, ...]  # what this run could not do: repeat the purge until this is empty
    followers: tuple[str, ...] = ()  # they have or may have such rows, until they carry the purge out, too


# --- which rows go ---------------------------------------------------------------------------------------------------

RESERVED_MEANWHILE_MAX = 10**9  # more sequence numbers than anybody reserves while a purge runs


@dataclass(frozen=True, slots=True)
class MatchingRows:
    """The rows of a table that match the condition, by their sequence numbers."""

    sealed: Seq | None
    ranges: tuple[SeqRange, ...]  # of the rows up to the seal, ours or foreign
    rows: int  # in these ranges
    ours: int  # how many of these are ours: only they can be at a sink, or be meant for one
    below: int  # with a sequence number of 0 or less
    unnumbered: int
    waiting: int  # above the seal, and ours: a run after they are settled deletes them
    beyond: int  # above the seal, and foreign
    near: int  # the highest number of these that may be reserved while rows are deleted; 0: there is none
    far: int  # no number above this one is reserved while rows are deleted

    @property
    def range(self) -> SeqRange | None:
        return span_of(self.ranges) if self.ranges else None

    @property
    def total(self) -> int:
        """All rows but those that wait."""
        return self.rows + self.below + self.unnumbered + self.beyond

    @property
    def foreign(self) -> int:
        return self.rows - self.ours + self.below + self.beyond

    @property
    def numbered(self) -> bool:
        return bool(self.ranges) or self.beyond > 0

    def to_take(self, counter: int) -> int:
        """How many sequence numbers to reserve, so that nobody gets those up to `near`, whose rows stay foreign."""
        return max(1, self.near - counter)


def delete_condition(where: str, matching: MatchingRows, counter: int, ours_above: Sequence[SeqRange]) -> str:
    """The condition of the delete. It matches only counted rows, even if others change the table meanwhile: settled
    rows in the recorded ranges, which followers get, too, and no row above the seal whose number is or may become
    ours."""
    number, sealed = f"`{SEQ_COLUMN}`", int(matching.sealed or 0)
    spans = [in_ranges(matching.ranges)] if matching.ranges else []
    if matching.below:
        spans.append(f"{number} < 1")
    if matching.unnumbered:
        spans.append(f"{number} IS NULL")
    if matching.beyond and len(ours_above) <= RANGES_MAX:
        kept = "".join(f" AND {number} NOT BETWEEN {r.lo} AND {r.hi}" for r in ours_above)
        spans.append(f"({number} > {sealed} AND ({number} <= {counter} OR {number} > {matching.far}){kept})")
    # On a line of its own: `where` may end in a comment.
    return f"(\n{where}\n) AND ({' OR '.join(spans) or 'false'})"


def deleted_in(recorded: Sequence[RecordedPurge], rows: SeqRange | None) -> tuple[SeqRange, ...]:
    """The ranges in which a run that died has deleted rows or was about to. The ledger has their first and last row,
    and the table may have the ranges in between."""
    if rows is None:
        return ()
    return bound(r for p in recorded if p.rows == rows for r in p.deleted_in) or (rows,)


# --- which sequence numbers a sink was sent -------------------------------------------------------------------------


@dataclass
class SentRanges:
    """The ranges that one generation of a sink was sent, or may have been sent: by the sink's condition at that time,
    and by lane."""

    sent: dict[str | None, dict[str, list[SeqRange]]] = field(default_factory=dict)
    maybe_sent: dict[str | None, dict[str, list[SeqRange]]] = field(default_factory=dict)
    why: list[str] = field(default_factory=list)

    def add_maybe(self, where: str | None, partition: str, rows: SeqRange | None, why: str) -> None:
        if rows is not None:
            _add(self.maybe_sent, where, partition, rows)
            self.because(why)

    def because(self, why: str) -> None:
        if why not in self.why:
            self.why.append(why)


def _add(to: dict[str | None, dict[str, list[SeqRange]]], where: str | None, lane: str, rows: SeqRange | None) -> None:
    if rows is not None:
        to.setdefault(where, {})[lane] = merge_ranges([*to.get(where, {}).get(lane, []), rows])


def sent_ranges(holder: SinkGeneration, sealed: Seq, begun: Mapping[str, Intent]) -> SentRanges:
    """The ranges up to the seal that the sink was sent, or may have been sent. `begun`: the open intents of the current
    generation, by partition; their chunks are more exact than their bounds. If conditions alternated, the bounds alone
    do not show which condition chose a row, so such ranges only may have been sent."""
    result = SentRanges()
    start = holder.record.start if holder.is_current else None
    for past in holder.lanes:
        _of_lane(result, past, start, int(sealed), begun.get(past.partition))
        if any(_overlap(a, b) for n, a in enumerate(past.spans) for b in past.spans[n + 1 :]):
            result.because(CONDITION_CHANGED)
    if CONDITION_CHANGED in result.why:
        for where, lanes in result.sent.items():
            for partition, ranges in lanes.items():
                for rows in ranges:
                    _add(result.maybe_sent, where, partition, rows)
        result.sent = {}
    return result


def _of_lane(result: SentRanges, past: LanePast, start: Seq | None, sealed: int, begun: Intent | None) -> None:
    mark = int(past.mark or 0)
    for span in past.spans:
        after, until = int(span.after or 0), min(int(span.until), sealed)
        _add(result.sent, span.where, past.partition, range_or_none(after, min(until, mark)))
        if begun is None:
            result.add_maybe(span.where, past.partition, range_or_none(max(after, mark), until), UNDER_WAY)
    if begun is not None:
        where = begun.options.get("where") or None
        for chunk in begun.chunks:
            rows = range_or_none(int(chunk.rows.lo) - 1, min(int(chunk.rows.hi), sealed))
            if chunk.state is ChunkState.LANDED:
                _add(result.sent, where, past.partition, rows)
            elif chunk.state is ChunkState.PLANNED:
                result.add_maybe(where, past.partition, rows, UNDER_WAY)
    for rows in _uncovered(int(start or 0), min(mark, sealed), [(int(s.after or 0), int(s.until)) for s in past.spans]):
        result.add_maybe(None, past.partition, rows, NOT_RECORDED)


def _overlap(a: SentSpan, b: SentSpan) -> bool:
    return (a.after or 0) < b.until and (b.after or 0) < a.until


def _uncovered(after: int, until: int, spans: Iterable[tuple[int, int]]) -> list[SeqRange]:
    """The parts of `after+1..until` that are in none of the spans."""
    uncovered = []
    at = after
    for lo, hi in (*sorted(spans), (until, until)):
        if (rows := range_or_none(at, min(lo, until))) is not None:
            uncovered.append(rows)
        at = max(at, hi)
    return uncovered


def began_below(holder: SinkGeneration, floor: Seq | None) -> bool:
    """Whether the sink was or may have been sent a row at or below the floor."""
    if floor is None:
        return False
    start = int(holder.record.start or 0) if holder.is_current else 0
    lowest = [start for past in holder.lanes if past.mark is not None and past.mark > start]
    lowest += [int(s.after or 0) for past in holder.lanes for s in past.spans]
    return min(lowest, default=int(floor)) < floor


# --- results --------------------------------------------------------------------------------------------------------


def at_sink(holder: SinkGeneration, count: int | None) -> AtSink:
    r, generation = holder.record, holder.generation
    return AtSink(r.name, r.kind, r.destination, count, generation, generation != r.generation, holder.removed)


def may_hold(holder: SinkGeneration, count: int | None, why: Sequence[str]) -> MayHold:
    return MayHold(**asdict(at_sink(holder, count)), why=tuple(why))
