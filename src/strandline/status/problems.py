"""Is anything wrong now? Each answer says what is wrong, with what, how bad it is, and what to do next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby

from strandline.core.reconcile_records import Doubt
from strandline.core.wording import age, agreeing, duration, plural
from strandline.status.maintenance import MaintenanceStatus
from strandline.status.receive import ReceiveStatus
from strandline.status.reconcile import ReconcileStatus
from strandline.status.replication_problems import find_replication_problems
from strandline.status.report import TABLE_GONE, DatasetStatus, LakeStatus
from strandline.status.sinks import SinkStatus
from strandline.status.status_problem import LONG_SECONDS, Severity, StatusProblem, Subject

_UNKNOWN = "?"


def find_problems(found: LakeStatus, now: datetime | None = None) -> tuple[StatusProblem, ...]:
    """In the order of the lake's parts; `worst_first` sorts them."""
    return (
        *_of_lake(found),
        *(problem for d in found.datasets for problem in _of_dataset(d)),
        *(problem for r in found.receive or () for problem in _of_receiver(r)),
        *find_sink_problems(found.sinks, now),
        *find_replication_problems(found.site, found.followers, now),
        *_of_maintenance(found.maintenance, now or datetime.now(UTC)),
        *_of_reconciler(found.reconcile),
    )


def _of_lake(found: LakeStatus) -> Iterator[StatusProblem]:
    if found.replaced is not None:
        next_step = "it accepts no rows and delivers none; `strandline rejoin LEADER` makes it a follower"
        yield StatusProblem(Severity.ERROR, Subject.LAKE, None, None, found.replaced, next_step)
    if found.problem is None:
        return
    if found.witness is not None:  # the next command that reserves numbers resyncs such a ledger
        yield StatusProblem(Severity.WARNING, Subject.LAKE, None, None, found.problem)
        return
    next_step = (
        "nothing can be ingested until it can be read; if it is lost for good, create it again with `strandline ledger "
        "rebuild --lost-witness`"
    )
    yield StatusProblem(Severity.ERROR, Subject.LAKE, None, None, found.problem, next_step)


def worst_first(found: Iterable[StatusProblem]) -> list[StatusProblem]:
    return sorted(found, key=lambda problem: problem.severity is not Severity.ERROR)


def _of_dataset(d: DatasetStatus) -> Iterator[StatusProblem]:
    def problem(severity: Severity, reason: str, next_step: str | None = None) -> StatusProblem:
        return StatusProblem(severity, Subject.DATASET, d.name, d.name, f"{d.name}: {reason}", next_step)

    if d.problem:
        more = None if d.problem == TABLE_GONE else f"details: `strandline dataset show {d.name}`"
        yield problem(Severity.ERROR, d.problem, more)
    if d.unnumbered:
        yield problem(
            Severity.WARNING,
            f"{plural(d.unnumbered, 'row', 'has')} no sequence number, and will not be delivered",
            f"`strandline dataset adopt {d.name}` numbers them",
        )
    if d.foreign:
        yield problem(
            Severity.WARNING,
            f"{plural(d.foreign, 'foreign row')}, written without Strandline, with a sequence number of their own",
            "reads leave them out, and no sink gets them",
        )
    if d.number_twice is not None:
        yield problem(
            Severity.ERROR,
            f"sequence number {d.number_twice:,} is on two rows, so Strandline refuses to read or deliver them",
            "delete the row that does not belong there",
        )


def _of_receiver(r: ReceiveStatus) -> Iterator[StatusProblem]:
    def problem(severity: Severity, reason: str, next_step: str) -> StatusProblem:
        return StatusProblem(severity, Subject.DATASET, r.dataset, r.dataset, reason, next_step)

    if r.dropped:
        bodies, size = r.bodies + r.set_aside.bodies, r.bytes + r.set_aside.bytes
        yield problem(
            Severity.WARNING,
            f"{r.dataset} was dropped, and the spool still holds {plural(bodies, 'body')} of {plural(size, 'byte')} "
            f"that {agreeing(bodies, 'was')} received for it and can never be ingested",
            f"`strandline spool clear {r.dataset}` removes them",
        )
        return
    for b in r.batches:
        if b.reason is not None:
            yield problem(
                Severity.WARNING,
                f"{r.dataset}: {plural(b.rows, 'row')} that {agreeing(b.rows, 'was')} received cannot be ingested: "
                f"{b.reason}",
                f"{'it stays' if b.rows == 1 else 'they stay'} in the spool, and the receiver tries again "
                f"({plural(b.tries, 'time')} so far)",
            )
    if r.set_aside.bodies:
        aside = r.set_aside
        yield problem(
            Severity.ERROR,
            f"{r.dataset}: {plural(aside.bodies, 'body')} of {plural(aside.rows, 'row')} could not be ingested and "
            f"{agreeing(aside.bodies, 'waits')} for you",
            "`strandline spool list` says why",
        )
    if files := r.unrecorded.files:
        why = "" if r.unrecorded.reason is None else f" ({r.unrecorded.reason})"
        yield problem(
            Severity.ERROR,
            f"{r.dataset}: {plural(files, 'body', 'lies')} in the spool and cannot be recorded{why}, so the rows are "
            "not ingested",
            "`strandline spool list` names the files",
        )


def find_sink_problems(found: Iterable[SinkStatus], now: datetime | None = None) -> list[StatusProblem]:
    """`found` is ordered by sink."""
    moment = now or datetime.now(UTC)
    grouped = (list(lanes) for _, lanes in groupby(found, key=lambda s: s.name))
    return [p for lanes in grouped for p in (*_of_sink(lanes[0], moment), *_of_quarantine(lanes))]


def _of_quarantine(lanes: Sequence[SinkStatus]) -> Iterator[StatusProblem]:
    if rows := sum(lane.quarantined for lane in lanes):
        name = lanes[0].name
        yield StatusProblem(
            Severity.WARNING,
            Subject.QUARANTINE,
            name,
            lanes[0].dataset,
            f"sink {name} refused {plural(rows, 'row')} that {agreeing(rows, 'waits')} in quarantine",
            f"`strandline sink quarantine list {name}` says why; replay or discard {'it' if rows == 1 else 'them'}",
        )


def _of_sink(one: SinkStatus, now: datetime) -> Iterator[StatusProblem]:
    def problem(severity: Severity, reason: str, next_step: str | None = None) -> StatusProblem:
        return StatusProblem(severity, Subject.SINK, name, one.dataset, f"sink {name}{reason}", next_step)

    name = one.name
    why = reason_of(name, one.reason)
    match one.state:
        case "stopped":
            yield problem(
                Severity.ERROR,
                f" is stopped: {why}",
                f"fix the cause, then run `strandline sink resume {name}`; if the destination lost rows or holds "
                f"others, `strandline sink recover {name}` says what can be done",
            )
        case "waiting":
            tries = f"{plural(one.retries, 'try')} failed" if one.retries else "waits"
            yield problem(Severity.WARNING, f": {tries}: {why}", _next_try(one, now))
        case "paused" if one.sink_lag_rows != 0:
            yield problem(
                Severity.WARNING,
                f" is paused, and rows wait ({lag_text(one.sink_lag_rows, one.sink_lag_seconds)})",
                f"`strandline sink resume {name}` continues" + (f"; before that: {why}" if one.reason else ""),
            )
        case _ if one.reason:
            yield problem(Severity.ERROR, f": {why}", f"details: `strandline sink show {name}`")
    if one.held_since is not None:
        yield problem(
            Severity.WARNING,
            f" has held retention back for {age(one.held_since, now)}: {waiting_text(one.held_rows)}",
            f"`strandline sink show {name}` shows its progress",
        )
    if one.lost_rows:
        yield problem(
            Severity.ERROR,
            f" will not get {plural(one.lost_rows, 'row')}, deleted before it had "
            f"{'it' if one.lost_rows == 1 else 'them'}",
            "`strandline audit` says when and why",
        )
    if one.unknown_losses:
        yield problem(
            Severity.ERROR,
            " may lack rows that were deleted or left out",
            f"`strandline verify {name}` says what it has",
        )


def reason_of(name: str, stored: str | None) -> str:
    """The stored reason of a sink's state, without the sink's name at the start."""
    return (stored or "no reason was recorded").removeprefix(f"{name}: ")


def lag_text(rows: int | None, seconds: float | None) -> str:
    """How far a sink is behind, in rows and in time."""
    if rows == 0:
        return "nothing"
    waits = "" if seconds is None else f", {duration(seconds)}"
    return f"{_UNKNOWN if rows is None else f'{rows:,}'} {'row' if rows == 1 else 'rows'}{waits}"


def due_text(rows: int | None, verb: str = "") -> str:
    """Rows that retention would delete."""
    if rows is None:
        return f"{_UNKNOWN} rows are" if verb else f"{_UNKNOWN} rows"
    return plural(rows, "row", verb)


def waiting_text(rows: int | None) -> str:
    """Which rows retention would delete, and what they wait for."""
    if rows == 0:
        return "rows are due for deletion, none of them for this sink; they wait until it has passed them"
    return f"{due_text(rows, 'is')} due for deletion and {agreeing(rows or 0, 'waits')} for it"


def _next_try(one: SinkStatus, now: datetime) -> str:
    again = "the next tick tries again"
    if one.retry_at is not None and one.retry_at > now:
        again = f"tried again in {duration((one.retry_at - now).total_seconds())}"
    failing = 0.0 if one.failing_since is None else (now - one.failing_since).total_seconds()
    if failing < LONG_SECONDS:
        return again
    return (
        f"it has failed for {duration(failing)} and is tried less and less often: {again}; "
        f"`strandline tick --sink {one.name}` tries at once"
    )


_OUTCOMES = {"failed": "failed", "died": "died", "refused": "was refused", "skipped": "skipped a run"}


def _of_maintenance(found: MaintenanceStatus | None, now: datetime) -> Iterator[StatusProblem]:
    if found is None:
        return
    for name in found.rules_without_dataset:
        reason = f"the retention rule for {name} has no effect: there is no such dataset"
        next_step = "create the dataset, or remove the rule"
        yield StatusProblem(Severity.WARNING, Subject.LAKE, None, None, reason, next_step)
    for key in found.overridden:
        reason = f"the applied {key} is ignored: the settings file sets it, too"
        next_step = "remove it from one of the two"
        yield StatusProblem(Severity.WARNING, Subject.LAKE, None, None, reason, next_step)
    for d in found.datasets:
        for h in (h for h in d.held_by if h.sink is None):
            reason = f"retention keeps rows of {d.dataset} for {h.name}, which may lack them, since {age(h.since, now)}"
            next_step = "at the leader, `strandline sink list` says how far it is"
            yield StatusProblem(Severity.WARNING, Subject.DATASET, d.dataset, d.dataset, reason, next_step)
        for r in d.last:
            if r.outcome in _OUTCOMES:
                yield StatusProblem(
                    Severity.WARNING,
                    Subject.DATASET,
                    d.dataset,
                    d.dataset,
                    f"{d.dataset}: {r.kind} {_OUTCOMES[r.outcome]}: {r.reason}",
                    f"details: `strandline maintenance show {r.id}`",
                )


def _of_reconciler(found: ReconcileStatus) -> Iterator[StatusProblem]:
    def problem(reason: str, next_step: str, severity: Severity = Severity.WARNING) -> StatusProblem:
        return StatusProblem(severity, Subject.RECONCILER, None, None, reason, next_step)

    last = f"details: `strandline reconcile show {found.last_run}`"
    if found.aborted is not None:
        before = ", before it had compared anything" if found.orphans is None else ""
        yield problem(f"run {found.last_run} of the reconciler ended early ({found.aborted}){before}", last)
    elif doubts := [doubt for doubt in found.doubts or () if doubt != Doubt.PARTIAL]:
        yield problem(
            f"the result of reconciler run {found.last_run} may be incomplete or wrong ({', '.join(doubts)})", last
        )
    seen = found.compared
    if seen is not None and (seen.missing or seen.orphans or seen.partial):
        part = ". It could not check everything: there may be more." if seen.partial else "."
        yield problem(
            f"run {seen.run} of the reconciler left {plural(seen.missing, 'missing file')} and "
            f"{plural(seen.orphans, 'orphan file')}",
            f"details: `strandline reconcile show {seen.run}`{part}",
            Severity.ERROR if seen.missing else Severity.WARNING,
        )
