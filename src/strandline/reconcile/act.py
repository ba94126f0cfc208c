"""Acts on one batch of findings: record, act, check, record.

For files:

    record BEGUN (fenced) → move → does a table reference them by now? → no: record HELD
                                                                       └─ yes: bring them back, record RESTORED

With `--delete`, then: record PURGING (fenced) → delete the copies → record PURGED. So a run that is killed in between
has deleted nothing that is not on record, and what it has not deleted yet can be restored. Spooled bodies are never
deleted at once: if the ledger was restored from an older copy, they may be the ones it has forgotten.

For entries: record the batch (fenced) → commit, with the batch's token in the snapshot summary → record what it
dropped.

A run that lost its lease and does not know it yet can still finish the move of at most a few files, whose places are on
record. It then sees that the lease is lost, or that the files are referenced, and the next missing-file sweep brings
back what is needed. A commit of entries refuses a voided token.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import uuid4

from strandline.core import failpoints
from strandline.core.errors import StorageError, StrandlineError
from strandline.core.records.audit_events import Event
from strandline.core.records.reconcile_records import (
    AbortReason,
    Asked,
    FindingKind,
    ReconcileRunId,
    Swept,
    SweptId,
    SweptState,
)
from strandline.core.types import Dataset, Seq
from strandline.ledger import audit
from strandline.ledger.deliver import lanes
from strandline.ledger.deliver.lanes import SinkWatermark
from strandline.ledger.engine import Connection
from strandline.ledger.ingest import datasets
from strandline.ledger.read import consumers
from strandline.ledger.reconcile import dropped_entries, quarantined_files
from strandline.ledger.reconcile.dropped_entries import DroppedBatch, GoneRows, NewBatch, losses_above_watermarks
from strandline.ledger.reconcile.quarantined_files import NewSwept
from strandline.ledger.replicate import followers
from strandline.reconcile.context import QUARANTINE_FOLDER, SweepContext
from strandline.reconcile.model import Finding, Move, Stat
from strandline.reconcile.paths import SPOOL_FOLDER, below
from strandline.reconcile.references.collect import LakeReferences
from strandline.reconcile.rendering import printable
from strandline.reconcile.run_counters import RunCounters
from strandline.reconcile.run_watch import Aborted, RunWatch
from strandline.reconcile.settle import record_dropped, settle_files

log = logging.getLogger(__name__)

MOVES_AT_ONCE = 100  # between two checks of the lease
OUTSIDE_FOLDER = "_outside"
PROOF_PATHS = 10  # recorded for each batch of entries, at least


class DriftRemover:
    def __init__(
        self, context: SweepContext, run: ReconcileRunId, asked: Asked, watch: RunWatch, counters: RunCounters
    ) -> None:
        self._context = context
        self._run = run
        self._asked = asked
        self._watch = watch
        self._counters = counters
        self._spool = f"{context.warehouse}/{SPOOL_FOLDER}"
        # A new ledger counts runs from 1 again, so the run's id alone does not make a unique name.
        self._folder = f"{context.warehouse}/{QUARANTINE_FOLDER}/{run}-{uuid4().hex[:8]}"

    def sweep_files(self, files: Sequence[tuple[Finding, Stat]], known: LakeReferences) -> LakeReferences:
        """Quarantines files, or deletes them with `--delete`; returns the present references. Raises Aborted."""
        failpoints.hit("reconcile.before_files")
        new = [
            # On record, a superseded metadata file is an orphan like others: it can be restored, and is purged later.
            NewSwept(
                FindingKind.ORPHAN if f.kind is FindingKind.SUPERSEDED else f.kind,
                f.table,
                f.path,
                self._place_in_quarantine(f.path),
                stat.size,
                stat.modified_ns,
            )
            for f, stat in files
        ]
        with self._context.ledger.write() as connection:
            self._watch.fence(connection)
            begun = quarantined_files.begin(connection, self._run, new)
        failpoints.hit("reconcile.after_files_record")
        try:
            moved, stayed, lost = self._move(begun)
            failpoints.hit("reconcile.after_files_moved")
            known = self._context.surveyor.references(known, self._watch)
            needed = self._referenced_by_now(moved, known)
        except BaseException:
            self._undo(begun, "whether it is referenced by now could not be read")
            raise
        self._undo(needed, "it was referenced while it was moved")
        moved = [file for file in moved if file not in needed]
        failpoints.hit("reconcile.after_files_checked")
        self._record_held(moved, {f.path: f.kind for f, _ in files})
        failpoints.hit("reconcile.after_files")
        log.warning(
            "run %d: files quarantined: %d; could not be moved: %d; referenced by now, and went back: %d",
            self._run,
            len(moved),
            len(stayed),
            len(needed),
        )
        if lost is not None:
            raise lost
        if self._asked.delete:
            self._delete([file for file in moved if below(file.path, self._spool) is None])
        return known

    def _place_in_quarantine(self, path: str) -> str:
        """The place shows where the file came from, so that people can restore it even without a ledger."""
        inside = below(path, self._context.warehouse)
        if inside is None:
            inside = f"{OUTSIDE_FOLDER}/{path.removeprefix('s3://').lstrip('/')}"
        return f"{self._folder}/{inside}"

    def _move(self, begun: Sequence[Swept]) -> tuple[list[Swept], list[Swept], Aborted | None]:
        """Files that moved, files that did not, and why it ended early, if it did."""
        moved: list[Swept] = []
        refused: list[Swept] = []
        untried: Sequence[Swept] = ()
        lost: Aborted | None = None
        for start in range(0, len(begun), MOVES_AT_ONCE):
            some = begun[start : start + MOVES_AT_ONCE]
            try:
                self._watch.last_word()
            except Aborted as aborted:
                untried, lost = begun[start:], aborted
                break
            outcome = self._context.storage.set_aside(
                [Move(f.path, f.kept_at, Stat(f.size, f.modified_ns)) for f in some]
            )
            for file in some:
                why = outcome[file.path]
                if why is None:
                    moved.append(file)
                else:
                    refused.append(file)
                    self._counters.fail(f"{printable(file.path)}: {why}")
        if not refused and not untried:
            return moved, [], lost
        # A file whose answer was lost may have moved all the same: then it is handled like the others.
        after = settle_files(self._context, [*refused, *untried], "it could not be moved")
        moved_after_all = {file.id: replace(file, state=SweptState.HELD) for file in after.get(SweptState.HELD, [])}
        stayed = [file for file in (*refused, *untried) if file.id not in moved_after_all]
        self._counters.did(failed=sum(1 for file in refused if file.id not in moved_after_all))
        return [*moved, *moved_after_all.values()], stayed, lost

    def _referenced_by_now(self, moved: Sequence[Swept], known: LakeReferences) -> list[Swept]:
        paths = [file.path for file in moved]
        live = known.referenced(paths) | self._context.loader.spooled(paths)
        return [f for f in moved if f.path in live or is_unread(f.table, known, self._asked)]

    def _undo(self, files: Sequence[Swept], why: str) -> None:
        """Brings the files back, first in storage, then in the ledger, which may be what does not answer. For files
        that did not come back, storage decides where they are."""
        if not files:
            return
        went_back: dict[SweptId, bool] = {}
        for file in files:
            try:
                went_back[file.id] = self._context.storage.bring_back(file.kept_at, file.path)
            except StorageError as e:
                went_back[file.id] = False
                self._counters.fail(e.message)
        self._counters.did(skipped_recheck=sum(went_back.values()))
        with self._context.ledger.write() as connection:
            recorded = quarantined_files.of_run(connection, self._run, quarantined_files.IN_QUARANTINE)
            back = [file for file in recorded if went_back.get(file.id) is True]
            quarantined_files.move(connection, back, SweptState.RESTORED, why)
        if rest := [file for file in recorded if went_back.get(file.id) is False]:
            settle_files(self._context, rest, why)

    def _record_held(self, moved: Sequence[Swept], kinds: Mapping[str, FindingKind]) -> None:
        if not moved:
            return
        size = sum(file.size for file in moved)
        counts = Counter(kinds[file.path] for file in moved)
        self._counters.did(
            orphans=counts[FindingKind.ORPHAN],
            foreign=counts[FindingKind.FOREIGN],
            superseded=counts[FindingKind.SUPERSEDED],
            bytes=size,
        )
        with self._context.ledger.write() as connection:
            changed = quarantined_files.move(connection, moved, SweptState.HELD)
            self._record(connection, Event.FILES_QUARANTINED, moved, size)
            left = quarantined_files.of_run(connection, self._run, [SweptState.LEFT]) if changed < len(moved) else []
        if left:
            # Another run took this one for dead, and recorded the files where it saw them then.
            settle_files(self._context, left)

    def _delete(self, moved: Sequence[Swept]) -> None:
        if not moved:
            return
        held = [replace(file, state=SweptState.HELD) for file in moved]
        with self._context.ledger.write() as connection:
            self._watch.fence(connection)
            quarantined_files.move(connection, held, SweptState.PURGING)
        failpoints.hit("reconcile.after_delete_record")
        failed = self._context.storage.delete([file.kept_at for file in held])
        failpoints.hit("reconcile.after_deleted")
        gone = [replace(file, state=SweptState.PURGING) for file in held if file.kept_at not in failed]
        for kept_at, why in failed.items():
            self._counters.did(failed=1)
            self._counters.fail(f"{printable(kept_at)}: {why}")
        with self._context.ledger.write() as connection:
            quarantined_files.move(connection, gone, SweptState.PURGED)
            self._record(connection, Event.FILES_DELETED, gone, sum(file.size for file in gone))
        log.warning("run %d: of these deleted: %d; could not be deleted: %d", self._run, len(gone), len(failed))

    def _record(self, connection: Connection, event: Event, files: Sequence[Swept], size: int) -> None:
        audit.record(
            connection,
            event,
            run=self._run,
            files=len(files),
            bytes=size,
            storage=self._context.storage.kind.value,
            failed=self._counters.done.failed,
            samples=[file.path for file in files[: self._context.settings.samples_max]],
            **self._counters.flags,
        )

    def drop_entries(self, table: str, findings: Sequence[Finding]) -> None:
        failpoints.hit("reconcile.before_drop")
        with self._context.ledger.write() as connection:
            self._watch.fence(connection)
            dataset = datasets.find(connection, table)
            marks = [] if dataset is None else lanes.lowest_watermarks(connection, dataset.id)
            if not self._asked.accept_loss:
                # A sink, a follower or a consumer that was added, or reset, since the run began.
                others = [] if dataset is None else _reader_watermarks(connection, dataset)
                undelivered = {
                    f.path for f in findings if (gone := _gone_rows(f)) and _is_undelivered(gone, marks, others)
                }
                self._counters.did(skipped_recheck=len(undelivered))
                findings = [f for f in findings if f.path not in undelivered]
            batch = self._begin(connection, table, findings, marks) if findings else None
        if batch is None:
            return
        failpoints.hit("reconcile.after_drop_record")
        dropped = self._commit(batch, findings)
        failpoints.hit("reconcile.after_drop_commit")
        self._counters.did(missing=dropped, skipped_recheck=len(findings) - dropped)
        with self._context.ledger.write() as connection:
            dropped_entries.end(connection, batch, dropped)
            self._record_dropped(connection, batch, dropped)
        failpoints.hit("reconcile.after_drop")

    def _begin(
        self, connection: Connection, table: str, findings: Sequence[Finding], marks: Sequence[SinkWatermark]
    ) -> DroppedBatch:
        gone = [rows for f in findings if (rows := _gone_rows(f)) is not None]
        new = NewBatch(
            f"{self._run}-{uuid4().hex}",
            table,
            len(findings),
            # Possibly more paths than are shown: they tell whether the batch landed if nothing else does.
            [f.path for f in findings[: max(PROOF_PATHS, self._context.settings.samples_max)]],
            gone,
            losses_above_watermarks(marks, gone),
        )
        return dropped_entries.begin(connection, self._run, new)

    def _commit(self, batch: DroppedBatch, findings: Sequence[Finding]) -> int:
        summary = {
            "strandline.reconcile.run": str(self._run),
            "strandline.reconcile.reason": "the files of these entries are gone",
        }
        try:
            return self._context.catalog.drop_entries(
                batch.table,
                [f.path for f in findings],
                token=batch.token,
                summary=summary,
                last_word=self._watch.last_word,
            )
        except StrandlineError as e:
            # The batch stays on record as begun: the next run voids its token, and then finds out what became of it.
            raise Aborted(AbortReason.COMMIT_FAILED, e.message) from e

    def _record_dropped(self, connection: Connection, batch: DroppedBatch, dropped: int) -> None:
        record_dropped(connection, self._context, batch, dropped, **self._counters.flags)
        lost = sorted({loss.name for loss in batch.lost})
        log.warning(
            "run %d: entries of %s whose files are gone were dropped: %d, with rows: %d%s",
            self._run,
            batch.table,
            dropped,
            sum(gone.count for gone in batch.gone),
            f", which {', '.join(lost)} will not get" if lost else "",
        )


def is_unread(table: str | None, known: LakeReferences, asked: Asked) -> bool:
    """Whether an unread table may reference a file of this one. With `--delete`, any may: that cannot be undone."""
    return table in known.unread or (bool(known.unread) and (table is None or asked.delete))


def _reader_watermarks(connection: Connection, dataset: Dataset) -> list[Seq | None]:
    """Up to where each follower and each consumer has every row."""
    readers = consumers.watermarks_by_title(connection, dataset.id)
    return [*followers.watermarks_by_title(connection, dataset).values(), *readers.values()]


def _is_undelivered(gone: GoneRows, marks: Sequence[SinkWatermark], others: Sequence[Seq | None]) -> bool:
    """Whether a sink, or another one that has everything up to one of these numbers, lacks such a row."""
    return bool(losses_above_watermarks(marks, [gone])) or any(int(at or 0) < gone.rows.hi for at in others)


def _gone_rows(finding: Finding) -> GoneRows | None:
    """None if the entry does not say which rows."""
    return GoneRows(finding.rows, finding.row_count) if finding.rows is not None and finding.row_count else None
