"""The problems of a lake: what is wrong, with what, how bad it is, and what to do next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING

from strandline.core.records.reconcile_records import Doubt
from strandline.core.text.wording import age, agreeing, duration, plural
from strandline.status.problems.replication_problems import find_replication_problems
from strandline.status.problems.status_problem import LONG_SECONDS, TABLE_GONE, Severity, StatusProblem, Subject

if TYPE_CHECKING:
    from strandline.status.consumers import ConsumerStatus
    from strandline.status.maintenance import MaintenanceStatus
    from strandline.status.receive import ReceiveStatus
    from strandline.status.reconcile import ReconcileStatus
    from strandline.status.report import DatasetStatus, LakeStatus
    from strandline.status.sinks import SinkStatus

_UNKNOWN = "?"


def find_problems(found: LakeStatus, now: datetime | None = None) -> tuple[StatusProblem, ...]:
    """In the order of the lake's parts; `worst_first` sorts them."""
    return (
        *_of_lake(found),
        *(problem for d in found.datasets for problem in _of_dataset(d)),
        *(problem for r in found.receive or () for problem in _of_receiver(r)),
        *find_sink_problems(found.sinks, now),
        *(problem for c in found.consumers for problem in _of_consumer(c, now or datetime.now(UTC))),
        *find_replication_problems(found.site, found.followers, now),
        *_of_maintenance(found.maintenance, now or datetime.now(UTC)),
        *_of_reconciler(found.reconcile),
    )


def _of_lake(found: LakeStatus) -> Iterator[StatusProblem]:
    lake = Subject.LAKE.named(None, None)
    if found.replaced is not None:
        next_step = "it accepts no rows and delivers none; `strandline rejoin LEADER` makes it a follower"
        yield lake.error(found.replaced, next_step)
    if found.problem is None:
        return
    if found.witness is not None:  # the next command that reserves numbers resyncs such a ledger
        yield lake.warning(found.problem)
        return
    yield lake.error(
        found.problem,
        "nothing can be ingested until it can be read; if it is lost for good, create it again with `strandline ledger "
        "rebuild --lost-witness`",
    )


def worst_first(found: Iterable[StatusProblem]) -> list[StatusProblem]:
    return sorted(found, key=lambda problem: problem.severity is not Severity.ERROR)


def _of_dataset(d: DatasetStatus) -> Iterator[StatusProblem]:
    dataset = Subject.DATASET.named(d.name, d.name)
    if d.problem:
        more = None if d.problem == TABLE_GONE else f"details: `strandline dataset show {d.name}`"
        yield dataset.error(f"{d.name}: {d.problem}", more)
    if d.unnumbered:
        rows = plural(d.unnumbered, "row", "has")
        yield dataset.warning(
            f"{d.name}: {rows} no sequence number, and will not be delivered",
            f"`strandline dataset adopt {d.name}` numbers them",
        )
    if d.foreign:
        rows = plural(d.foreign, "foreign row")
        yield dataset.warning(
            f"{d.name}: {rows}, written without Strandline, with a sequence number of their own",
            "reads leave them out, and no sink gets them",
        )
    if d.number_twice is not None:
        yield dataset.error(
            f"{d.name}: sequence number {d.number_twice:,} is on two rows, so Strandline refuses to read or deliver "
            "them",
            "delete the row that does not belong there",
        )


def _of_receiver(r: ReceiveStatus) -> Iterator[StatusProblem]:
    dataset = Subject.DATASET.named(r.dataset, r.dataset)
    if r.dropped:
        bodies, size = r.bodies + r.set_aside.bodies, r.bytes + r.set_aside.bytes
        yield dataset.warning(
            f"{r.dataset} was dropped, and the spool still holds {plural(bodies, 'body')} of {plural(size, 'byte')} "
            f"that {agreeing(bodies, 'was')} received for it and can never be ingested",
            f"`strandline spool clear {r.dataset}` removes them",
        )
        return
    for b in r.batches:
        if b.reason is not None:
            yield dataset.warning(
                f"{r.dataset}: {plural(b.rows, 'row')} that {agreeing(b.rows, 'was')} received cannot be ingested: "
                f"{b.reason}",
                f"{'it stays' if b.rows == 1 else 'they stay'} in the spool, and the receiver tries again "
                f"({plural(b.tries, 'time')} so far)",
            )
    if r.set_aside.bodies:
        aside = r.set_aside
        yield dataset.error(
            f"{r.dataset}: {plural(aside.bodies, 'body')} of {plural(aside.rows, 'row')} could not be ingested and "
            f"{agreeing(aside.bodies, 'waits')} for you",
            "`strandline spool list` says why",
        )
    if files := r.unrecorded.files:
        why = "" if r.unrecorded.reason is None else f" ({r.unrecorded.reason})"
        yield dataset.error(
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
        yield Subject.QUARANTINE.named(name, lanes[0].dataset).warning(
            f"sink {name} refused {plural(rows, 'row')} that {agreeing(rows, 'waits')} in quarantine",
            f"`strandline sink quarantine list {name}` says why; replay or discard {'it' if rows == 1 else 'them'}",
        )


def _of_sink(one: SinkStatus, now: datetime) -> Iterator[StatusProblem]:
    name, sink = one.name, Subject.SINK.named(one.name, one.dataset)
    why = reason_of(name, one.reason)
    match one.state:
        case "stopped":
            yield sink.error(
                f"sink {name} is stopped: {why}",
                f"fix the cause, then run `strandline sink resume {name}`; if the destination lost rows or holds "
                f"others, `strandline sink recover {name}` says what can be done",
            )
        case "waiting":
            tries = f"{plural(one.retries, 'try')} failed" if one.retries else "waits"
            yield sink.warning(f"sink {name}: {tries}: {why}", _next_try(one, now))
        case "paused" if one.sink_lag_rows != 0:
            yield sink.warning(
                f"sink {name} is paused, and rows wait ({lag_text(one.sink_lag_rows, one.sink_lag_seconds)})",
                f"`strandline sink resume {name}` continues" + (f"; before that: {why}" if one.reason else ""),
            )
        case _ if one.reason:
            yield sink.error(f"sink {name}: {why}", f"details: `strandline sink show {name}`")
    if one.held_since is not None:
        yield sink.warning(
            f"sink {name} has held retention back for {age(one.held_since, now)}: {waiting_text(one.held_rows)}",
            f"`strandline sink show {name}` shows its progress",
        )
    if one.lost_rows:
        yield sink.error(
            f"sink {name} will not get {plural(one.lost_rows, 'row')}, deleted before it had "
            f"{'it' if one.lost_rows == 1 else 'them'}",
            "`strandline audit` says when and why",
        )
    if one.unknown_losses:
        reason = f"sink {name} may lack rows that were deleted or left out"
        yield sink.error(reason, f"`strandline verify {name}` says what it has")


def _of_consumer(c: ConsumerStatus, now: datetime) -> Iterator[StatusProblem]:
    consumer = Subject.CONSUMER.named(c.name, c.dataset)
    if c.held_since is not None:
        yield consumer.warning(
            f"consumer {c.name} has held retention of {c.dataset} back for {age(c.held_since, now)}: it lacks "
            f"{lag_text(c.lag_rows, c.lag_seconds)}",
            f"start its query, or give it up: `strandline consumer remove {c.name}`",
        )
    if c.dropped_upto is not None and c.dropped_upto > (c.watermark or 0):
        yield consumer.error(
            f"consumer {c.name} will not get rows of {c.dataset} up to {c.dropped_upto:,} that were deleted before it "
            "had them",
            "`strandline audit` says how many, and when",
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
    lake = Subject.LAKE.named(None, None)
    for name in found.rules_without_dataset:
        reason = f"the retention rule for {name} has no effect: there is no such dataset"
        yield lake.warning(reason, "create the dataset, or remove the rule")
    for key in found.overridden:
        reason = f"the applied {key} is ignored: the settings file sets it, too"
        yield lake.warning(reason, "remove it from one of the two")
    for d in found.datasets:
        dataset = Subject.DATASET.named(d.dataset, d.dataset)
        for h in (h for h in d.held_by if h.sink is None):
            reason = f"retention keeps rows of {d.dataset} for {h.name}, which may lack them, since {age(h.since, now)}"
            yield dataset.warning(reason, "at the leader, `strandline sink list` says how far it is")
        for r in d.last:
            if r.outcome in _OUTCOMES:
                reason = f"{d.dataset}: {r.kind} {_OUTCOMES[r.outcome]}: {r.reason}"
                yield dataset.warning(reason, f"details: `strandline maintenance show {r.id}`")


def _of_reconciler(found: ReconcileStatus) -> Iterator[StatusProblem]:
    reconciler = Subject.RECONCILER.named(None, None)
    last = f"details: `strandline reconcile show {found.last_run}`"
    if found.aborted is not None:
        before = ", before it had compared anything" if found.orphans is None else ""
        yield reconciler.warning(f"run {found.last_run} of the reconciler ended early ({found.aborted}){before}", last)
    elif doubts := [doubt for doubt in found.doubts or () if doubt != Doubt.PARTIAL]:
        reason = f"the result of reconciler run {found.last_run} may be incomplete or wrong ({', '.join(doubts)})"
        yield reconciler.warning(reason, last)
    seen = found.compared
    if seen is not None and (seen.missing or seen.orphans or seen.partial):
        part = ". It could not check everything: there may be more." if seen.partial else "."
        report = reconciler.error if seen.missing else reconciler.warning
        yield report(
            f"run {seen.run} of the reconciler left {plural(seen.missing, 'missing file')} and "
            f"{plural(seen.orphans, 'orphan file')}",
            f"details: `strandline reconcile show {seen.run}`{part}",
        )
