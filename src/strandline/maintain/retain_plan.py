"""Decisions of retention, as pure functions: what is due, what must stay, and how far a lane can move."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from strandline.core.delivery_types import ChunkState, SinkState
from strandline.core.errors import SchemaError
from strandline.core.types import SEQ_COLUMN, Seq, SeqRange, merge_ranges
from strandline.iceberg.metadata.identifier import quoted
from strandline.ledger.maintain.floors import SinkProgress
from strandline.ledger.maintain.retention_holds import Hold
from strandline.ledger.maintain.skipped_rows import LanePosition
from strandline.ledger.read.consumers import Consumer
from strandline.ledger.replicate.followers import RegisteredFollower
from strandline.ledger.replicate.leader_sinks import LeaderSink

RANGES_MAX = 500  # in a condition that lists every range; more would be too long for a statement


def range_or_none(after: int, until: int) -> SeqRange | None:
    return SeqRange(Seq(after + 1), Seq(until)) if after < until else None


# --- what is due -----------------------------------------------------------------------------------------------------


def due_condition(column: str, kind: str, cutoff: datetime) -> str:
    """The condition in Spark SQL; `kind` is the column's Iceberg type. NULL is never due."""
    moment = cutoff.astimezone(UTC).replace(tzinfo=None)
    name = quoted(column)
    match kind:
        case "date":
            return f"{name} < DATE'{moment:%Y-%m-%d}'"
        case "timestamp":
            return f"{name} < TIMESTAMP_NTZ'{moment:%Y-%m-%d %H:%M:%S.%f}'"
        case "timestamptz":
            return f"{name} < TIMESTAMP'{moment:%Y-%m-%d %H:%M:%S.%f}Z'"
    raise SchemaError(
        f"column {column} is of type {kind}, which does not say how old a row is",
        hint="Retention needs a date or a timestamp, or no column: then it uses the time when rows were ingested.",
    )


def numbers_condition(until: Seq, owned: Sequence[SeqRange] | None) -> str:
    """The condition in Spark SQL for rows up to `until`. `owned` is given if the table has foreign rows: they stay,
    whatever their sequence number."""
    number = f"`{SEQ_COLUMN}`"
    upper = f"{number} <= {until}"
    if owned is None:
        return upper
    ranges = [f"{number} BETWEEN {r.lo} AND {min(int(r.hi), int(until))}" for r in owned if r.lo <= until]
    return f"{upper} AND ({' OR '.join(ranges) or 'false'})"


# --- which sinks hold rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RetainVerdict:
    """What happens to the rows that are due."""

    up_to: Seq | None  # every due row up to here is deleted
    holding: tuple[SinkProgress, ...]  # sinks for which due rows above `up_to` stay
    passed_over: tuple[SinkProgress, ...]  # sinks that lose the rows that they lack, as the rule says


def judge(
    sinks: Sequence[SinkProgress],
    *,
    due: Seq | None,
    drop_due: Seq | None,
    holds: Iterable[Hold],
    held_before: datetime,
    paused_sinks: str,
) -> RetainVerdict:
    """`due` is the highest sequence number that is old enough, `drop_due` the highest that may be dropped. A sink is
    passed over if rows have been held for it since `held_before` or longer."""
    if due is None:
        return RetainVerdict(None, (), ())
    since = {h.sink: h.since for h in holds}
    ends: list[int] = [int(due)]
    holding, passed = [], []
    for one in sinks:
        at = int(one.number or 0)
        if at >= due:
            continue
        if one.sink.state is SinkState.PAUSED and paused_sinks == "ignore":
            passed.append(one)
            continue
        held = since.get(one.sink.id)
        if drop_due is not None and drop_due > at and held is not None and held <= held_before:
            passed.append(one)
            at = int(drop_due)
        ends.append(at)
        if at < due:
            holding.append(one)
    end = min(ends)
    return RetainVerdict(Seq(end) if end else None, tuple(holding), tuple(passed))


@dataclass(frozen=True, slots=True)
class UnreportedSinks:
    """The sinks of a leader that has not reported them yet."""

    title: str = "the leader's sinks, which it has not reported yet"


@dataclass(frozen=True, slots=True)
class Awaited:
    """A reader for which retention keeps rows, besides the sinks of this site."""

    who: Consumer | RegisteredFollower | LeaderSink | UnreportedSinks
    number: Seq | None  # it has everything up to here; None: it may need the very first row
    held_since: datetime | None  # since when retention waits for it
    drop_after: timedelta | None  # for how long retention waits at most; None: for as long as it takes
    purged: Seq | None = None  # the first row of a purge that it has yet to carry out

    @property
    def waits_at(self) -> int:
        """Rows above it are kept for it."""
        number = int(self.number or 0)
        return number if self.purged is None else min(number, self.purged - 1)

    @property
    def title(self) -> str:
        return self.who.title


@dataclass(frozen=True, slots=True)
class AwaitedVerdict:
    """As `RetainVerdict`, for the readers besides the sinks of this site."""

    up_to: Seq | None
    holding: tuple[Awaited, ...]
    passed_over: tuple[Awaited, ...]


def judge_awaited(
    verdict: RetainVerdict,
    awaited: Sequence[Awaited],
    *,
    due: Seq | None,
    drop_due: Callable[[timedelta], Seq | None],
    now: datetime,
) -> AwaitedVerdict:
    """Limits the verdict on the sinks of this site by what these readers lack. A reader is passed over if rows have
    been held for it for longer than its `drop_after`; `drop_due` gives the highest sequence number that has been due
    for so long."""
    if due is None:
        return AwaitedVerdict(None, (), ())
    ends: list[int] = []
    for p in awaited:
        at, after, since = p.waits_at, p.drop_after, p.held_since
        if at < due and after is not None and since is not None and since <= now - after:
            at = max(at, int(drop_due(after) or 0))
        ends.append(at)
    end = min([int(verdict.up_to or 0), *ends])
    holding = tuple(p for p, at in zip(awaited, ends, strict=True) if at < due)
    passed = tuple(p for p in awaited if p.waits_at < end)
    return AwaitedVerdict(Seq(end) if end else None, holding, passed)


# --- lanes -----------------------------------------------------------------------------------------------------------


def drop_point(position: LanePosition, target: Seq) -> Seq | None:
    """How far the lane can move towards the target; None if it stays. Never into a chunk that may still land: the sink
    would then have a range with the watermark inside. A chunk that landed is passed as a whole."""
    at = int(position.mark or 0)
    if at >= target:
        return None
    begun = position.intent
    if begun is None or target >= begun.until:
        return target
    inside = next(c for c in begun.chunks if target <= c.rows.hi)
    settled = inside.state is not ChunkState.PLANNED
    point = int(inside.rows.hi) if settled or target == inside.rows.hi else int(inside.rows.lo) - 1
    return Seq(point) if point > at else None


def owed(position: LanePosition, until: Seq) -> list[SeqRange]:
    """The sequence numbers up to `until` that the lane lacks: neither landed nor found to be empty."""
    after = int(position.mark or 0)
    if (begun := position.intent) is None:
        whole = range_or_none(after, int(until))
        return [] if whole is None else [whole]
    left = [c.rows for c in begun.chunks if c.state is ChunkState.PLANNED and c.rows.lo <= until]
    clipped = [SeqRange(r.lo, Seq(min(int(r.hi), int(until)))) for r in left]
    beyond = range_or_none(int(begun.until), int(until))
    return merge_ranges([*clipped, *([] if beyond is None else [beyond])])


def settle_point(up_to: Seq | None, positions: Sequence[LanePosition]) -> Seq | None:
    """The highest point at or below `up_to` that is in no chunk that may still land. The lanes have different chunks,
    so moving down for one lane may end inside a chunk of another."""
    at = int(up_to or 0)
    while at:
        inside = [
            int(c.rows.lo) - 1
            for s in positions
            if s.intent is not None
            for c in s.intent.chunks
            if c.state is ChunkState.PLANNED and c.rows.lo <= at < c.rows.hi
        ]
        if not inside:
            return Seq(at)
        at = min(inside)
    return None


def cutoff(now: datetime, older_than: timedelta) -> datetime:
    try:
        return now - older_than
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)
