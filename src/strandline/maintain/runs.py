"""Records a run of maintenance in the ledger: registers it, keeps it alive, and stores its result."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from strandline.core import failpoints
from strandline.core.activity import ActivityKind, Stopwatch
from strandline.core.calling_off import CALLED_OFF, called_off_by
from strandline.core.documents import json_text
from strandline.core.errors import (
    AlreadyRunning,
    CalledOff,
    FailedError,
    LeaseLost,
    RefusedError,
    Skipped,
    StrandlineError,
    unexpected_message,
)
from strandline.core.records.audit_events import Event
from strandline.core.records.maintenance_records import MaintenanceKind, MaintenanceOutcome
from strandline.core.types import Dataset
from strandline.jobs.heartbeat import beating
from strandline.jobs.node import node
from strandline.jobs.store_end import NOBODY_WAITS, store_end
from strandline.ledger import audit
from strandline.ledger.engine import utc_now
from strandline.ledger.maintain import runs
from strandline.ledger.maintain.runs import MaintenanceRun, MaintenanceRunId, NewRun
from strandline.maintain.context import MaintainContext, MaintainProgress

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
# Called right before a run commits files; raises `LeaseLost` if the run was taken for dead. Such a run must not commit
# its files: the reconciler may have quarantined them as orphan files.
StillAlive = Callable[[], None]
MaintenanceWork = Callable[[StillAlive], T]


@dataclass(frozen=True, slots=True)
class RunControl:
    """How the caller that started a run controls it while it works."""

    stopping: threading.Event = field(default_factory=threading.Event)  # set: the run ends before its next durable step
    on_begun: Callable[[MaintenanceRunId], None] = lambda run: None  # gets the run's id as soon as it is on record
    # Set when the ledger says that somebody has called this run off. `stopping` may be for all work of a process.
    called_off: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        if self.stopping.is_set() or self.called_off.is_set():
            raise CalledOff(CALLED_OFF, hint="What it has committed stays; the next run continues from there.")

    def obeying_calls_to_stop(self) -> AbstractContextManager[None]:
        """Inside, the work of this thread ends when the run is called off: its Spark jobs are cancelled."""
        return called_off_by(self.stopping, self.called_off)

    def checking(self, progress: MaintainProgress) -> MaintainProgress:
        """The progress callback, which also ends a run that was called off, where a step is about to begin."""

        def checked(step: str, done: int, total: int | None) -> None:
            if total is None or done < total:  # a step that is done must get into the result
                self.check()
            progress(step, done, total)

        return checked


@dataclass(frozen=True, slots=True)
class RunResult(Generic[T]):
    """The result of a run, and its record."""

    run: MaintenanceRun
    result: T


def rehearse(
    context: MaintainContext,
    dataset: Dataset,
    kind: MaintenanceKind,
    work: MaintenanceWork[T],
    control: RunControl | None = None,
) -> RunResult[T]:
    """Runs the work as a dry run, which blocks no other run and writes no files that the reconciler would have to
    spare."""
    control = control or RunControl()
    new, started_at = NewRun(dataset.id, kind, node()), utc_now()
    try:
        with control.obeying_calls_to_stop():
            result = work(lambda: None)
    except Exception as e:
        outcome, reason = _outcome_of(e, kind)
        context.ledger.change(
            runs.record_dry_run, new, started_at=started_at, outcome=outcome, reason=reason, result=None
        )
        raise
    with context.ledger.write() as connection:
        run = runs.record_dry_run(
            connection, new, started_at=started_at, outcome=MaintenanceOutcome.DONE, reason=None, result=plain(result)
        )
        _forget_old(context, connection, dataset, kind)
        return RunResult(runs.get(connection, run), result)


def perform(
    context: MaintainContext,
    dataset: Dataset,
    kind: MaintenanceKind,
    work: MaintenanceWork[T],
    control: RunControl | None = None,
) -> RunResult[T]:
    """Runs the work on demand; `AlreadyRunning` if a run of this kind is under way."""
    control = control or RunControl()
    if (run := _begin(context, NewRun(dataset.id, kind, node()), None)) is None:
        raise RuntimeError("only a scheduled run can belong to another daemon")
    control.on_begun(run)
    return _work(context, dataset, kind, run, work, control)


def run_scheduled(
    context: MaintainContext,
    dataset: Dataset,
    kind: MaintenanceKind,
    work: MaintenanceWork[T],
    control: RunControl | None = None,
    *,
    after: MaintenanceRunId | None,
) -> RunResult[T] | None:
    """Runs the work by schedule. None if another daemon has done this run, or if a run of this kind is under way."""
    run = _begin(context, NewRun(dataset.id, kind, node(), by_schedule=True), after)
    return None if run is None else _work(context, dataset, kind, run, work, control or RunControl())


def _begin(context: MaintainContext, new: NewRun, after: MaintenanceRunId | None) -> MaintenanceRunId | None:
    run = context.ledger.change(runs.begin, new, lease_seconds=_lease_seconds(context), after=after)
    failpoints.hit("maintain.after_begin")
    return run


def _work(
    context: MaintainContext,
    dataset: Dataset,
    kind: MaintenanceKind,
    run: MaintenanceRunId,
    work: MaintenanceWork[T],
    control: RunControl,
) -> RunResult[T]:
    def beat() -> bool:
        renewed = context.ledger.change(runs.beat, run)
        if renewed is not None and renewed.stop_asked:
            control.called_off.set()
        return renewed is not None

    def check_alive() -> None:
        if not beat():
            raise LeaseLost(
                "this run counts as dead: it did not renew its lease in time",
                hint="Its machine may have been suspended. What it has committed stays; run it again.",
            )
        control.check()

    watch = Stopwatch(ActivityKind.RUN, kind.value)
    try:
        with beating(beat, lease_seconds=_lease_seconds(context)), control.obeying_calls_to_stop():
            result = work(check_alive)
    except BaseException as e:
        outcome, reason = _outcome_of(e, kind)
        watch.report(outcome.value)

        def store_failure() -> None:
            with context.ledger.write() as connection:
                if (
                    runs.end(connection, run, outcome, reason=reason, result=None)
                    and outcome is MaintenanceOutcome.SKIPPED
                ):
                    audit.record(
                        connection, Event.RUN_SKIPPED, dataset=dataset.name, kind=kind.value, run=run, reason=reason
                    )

        with suppress(StrandlineError):  # it is logged, and `e` says more
            # A person who interrupts a command does not wait for the ledger.
            store_end(store_failure, f"run {run}", control.stopping if isinstance(e, Exception) else NOBODY_WAITS)
        raise
    failpoints.hit("maintain.before_end")

    def store_result() -> MaintenanceRun:
        with context.ledger.write() as connection:
            runs.end(connection, run, MaintenanceOutcome.DONE, reason=None, result=plain(result))
            _forget_old(context, connection, dataset, kind)
            return runs.get(connection, run)

    ended = store_end(store_result, f"run {run}", control.stopping)
    watch.report(MaintenanceOutcome.DONE.value)
    return RunResult(ended, result)


def _lease_seconds(context: MaintainContext) -> int:
    return context.config.settings.ingest.lease_seconds


def _forget_old(context: MaintainContext, connection: Any, dataset: Dataset, kind: MaintenanceKind) -> None:
    runs.forget_old(connection, dataset.id, kind, runs_kept=context.config.settings.maintain.runs_kept)


def _outcome_of(error: BaseException, kind: MaintenanceKind) -> tuple[MaintenanceOutcome, str]:
    match error:
        case Skipped():
            outcome, reason = MaintenanceOutcome.SKIPPED, error.message
        case RefusedError():
            outcome, reason = MaintenanceOutcome.REFUSED, error.message
        case StrandlineError():
            outcome, reason = MaintenanceOutcome.FAILED, error.message
        case KeyboardInterrupt():
            outcome, reason = MaintenanceOutcome.FAILED, "interrupted"
        case _:
            outcome, reason = MaintenanceOutcome.FAILED, unexpected_message(error)
    if kind is MaintenanceKind.PURGE and not isinstance(error, CalledOff):
        reason = redacted_message(error)
    return outcome, reason


def redacted_message(error: BaseException) -> str:
    """The message of a failed purge, for records and answers that others may read."""
    return f"{type(error).__name__}; its message is not stored, because it may repeat the condition or values of a row"


def redacted(error: Exception) -> StrandlineError:
    """The error of a purge for records, answers and logs: of the same kind, with a redacted message."""
    if isinstance(error, CalledOff | AlreadyRunning):
        return error  # their messages do not contain the condition
    return (type(error) if isinstance(error, StrandlineError) else FailedError)(redacted_message(error))


def plain(result: DataclassInstance) -> dict[str, Any]:
    """The result as JSON values, so that it looks the same now and when it is read from the ledger later."""
    document: dict[str, Any] = json.loads(json_text(result))
    return document
