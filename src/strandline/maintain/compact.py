"""Compaction: rewrites small files as large ones, neighbours with neighbours, rows ordered by sequence number.

It needs no lock. Ingest and delivery continue, because a commit replaces exactly the files that were read, or is
refused. Files of a refused commit are planned again, a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from strandline.core import failpoints
from strandline.core.audit_events import Event
from strandline.core.errors import CommitUnknown, FailedError, RefusedError
from strandline.core.types import Dataset
from strandline.core.wording import plural
from strandline.iceberg.metadata.live_files import FilePart
from strandline.ledger import audit
from strandline.maintain.compact_plan import CompactOptions, CompactPlan, SkippedFiles, plan
from strandline.maintain.context import MaintainContext, Progress, quiet
from strandline.read import rollback

if TYPE_CHECKING:
    from strandline.iceberg.spark.maintenance import Main
    from strandline.iceberg.spark.number_bounds import NewFile
    from strandline.iceberg.spark.tables import SparkTables

ROUNDS_MAX = 3  # how often files of refused commits are planned again
SKIPPED_SHOWN_MAX = 20
ROW_GROUP_BYTES = 16 << 20  # unless the table sets it: small, so that reading a few rows of a large file reads little


@dataclass(frozen=True, slots=True)
class Compacted:
    """Files are data files of main. A dry run counts the files that would be rewritten and written."""

    files_before: int
    files_after: int
    files_rewritten: int
    files_written: int
    bytes_rewritten: int
    bytes_written: int
    rows_written: int
    delete_files_before: int
    delete_files_after: int
    manifests_before: int
    manifests_after: int
    commits: int
    lost: int  # commits that were refused because others had changed the same files
    left: int  # files that should have been rewritten and that others changed every time
    skipped: tuple[SkippedFiles, ...]  # a few of them
    skipped_files: int
    manifests_left: bool = False  # manifests or dangling deletes were not rewritten: not safe with this catalog


@dataclass(slots=True)
class _Tally:
    files_rewritten: int = 0
    files_written: int = 0
    bytes_rewritten: int = 0
    bytes_written: int = 0
    rows_written: int = 0
    commits: int = 0
    lost: int = 0
    left: int = 0
    manifests_left: bool = False

    def add(self, pieces: Iterable[FilePart], new: Sequence[NewFile]) -> None:
        for piece in pieces:
            self.files_rewritten += len(piece.files)
            self.bytes_rewritten += piece.bytes
        self.files_written += len(new)
        self.bytes_written += sum(f.bytes for f in new)
        self.rows_written += sum(f.rows for f in new)


def compact(
    context: MaintainContext,
    dataset: Dataset,
    options: CompactOptions | None = None,
    *,
    dry_run: bool = False,
    progress: Progress = quiet,
    alive: Callable[[], None] = lambda: None,
) -> Compacted:
    """Calls `alive` right before each commit; it raises if this run was taken for dead. Without options, those of the
    settings count."""
    from strandline.iceberg.spark import maintenance as upkeep

    options = options or CompactOptions(**context.config.settings.maintain.compact.model_dump())
    tables = context.tables()
    progress("looking at files", 0, None)
    context.check(dataset)
    if (first := upkeep.list_main(tables, dataset.name)) is None:
        return Compacted(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, (), 0)
    tally = _Tally()
    chosen = plan(first.files, options, options.file_bytes_target or first.file_bytes_target)
    if dry_run:
        return _planned(first, chosen)
    now = first
    for n in range(ROUNDS_MAX):
        if not chosen.steps or not _round(tables, now, chosen, tally, options, progress, alive):
            break
        if (found := upkeep.list_main(tables, dataset.name)) is None:
            break
        now = found
        chosen = plan(now.files, options, options.file_bytes_target or now.file_bytes_target)
        if n == ROUNDS_MAX - 1:
            tally.left = sum(len(p.files) for p in chosen.pieces)
    alive()
    _tidy(tables, first, tally, options, progress)
    rollback.move_tag(context.ledger, tables, dataset)
    done = _result(tables, first, chosen, tally)
    if done.commits or done.manifests_after != done.manifests_before:
        with context.ledger.write() as connection:
            audit.record(
                connection,
                Event.COMPACTED,
                dataset=dataset.name,
                files=done.files_rewritten,
                into=done.files_written,
                bytes=done.bytes_rewritten,
                rows=done.rows_written,
            )
    return done


def _round(
    tables: SparkTables,
    main: Main,
    chosen: CompactPlan,
    tally: _Tally,
    options: CompactOptions,
    progress: Progress,
    alive: Callable[[], None],
) -> bool:
    """Runs every step of the plan. Returns whether a commit was refused, so that another round makes sense."""
    from strandline.iceberg.spark import maintenance as upkeep

    if not main.table.properties().get(upkeep.ROW_GROUP_PROPERTY):
        tables.set_properties(main.name, {upkeep.ROW_GROUP_PROPERTY: str(ROW_GROUP_BYTES)})
        main.table.refresh()
    total = sum(len(p.files) for p in chosen.pieces)
    done, lost = 0, False
    for step in chosen.steps:
        progress("rewriting files", done, total)
        rewrite = upkeep.Rewrite(tables, main, step, options.file_bytes_target or main.file_bytes_target)
        failpoints.hit("compact.before_rewrite")
        new = rewrite.write()
        if why := wrong(step, new, read=rewrite.live_rows()):
            rewrite.discard()
            raise FailedError(f"{main.name}: rewritten files are not what was read: {why}", hint="Nothing was changed.")
        failpoints.hit("compact.before_commit")
        try:
            rewrite.commit(alive)
        except upkeep.CommitLost:
            tally.lost += 1
            lost = True
        else:
            failpoints.hit("compact.after_rewrite")
            tally.commits += 1
            tally.add(step, new)
        done += sum(len(p.files) for p in step)
    progress("rewriting files", done, total)
    return lost


def wrong(step: Sequence[FilePart], new: Sequence[NewFile], *, read: int) -> str | None:
    """Compares the new files' metadata with the files that were read, of which `read` rows were not deleted. Returns
    what is wrong, or None."""
    written = sum(f.rows for f in new)
    if written != read:
        return f"{plural(written, 'row', 'was')} written of {read:,}"
    lows, highs = [f.lo or 0 for p in step for f in p.files], [f.hi or 0 for p in step for f in p.files]
    if new and (min(f.lo for f in new) < min(lows) or max(f.hi for f in new) > max(highs)):
        return "sequence numbers are outside of those that were read"
    return None


def _tidy(tables: SparkTables, before: Main, tally: _Tally, options: CompactOptions, progress: Progress) -> None:
    """Removes dangling deletes and rewrites manifests. If another commit wins, that is left for the next run."""
    from strandline.iceberg.spark import maintenance as upkeep

    if tables.may_destroy:
        if before.delete_files or _manifests(tables, before.name) > options.manifests_max:
            progress("leaving manifests as they are: REST catalog, warehouse in a folder", 0, None)
            tally.manifests_left = True
        return
    if before.delete_files:
        progress("removing deletes that apply to nothing", 0, None)
        try:
            upkeep.remove_dangling_deletes(tables, before.name)
        except (RefusedError, CommitUnknown):
            tally.lost += 1
    if _manifests(tables, before.name) > options.manifests_max:
        progress("rewriting manifests", 0, None)
        try:
            upkeep.rewrite_manifests(tables, before.name)
        except (RefusedError, CommitUnknown):
            tally.lost += 1
        failpoints.hit("compact.after_manifests")


def _manifests(tables: SparkTables, name: str) -> int:
    table = tables.load(name)
    return int(table.currentSnapshot().dataManifests(table.io()).size())


def _result(tables: SparkTables, first: Main, chosen: CompactPlan, tally: _Tally) -> Compacted:
    table = tables.load(first.name)
    current = table.currentSnapshot()
    summary = current.summary()
    return Compacted(
        **asdict(tally),
        files_before=len(first.files),
        files_after=int(summary.get("total-data-files") or 0),
        delete_files_before=first.delete_files,
        delete_files_after=int(summary.get("total-delete-files") or 0),
        manifests_before=first.manifests,
        manifests_after=int(current.dataManifests(table.io()).size()),
        **_skipped(chosen),
    )


def _planned(main: Main, chosen: CompactPlan) -> Compacted:
    pieces = list(chosen.pieces)
    old, new = sum(len(p.files) for p in pieces), sum(p.outputs for p in pieces)
    size, rows = sum(p.bytes for p in pieces), sum(p.rows for p in pieces)
    return Compacted(
        **asdict(_Tally(old, new, size, size, rows)),
        files_before=len(main.files),
        files_after=len(main.files) - old + new,
        delete_files_before=main.delete_files,
        delete_files_after=main.delete_files,
        manifests_before=main.manifests,
        manifests_after=main.manifests,
        **_skipped(chosen),
    )


def _skipped(chosen: CompactPlan) -> dict[str, Any]:
    return {"skipped": chosen.skipped[:SKIPPED_SHOWN_MAX], "skipped_files": sum(s.files for s in chosen.skipped)}
