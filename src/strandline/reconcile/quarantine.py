"""What was set aside: brought back, or deleted for good after a while. Every step can be repeated: what a crash leaves
is two places to look at, and a record that names both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from typing import TypeVar

from strandline import failpoints
from strandline.drift import Event, RunId, Swept, SweptState
from strandline.errors import StorageError
from strandline.ledger import audit, quarantined_files, reconcile_runs
from strandline.ledger.engine import utc_now
from strandline.reconcile.bench import SweepBench
from strandline.reconcile.model import Phase, References, Stat
from strandline.reconcile.settle import Seen, looked, settle_dead_runs
from strandline.reconcile.sweep import take_sweep_lease
from strandline.reconcile.watch import RunWatch

PURGE_AT_ONCE_MAX = 1_000
_T = TypeVar("_T")
_UNBOUNDED_SECONDS = 365 * 86_400.0
_KEPT_STATES = (*quarantined_files.THERE, SweptState.LOST)


@dataclass(frozen=True, slots=True)
class Restored:
    run: RunId
    restored: int
    already: int
    """They were in their place."""
    taken: tuple[str, ...]
    """Another file is in their place; they stay in quarantine."""
    lost: tuple[str, ...]
    """In neither place."""
    failed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Purged:
    purged: int
    bytes: int
    brought_back: int
    """A table references them by now, and their file was gone."""
    waiting: int
    """Not old enough, or whether they are referenced cannot be told."""
    failed: tuple[str, ...]


def restore(bench: SweepBench, run: int) -> Restored:
    """Everything that a run has set aside and that is still there, to where it was."""
    with bench.ledger.read() as connection:
        reconcile_runs.get(connection, run)
    return _with_lease(bench, lambda watch: _restore(bench, RunId(run), watch))


def purge(bench: SweepBench, run: int | None = None) -> Purged:
    """What was set aside long enough ago: looked at once more, and deleted."""
    if run is not None:
        with bench.ledger.read() as connection:
            reconcile_runs.get(connection, run)
    return _with_lease(bench, lambda watch: _purge(bench, None if run is None else RunId(run), watch))


def _with_lease(bench: SweepBench, work: Callable[[RunWatch], _T]) -> _T:
    lease = take_sweep_lease(bench)
    watch = RunWatch(
        bench.ledger, lease, lease_seconds=bench.settings.lease_seconds, run_seconds_max=_UNBOUNDED_SECONDS
    )
    try:
        with watch.beating():
            settle_dead_runs(bench, watch, entries=False)
            return work(watch)
    finally:
        reconcile_runs.release(bench.ledger, lease)


# ---- back ------------------------------------------------------------------------------------------------------------


def _restore(bench: SweepBench, run: RunId, watch: RunWatch) -> Restored:
    with bench.ledger.read() as connection:
        files = quarantined_files.of_run(connection, run, _KEPT_STATES)
    restored = already = 0
    taken: list[str] = []
    lost: list[str] = []
    failed: list[str] = []
    waiting = iter(files)
    while some := list(islice(waiting, bench.settings.batch_size)):
        with bench.ledger.write() as connection:
            watch.fence(connection)
        back: list[Swept] = []
        there: list[Swept] = []
        gone: list[Swept] = []
        for seen in looked(bench, some):
            match _bring_back(bench, seen, watch):
                case "back":
                    back.append(seen.file)
                case "there":
                    there.append(seen.file)
                case "taken":
                    taken.append(seen.file.path)
                case "lost":
                    gone.append(seen.file)
                case "left":
                    pass
                case why:
                    failed.append(f"{seen.file.path}: {why}")
        failpoints.hit("reconcile.after_restored")
        with bench.ledger.write() as connection:
            quarantined_files.move(connection, [*back, *there], SweptState.RESTORED, "restored")
            quarantined_files.move(
                connection, [f for f in gone if f.state is not SweptState.PURGING], SweptState.LOST, "in neither place"
            )
            if back:
                samples = [file.path for file in back[: bench.settings.samples_max]]
                audit.record(connection, Event.FILES_RESTORED.value, run=run, files=len(back), samples=samples)
        failpoints.hit("reconcile.after_restore")
        restored, already = restored + len(back), already + len(there)
        lost += [file.path for file in gone]
    return Restored(run, restored, already, tuple(taken), tuple(lost), tuple(failed))


def _bring_back(bench: SweepBench, seen: Seen, watch: RunWatch) -> str:
    file = seen.file
    for stat in (seen.at_path, seen.at_kept):
        if isinstance(stat, StorageError):
            return stat.message
    if seen.at_kept is None:
        if seen.at_path is None:
            return "lost"
        return "left" if file.state is SweptState.LEFT else "there"
    if seen.at_path is not None:
        return _both_there(bench, seen)
    watch.last_word()
    failpoints.hit("reconcile.before_restore")
    try:
        return "back" if bench.storage.bring_back(file.kept_at, file.path) else "taken"
    except StorageError as e:
        return e.message


def _both_there(bench: SweepBench, seen: Seen) -> str:
    """A restore that was killed between its two steps leaves the file twice. A move that was killed does, too, on
    storage that copies: then the copy stays until it is purged, since a run that only seems dead may yet finish."""
    if seen.file.state is SweptState.LEFT:
        return "left"
    at_path, at_kept = seen.at_path, seen.at_kept
    if not isinstance(at_path, Stat) or not isinstance(at_kept, Stat) or at_path.size != at_kept.size:
        return "taken"
    if bench.storage.kind == "local" and at_path != at_kept:
        return "taken"
    failed = bench.storage.delete([seen.file.kept_at])
    return "there" if not failed else next(iter(failed.values()))


# ---- for good --------------------------------------------------------------------------------------------------------


def _purge(bench: SweepBench, run: RunId | None, watch: RunWatch) -> Purged:
    before = utc_now() - timedelta(days=bench.settings.quarantine_days)
    with bench.ledger.read() as connection:
        every = quarantined_files.due_for_purge(connection, before=utc_now(), run=run)
    due = [file for file in every if file.begun_at <= before]
    total = Purged(0, 0, 0, sum(1 for f in every if f.state is not SweptState.LEFT) - _held(due), ())
    known: References | None = None
    waiting = iter(due)
    while some := list(islice(waiting, min(bench.settings.batch_size, PURGE_AT_ONCE_MAX))):
        watch.phase(Phase.SETTLE)
        known = bench.catalog.references(known, watch)
        total = _added(total, _purge_batch(bench, some, known, watch))
    return total


def _held(files: Sequence[Swept]) -> int:
    return sum(1 for file in files if file.state is not SweptState.LEFT)


def _purge_batch(bench: SweepBench, some: Sequence[Swept], known: References, watch: RunWatch) -> Purged:
    paths = [file.path for file in some]
    live = known.referenced(paths) | bench.spooled(paths)
    ready: list[Swept] = []
    back: list[Swept] = []
    copies: list[Swept] = []
    gone_before: list[Swept] = []
    waiting = 0
    for seen in looked(bench, list(some)):
        file = seen.file
        if not seen.is_told or file.table in known.unread or (file.table is None and known.unread):
            waiting += 1
        elif file.state is SweptState.LEFT and (seen.at_path is not None or seen.at_kept is None):
            copies += [file] if seen.at_kept is not None else []
        elif seen.at_kept is None and file.state is SweptState.HELD:
            (back if seen.at_path is not None else gone_before).append(file)
        elif file.path in live and seen.at_path is None:
            watch.last_word()
            if bench.storage.bring_back(file.kept_at, file.path):
                back.append(file)
        else:
            ready.append(file)
    with bench.ledger.write() as connection:
        watch.fence(connection)
        quarantined_files.move(connection, back, SweptState.RESTORED, "it is in its place")
        quarantined_files.move(connection, gone_before, SweptState.LOST, "in neither place")
        quarantined_files.move(connection, ready, SweptState.PURGING)
    failpoints.hit("reconcile.after_purge_record")
    refused = bench.storage.delete([file.kept_at for file in (*ready, *copies)])
    failed = [f"{kept_at}: {why}" for kept_at, why in refused.items()]
    failpoints.hit("reconcile.after_purged")
    gone = [replace(file, state=SweptState.PURGING) for file in ready if file.kept_at not in refused]
    size = sum(file.size for file in gone)
    with bench.ledger.write() as connection:
        quarantined_files.move(connection, gone, SweptState.PURGED)
        samples = [file.path for file in gone[: bench.settings.samples_max]]
        audit.record(connection, Event.FILES_PURGED.value, files=len(gone), bytes=size, samples=samples)
    return Purged(len(gone), size, len(back), waiting, tuple(failed))


def _added(one: Purged, other: Purged) -> Purged:
    return Purged(
        one.purged + other.purged,
        one.bytes + other.bytes,
        one.brought_back + other.brought_back,
        one.waiting + other.waiting,
        (*one.failed, *other.failed),
    )
