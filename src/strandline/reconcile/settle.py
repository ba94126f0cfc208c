"""Settles what a dead run left: checks storage, and corrects the record. It moves nothing.

A file that was about to be quarantined is in one of two places, and both are on record. A run that only seems dead may
still move a file that is in its old place now, and then records that. Until then every reader of the record checks
storage, too. A commit that drops entries is different: its token is voided first, so that the answer is final.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from strandline.core.errors import StorageError, StrandlineError
from strandline.core.records.audit_events import Event
from strandline.core.records.reconcile_records import (
    AbortReason,
    Done,
    FindingKind,
    ReconcileRun,
    ReconcileRunId,
    Swept,
    SweptState,
)
from strandline.ledger import audit
from strandline.ledger.engine import Connection
from strandline.ledger.ingest import datasets
from strandline.ledger.reconcile import dropped_entries, quarantined_files, reconcile_runs
from strandline.ledger.reconcile.dropped_entries import DroppedBatch
from strandline.reconcile.context import SweepContext
from strandline.reconcile.model import Stat
from strandline.reconcile.paths import checksum_of, metadata_version
from strandline.reconcile.run_watch import RunWatch

_GONE = "in neither place"
_RUNS_AT_ONCE = 20
_PHASES_OF_SETTLED = 2  # a run that has begun another phase has settled what was before it
# files that went back do not count, just as in a live run
_ACTED = (SweptState.HELD, SweptState.PURGING, SweptState.PURGED, SweptState.LOST)


@dataclass(frozen=True, slots=True)
class SweptFile:
    """A swept file, and what is in its two places."""

    file: Swept
    at_path: Stat | StorageError | None
    at_quarantine: Stat | StorageError | None

    @property
    def error(self) -> StorageError | None:
        """Why it is not known where the file is."""
        return next((stat for stat in (self.at_path, self.at_quarantine) if isinstance(stat, StorageError)), None)


def check_both_places(context: SweepContext, files: list[Swept]) -> list[SweptFile]:
    stats = context.find_files([p for f in files for p in (f.path, f.kept_at)])
    return [SweptFile(f, stats[2 * n], stats[2 * n + 1]) for n, f in enumerate(files)]


def true_state(seen: SweptFile) -> SweptState | None:
    """The state that storage shows; None if it is unchanged, or unknown."""
    if seen.error is not None:
        return None
    at_path, at_quarantine = seen.at_path is not None, seen.at_quarantine is not None
    match seen.file.state:
        case SweptState.BEGUN if at_path:
            return SweptState.LEFT
        case SweptState.BEGUN:
            return SweptState.HELD if at_quarantine else SweptState.LOST
        case SweptState.LEFT if at_quarantine and not at_path:
            return SweptState.HELD
        case SweptState.HELD if at_path and not at_quarantine:
            return SweptState.RESTORED
        case SweptState.PURGING if not at_quarantine:
            return SweptState.RESTORED if at_path else SweptState.PURGED
    return None


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """Where files are now, by the state that storage shows; files with their recorded state."""

    by_state: Mapping[SweptState, list[Swept]]

    def record(self, connection: Connection, why: str | None) -> None:
        for state, files in self.by_state.items():
            changed = [file for file in files if file.state is not state]
            quarantined_files.move(connection, changed, state, _GONE if state is SweptState.LOST else why)


def locate_files(context: SweepContext, files: list[Swept]) -> FoundFiles:
    """A file that cannot be checked keeps its recorded state."""
    by_state: dict[SweptState, list[Swept]] = {}
    for seen in check_both_places(context, files):
        by_state.setdefault(true_state(seen) or seen.file.state, []).append(seen.file)
    return FoundFiles(by_state)


def settle_files(context: SweepContext, files: list[Swept], why: str | None = None) -> Mapping[SweptState, list[Swept]]:
    """Records where the files are. Returns them by their new state."""
    found = locate_files(context, files)
    context.ledger.change(found.record, why)
    return found.by_state


def close_dead_run(connection: Connection) -> None:
    """Ends the run that is still on record as under way: the holder of the lease takes it for dead. The next call of
    `settle_dead_runs` finds out what it left."""
    dead = reconcile_runs.find_running(connection)
    if dead is not None:
        reconcile_runs.close_dead(connection, dead.id, replace(dead.outcome, done=done_so_far(connection, dead)))


def _unsettled(connection: Connection, run: ReconcileRunId | None) -> list[ReconcileRun]:
    """The runs before this one (None: all) that may have left something which nobody has settled: those since the last
    one that got past its settling, or that somebody has settled. Newest first."""
    found: list[ReconcileRun] = []
    while some := reconcile_runs.latest(connection, runs_max=_RUNS_AT_ONCE, before=run):
        for one in some:
            if one.aborted is None or one.outcome.settled or len(one.outcome.phases) >= _PHASES_OF_SETTLED:
                return found
            found.append(one)
        run = some[-1].id
    return found


def settle_dead_runs(
    context: SweepContext, watch: RunWatch, *, run: ReconcileRunId | None = None, entries: bool = True
) -> list[str]:
    """Settles before anything new is touched, for the run `run` or another operation: to the holder of the lease, every
    earlier run is dead. Returns which batches of entries could not be settled; they need the catalog."""
    with context.ledger.read() as connection:
        files = quarantined_files.in_state(connection, SweptState.BEGUN)
        files += quarantined_files.in_state(connection, SweptState.PURGING)
        drops = dropped_entries.begun(connection) if entries else []
        dead = _unsettled(connection, run)
        if any(one.asked.act for one in dead):
            # A dead run may have brought files back, of any run, without recording it.
            files += quarantined_files.in_state(connection, SweptState.HELD)
        files = context.here(connection, files)
    found = locate_files(context, files)
    if files:
        with context.ledger.write() as connection:
            watch.hold(connection)
            found.record(connection, "its run died")
            _record_late(connection, context, dead, found.by_state)
    failures: list[str] = []
    for batch in drops:
        try:
            _settle_batch(context, batch, watch)
        except StrandlineError as e:
            failures.append(f"whether a batch of entries of run {batch.run} was dropped is not known: {e.message}")
    settled = len(drops) - len(failures)
    with context.ledger.write() as connection:
        watch.hold(connection)
        if run is None:
            close_dead_run(connection)
        for one in dead:
            _correct(connection, one.id)
        if files or settled:
            states = {state.value: len(some) for state, some in found.by_state.items()}
            runs = sorted({file.run for file in files} | {batch.run for batch in drops})
            audit.record(connection, Event.RUN_SETTLED, runs=runs, files=states, batches_of_entries=settled)
    return failures


def _correct(connection: Connection, run: ReconcileRunId) -> None:
    """Corrects what a run has done that was closed as dead before its files were checked."""
    found = reconcile_runs.get(connection, run)
    done = done_so_far(connection, found) if found.aborted is AbortReason.DIED else found.outcome.done
    reconcile_runs.correct(connection, run, done, settled=True)


def _record_late(
    connection: Connection, context: SweepContext, dead: Sequence[ReconcileRun], found: Mapping[SweptState, list[Swept]]
) -> None:
    """Records what a dead run or purge did without recording it."""
    deleting = {one.id for one in dead if one.asked.delete}
    for event, was, now in (
        (Event.FILES_QUARANTINED, SweptState.BEGUN, SweptState.HELD),
        (Event.FILES_PURGED, SweptState.PURGING, SweptState.PURGED),
    ):
        by_run: dict[ReconcileRunId, list[Swept]] = {}
        for file in found.get(now, ()):
            if file.state is was:
                by_run.setdefault(file.run, []).append(file)
        for run, some in sorted(by_run.items()):
            audit.record(
                connection,
                Event.FILES_DELETED if was is SweptState.PURGING and run in deleting else event,
                run=run,
                files=len(some),
                bytes=sum(file.size for file in some),
                storage=context.storage.kind.value,
                settled=True,
                samples=[file.path for file in some[: context.settings.samples_max]],
            )


def _settle_batch(context: SweepContext, batch: DroppedBatch, watch: RunWatch) -> None:
    context.ledger.change(watch.hold)  # before the token is voided: it may belong to a run under way
    dropped = context.catalog.dropped(batch.table, batch.token)
    if dropped is None and not context.catalog.may_have(batch.table, batch.samples):
        dropped = batch.entries  # it landed, and the snapshot that says so has expired since
    with context.ledger.write() as connection:
        watch.hold(connection)
        dropped_entries.end(connection, batch, dropped)
        if dropped:
            record_dropped(connection, context, batch, dropped, settled=True)
        done = reconcile_runs.get(connection, batch.run).outcome.done
        reconcile_runs.correct(connection, batch.run, replace(done, missing=_dropped(connection, batch.run)))


def record_dropped(
    connection: Connection, context: SweepContext, batch: DroppedBatch, dropped: int, **more: object
) -> None:
    audit.record(
        connection,
        Event.ENTRIES_DROPPED,
        run=batch.run,
        table=batch.table,
        entries=dropped,
        rows=sum(gone.count for gone in batch.gone),
        lost_to={x.name: sum(y.count for y in batch.lost if y.name == x.name) for x in batch.lost},
        storage=context.storage.kind.value,
        samples=batch.samples[: context.settings.samples_max],
        **more,
    )


def _dropped(connection: Connection, run: ReconcileRunId) -> int:
    return sum(batch.dropped or 0 for batch in dropped_entries.of_run(connection, run))


def done_so_far(connection: Connection, run: ReconcileRun) -> Done:
    """By the record of files and batches, not by the run's own counters."""
    files = quarantined_files.of_run(connection, run.id, _ACTED)
    names = {dataset.name for dataset in datasets.list_datasets(connection)}
    kinds = Counter(FindingKind.SUPERSEDED if _is_superseded(file, names) else file.kind for file in files)
    return replace(
        run.outcome.done,
        missing=_dropped(connection, run.id),
        orphans=kinds[FindingKind.ORPHAN],
        foreign=kinds[FindingKind.FOREIGN],
        superseded=kinds[FindingKind.SUPERSEDED],
        bytes=sum(file.size for file in files),
    )


def _is_superseded(file: Swept, datasets: Collection[str]) -> bool:
    """Superseded metadata is recorded as an orphan, but its name shows a version that the table has passed."""
    name = file.path.rpartition("/")[2]
    is_metadata = file.kind is FindingKind.ORPHAN and metadata_version(checksum_of(name) or name) is not None
    return is_metadata and file.table in datasets
