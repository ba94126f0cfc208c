"""Restores quarantined files, or purges them after a while. Every step can be repeated: after a crash a file may be in
two places, and the record names both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from itertools import islice
from typing import TypeVar

from strandline.core import failpoints
from strandline.core.errors import LeaseLost, RefusedError, StorageError
from strandline.core.records.audit_events import Event
from strandline.core.records.reconcile_records import ReconcileRunId, Swept, SweptState
from strandline.core.text.wording import plural
from strandline.ledger import audit
from strandline.ledger.engine import Connection, utc_now
from strandline.ledger.reconcile import quarantined_files, reconcile_runs
from strandline.reconcile.context import SweepContext
from strandline.reconcile.model import Phase
from strandline.reconcile.references.collect import LakeReferences
from strandline.reconcile.run_watch import Aborted, RunWatch, under_lease
from strandline.reconcile.settle import SweptFile, check_both_places, settle_dead_runs

OnFiles = Callable[[int, int], None]  # files done, and files in total
TAKEN = "another file is in its place, which a table references; it stays in quarantine"
# how the restore of one file ended, unless it failed
_BACK, _IN_PLACE, _TAKEN, _LOST, _LEFT = "back", "in place", "taken", "lost", "left"
_VANISHED = "it is no longer in quarantine"
_T = TypeVar("_T")
_PATHS_NAMED_MAX = 100
_UNBOUNDED_SECONDS = 365 * 86_400.0
_KEPT_STATES = (*quarantined_files.IN_QUARANTINE, SweptState.LOST)


@dataclass(slots=True)
class Restored:
    run: ReconcileRunId
    restored: int = 0
    already: int = 0  # they were in their place already
    taken: list[str] = field(default_factory=list)  # another file is in their place; they stay in quarantine
    lost: list[str] = field(default_factory=list)  # in neither place
    failed: list[str] = field(default_factory=list)


@dataclass(slots=True)
class PurgedFiles:
    purged: int = 0
    bytes: int = 0
    brought_back: int = 0  # a table references them by now, and their file was gone
    waiting: int = 0  # not old enough, or it is unknown whether they are referenced
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FilesToPurge:
    """By the ledger alone: a purge keeps those that a table references by then."""

    files: int
    bytes: int
    waiting: int  # not old enough
    paths: Sequence[str]  # of the first ones


def restore(context: SweepContext, run: int, on_progress: OnFiles = lambda done, total: None) -> Restored:
    """Moves all files that a run quarantined, and that are still there, back to where they were."""
    with context.ledger.read() as connection:
        reconcile_runs.get(connection, run)
        if run in reconcile_runs.runs_in_other_folders(connection, context.folder):
            raise RefusedError(
                f"run {run} quarantined files in a folder that this machine does not have",
                hint="Restore them on the machine that has made the run.",
            )
    return _with_lease(context, lambda watch: _restore(context, ReconcileRunId(run), watch, on_progress))


def files_to_purge(context: SweepContext, run: int | None = None) -> FilesToPurge:
    """What a purge would delete; changes nothing."""
    with context.ledger.read() as connection:
        if run is not None:
            reconcile_runs.get(connection, run)
        files, due = _due(context, connection, None if run is None else ReconcileRunId(run))
    going = [file for file in due if file.state is not SweptState.LEFT]
    paths = [file.path for file in going[:_PATHS_NAMED_MAX]]
    return FilesToPurge(len(going), sum(file.size for file in going), _held(files) - len(going), paths)


def purge(
    context: SweepContext, run: int | None = None, on_progress: OnFiles = lambda done, total: None
) -> PurgedFiles:
    """Checks and deletes the files that were quarantined long enough ago."""
    if run is not None:
        context.ledger.query(reconcile_runs.get, run)
    chosen = None if run is None else ReconcileRunId(run)
    return _with_lease(context, lambda watch: _purge(context, chosen, watch, on_progress))


def _with_lease(context: SweepContext, work: Callable[[RunWatch], _T]) -> _T:
    try:
        with under_lease(context, run_seconds_max=_UNBOUNDED_SECONDS) as watch:
            settle_dead_runs(context, watch, entries=False)
            return work(watch)
    except Aborted as e:
        raise LeaseLost(e.why, hint="What was done until then is on record. Wait for the other run, and repeat.") from e


def _restore(context: SweepContext, run: ReconcileRunId, watch: RunWatch, on_progress: OnFiles) -> Restored:
    files = context.ledger.query(quarantined_files.of_run, run, _KEPT_STATES)
    result = Restored(run)
    waiting = iter(files)
    done = 0
    on_progress(0, len(files))
    while some := list(islice(waiting, context.settings.batch_size)):
        context.ledger.change(watch.fence)
        ends: dict[str, list[Swept]] = {}
        for seen in check_both_places(context, some):
            ends.setdefault(_bring_back(context, seen, watch), []).append(seen.file)
        back, in_place, gone = (ends.pop(end, []) for end in (_BACK, _IN_PLACE, _LOST))
        failpoints.hit("reconcile.after_restored")
        with context.ledger.write() as connection:
            quarantined_files.move(connection, [*back, *in_place], SweptState.RESTORED, "restored")
            not_purged = [file for file in gone if file.state is not SweptState.PURGING]
            quarantined_files.move(connection, not_purged, SweptState.LOST, "in neither place")
            if back:
                samples = [file.path for file in back[: context.settings.samples_max]]
                audit.record(connection, Event.FILES_RESTORED, run=run, files=len(back), samples=samples)
        failpoints.hit("reconcile.after_restore")
        result.restored += len(back)
        result.already += len(in_place)
        result.lost += [file.path for file in gone]
        result.taken += [file.path for file in ends.pop(_TAKEN, [])]
        ends.pop(_LEFT, [])
        result.failed += [f"{file.path}: {why}" for why, failed in ends.items() for file in failed]
        done += len(some)
        on_progress(done, len(files))
    return result


def _bring_back(context: SweepContext, seen: SweptFile, watch: RunWatch) -> str:
    """How it ended, or why it failed."""
    file = seen.file
    if (error := seen.error) is not None:
        return error.message
    if seen.at_quarantine is None and file.state is SweptState.LEFT:
        return _LEFT
    if seen.at_quarantine is None:
        return _LOST if seen.at_path is None else _IN_PLACE
    if seen.at_path is not None:
        return _in_both_places(context, seen)
    watch.last_word()
    failpoints.hit("reconcile.before_restore")
    try:
        if context.storage.bring_back(file.kept_at, file.path):
            return _BACK
        return _LOST if context.storage.find_file(file.path) is None else _TAKEN
    except StorageError as e:
        return e.message


def _in_both_places(context: SweepContext, seen: SweptFile) -> str:
    """A restore that was killed between its two steps leaves the file twice. So does a killed move, if moving means
    copying: then the copy stays until it is purged, because a run that only seems dead may still finish."""
    if seen.file.state is SweptState.LEFT:
        return _LEFT
    try:
        if not context.storage.same_content(seen.file.path, seen.file.kept_at):
            return _TAKEN
    except StorageError as e:
        return e.message
    failed = context.storage.delete([seen.file.kept_at])
    return _IN_PLACE if not failed else next(iter(failed.values()))


class Fate(StrEnum):
    """What happens to a file that was quarantined long enough ago."""

    WAITS = "waits"  # its place is unknown
    IN_PLACE = "in_place"  # it is where it was; if quarantine has it too, that is a second copy
    LOST = "lost"
    NEEDED = "needed"  # a table references it, and only the quarantine has it
    GOES = "goes"


def fate(seen: SweptFile, *, is_live: bool) -> Fate:
    if seen.error is not None:
        return Fate.WAITS
    state, at_path, at_quarantine = seen.file.state, seen.at_path is not None, seen.at_quarantine is not None
    if not at_quarantine and not at_path:
        # A LEFT file was removed by somebody else; a PURGING file is deleted.
        return {SweptState.LEFT: Fate.IN_PLACE, SweptState.PURGING: Fate.GOES}.get(state, Fate.LOST)
    if not at_quarantine or (at_path and (is_live or state is SweptState.LEFT)):
        return Fate.IN_PLACE
    return Fate.NEEDED if is_live and not at_path else Fate.GOES


def _purge(context: SweepContext, run: ReconcileRunId | None, watch: RunWatch, on_progress: OnFiles) -> PurgedFiles:
    with context.ledger.read() as connection:
        files, due = _due(context, connection, run)
        runs = reconcile_runs.latest(connection, runs_max=context.settings.history_runs)
    # the uuids of the last run that saw any table: an empty catalog is not trusted
    seen_before = next((run.outcome.tables for run in runs if run.ended_at and run.outcome.tables), {})
    result = PurgedFiles(waiting=_held(files) - _held(due))
    known: LakeReferences | None = None
    waiting = iter(due)
    done = 0
    on_progress(0, len(due))
    while some := list(islice(waiting, context.settings.batch_size)):
        watch.phase(Phase.SETTLE)
        known = context.surveyor.references(known, watch)
        _check_catalog(context, known, seen_before)
        # A table that cannot be read may reference any file, under whatever name the file was quarantined.
        if known.unread:
            result.waiting += _held([*some, *waiting])
            result.failed += [
                f"{name}: {why}; until it can be read, everything waits" for name, why in known.unread.items()
            ]
            break
        _purge_batch(context, some, known, watch, result)
        done += len(some)
        on_progress(done, len(due))
    return result


def _due(context: SweepContext, connection: Connection, run: ReconcileRunId | None) -> tuple[list[Swept], list[Swept]]:
    """The files in quarantine, and those of them that were moved there long enough ago."""
    before = utc_now() - timedelta(days=context.settings.quarantine_days)
    files = context.here(connection, quarantined_files.due_for_purge(connection, before=utc_now(), run=run))
    return files, [file for file in files if file.begun_at <= before]


def _check_catalog(context: SweepContext, known: LakeReferences, seen_before: Collection[str]) -> None:
    """Raises RefusedError if this may not be the same catalog as always: unreferenced files are deleted for good."""
    refused = context.loader.gate({head.name: head.uuid for head in known.tables}, known.unread.keys())
    if refused is not None:
        raise RefusedError(
            refused,
            hint="Nothing more is deleted, and what is in quarantine can be restored. If the clock is "
            "doubted, `strandline reconcile --act` takes note of it; purge after that.",
        )
    gone = sorted(set(seen_before) - {head.uuid for head in known.tables})
    if known.unread or not gone:
        return
    if not known.tables:
        raise RefusedError(
            f"the catalog has no tables, and the last run that found any knew {plural(len(seen_before), 'table')}",
            hint="If all were dropped, what is in quarantine can be deleted by hand. If not, this is not the catalog "
            "of record.",
        )
    raise RefusedError(
        f"the last run knew a table that the catalog does not have: {gone[0]}"
        + (f", and {len(gone) - 1:,} more" if len(gone) > 1 else ""),
        hint="If it was dropped, run `strandline reconcile`, which records that, and then purge. If not, this is not "
        "the catalog of record.",
    )


def _held(files: Sequence[Swept]) -> int:
    return sum(1 for file in files if file.state is not SweptState.LEFT)


def _purge_batch(
    context: SweepContext, some: Sequence[Swept], known: LakeReferences, watch: RunWatch, result: PurgedFiles
) -> None:
    paths = [file.path for file in some]
    live = known.referenced(paths) | context.loader.spooled(paths)
    ends: dict[Fate, list[Swept]] = {end: [] for end in Fate}
    for seen in check_both_places(context, list(some)):
        file, end = seen.file, fate(seen, is_live=seen.file.path in live)
        why = _before(context, file, end, file.path in live, watch) if seen.at_quarantine is not None else None
        if why is not None:
            result.failed.append(f"{file.path}: {why}")
            end = Fate.WAITS
        ends[end].append(file)
    goes = ends[Fate.GOES]
    with context.ledger.write() as connection:
        watch.fence(connection)
        quarantined_files.move(connection, ends[Fate.NEEDED], SweptState.RESTORED, "a table references it")
        quarantined_files.move(connection, ends[Fate.LOST], SweptState.LOST, "in neither place")
        quarantined_files.move(connection, goes, SweptState.PURGING)
    failpoints.hit("reconcile.after_purge_record")
    refused = context.storage.delete([file.kept_at for file in (*goes, *ends[Fate.IN_PLACE])])
    result.failed += [f"{kept_at}: {why}" for kept_at, why in refused.items()]
    failpoints.hit("reconcile.after_purged")
    gone = [replace(file, state=SweptState.PURGING) for file in goes if file.kept_at not in refused]
    size = sum(file.size for file in gone)
    with context.ledger.write() as connection:
        in_place = [file for file in ends[Fate.IN_PLACE] if file.kept_at not in refused]
        quarantined_files.move(connection, in_place, SweptState.RESTORED, "it is in its place")
        quarantined_files.move(connection, gone, SweptState.PURGED)
        samples = [file.path for file in gone[: context.settings.samples_max]]
        audit.record(connection, Event.FILES_PURGED, files=len(gone), bytes=size, samples=samples)
    result.purged += len(gone)
    result.bytes += size
    result.brought_back += len(ends[Fate.NEEDED])
    result.waiting += len(ends[Fate.WAITS])


def _before(context: SweepContext, file: Swept, end: Fate, is_live: bool, watch: RunWatch) -> str | None:
    """Does what must happen before a quarantined file may be deleted; returns why it has to stay, or None."""
    try:
        if end is Fate.NEEDED:
            watch.last_word()
            if context.storage.bring_back(file.kept_at, file.path):
                return None
            return _VANISHED if context.storage.find_file(file.path) is None else TAKEN
        if end is Fate.IN_PLACE and is_live and not context.storage.same_content(file.path, file.kept_at):
            return TAKEN
    except StorageError as e:
        return e.message
    return None
