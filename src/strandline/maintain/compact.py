"""Compaction: rewrites small files as large ones, neighbours with neighbours, rows ordered by sequence number.

It needs no lock. Ingest and delivery continue, because a commit replaces exactly the files that were read, or is
refused. Files of a refused commit are planned again, a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.core import failpoints
from strandline.core.errors import CommitUnknown, FailedError, RefusedError
from strandline.core.records.audit_events import Event
from strandline.core.text.wording import plural
from strandline.core.types import Dataset
from strandline.iceberg.metadata.live_files import FilePart
from strandline.ledger import audit
from strandline.maintain.compact_plan import CompactOptions, CompactPlan, SkippedFiles, plan
from strandline.maintain.context import MaintainContext, MaintainProgress, quiet
from strandline.read import rollback

if TYPE_CHECKING:
    from strandline.iceberg.spark.maintenance import Main
    from strandline.iceberg.spark.number_bounds import NewFile
    from strandline.iceberg.spark.tables import SparkTables

ROUNDS_MAX = 3  # how often files of refused commits are planned again
SKIPPED_SHOWN_MAX = 20
ROW_GROUP_BYTES = 16 << 20  # unless the table sets it: small, so that reading a few rows of a large file reads little


@dataclass(slots=True)
class Compacted:
    """Files are data files of main. A dry run counts the files that would be rewritten and written."""

    files_before: int = 0
    files_after: int = 0
    files_rewritten: int = 0
    files_written: int = 0
    bytes_rewritten: int = 0
    bytes_written: int = 0
    rows_written: int = 0
    delete_files_before: int = 0
    delete_files_after: int = 0
    manifests_before: int = 0
    manifests_after: int = 0
    commits: int = 0
    lost: int = 0  # commits that were refused because others had changed the same files
    left: int = 0  # files that should have been rewritten and that others changed every time
    skipped: tuple[SkippedFiles, ...] = ()  # a few of them
    skipped_files: int = 0
    manifests_left: bool = False  # manifests or dangling deletes were not rewritten: not safe with this catalog

    def add(self, parts: Sequence[FilePart], *, files: int, size: int, rows: int) -> None:
        """Counts the files that were replaced, and what was written in their place."""
        self.files_rewritten += sum(len(p.files) for p in parts)
        self.bytes_rewritten += sum(p.bytes for p in parts)
        self.files_written += files
        self.bytes_written += size
        self.rows_written += rows

    def skip(self, skipped: Sequence[SkippedFiles]) -> None:
        self.skipped = tuple(skipped[:SKIPPED_SHOWN_MAX])
        self.skipped_files = sum(s.files for s in skipped)


def compact(
    context: MaintainContext,
    dataset: Dataset,
    options: CompactOptions | None = None,
    *,
    dry_run: bool = False,
    progress: MaintainProgress = quiet,
    alive: Callable[[], None] = lambda: None,
) -> Compacted:
    """Compacts the table of the dataset. Calls `alive` right before each commit; it raises if this run was taken for
    dead."""
    from strandline.iceberg.spark import maintenance as upkeep

    options = options or CompactOptions(**context.config.settings.maintain.compact.model_dump())
    tables = context.tables.settled
    progress("listing files", 0, None)
    context.check(dataset)
    if (first := upkeep.list_main(tables, dataset.name)) is None:
        return Compacted()
    files, deletes, manifests = len(first.files), first.delete_files, first.manifests
    done = Compacted(
        files, files, delete_files_before=deletes, delete_files_after=deletes, manifests_before=manifests,
        manifests_after=manifests,
    )  # fmt: skip
    chosen = plan(first.files, options, options.file_bytes_target or first.file_bytes_target)
    if dry_run:
        parts = list(chosen.parts)
        done.add(
            parts,
            files=sum(p.outputs for p in parts),
            size=sum(p.bytes for p in parts),
            rows=sum(p.rows for p in parts),
        )
        done.files_after += done.files_written - done.files_rewritten
        done.skip(chosen.skipped)
        return done
    current = first
    for n in range(ROUNDS_MAX):
        if not chosen.steps or not _round(tables, current, chosen, done, options, progress, alive):
            break
        if (changed := upkeep.list_main(tables, dataset.name)) is None:
            break
        current = changed
        chosen = plan(current.files, options, options.file_bytes_target or current.file_bytes_target)
        if n == ROUNDS_MAX - 1:
            done.left = sum(len(p.files) for p in chosen.parts)
    alive()
    _tidy(tables, first, done, options, progress)
    rollback.move_tag(context.ledger, tables, dataset)
    summary = tables.load(dataset.name).currentSnapshot().summary()
    done.files_after = int(summary.get("total-data-files") or 0)
    done.delete_files_after = int(summary.get("total-delete-files") or 0)
    done.manifests_after = _manifests(tables, dataset.name)
    done.skip(chosen.skipped)
    if done.commits or done.manifests_after != done.manifests_before:
        context.ledger.change(
            audit.record,
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
    done: Compacted,
    options: CompactOptions,
    progress: MaintainProgress,
    alive: Callable[[], None],
) -> bool:
    """Runs every step of the plan. Returns whether a commit was refused, so that another round makes sense."""
    from strandline.iceberg.spark import maintenance as upkeep

    if not main.table.properties().get(upkeep.ROW_GROUP_PROPERTY):
        tables.set_properties(main.name, {upkeep.ROW_GROUP_PROPERTY: str(ROW_GROUP_BYTES)})
        main.table.refresh()
    total = sum(len(p.files) for p in chosen.parts)
    rewritten, lost = 0, False
    for step in chosen.steps:
        progress("rewriting files", rewritten, total)
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
            done.lost += 1
            lost = True
        else:
            failpoints.hit("compact.after_rewrite")
            done.commits += 1
            done.add(step, files=len(new), size=sum(f.bytes for f in new), rows=sum(f.rows for f in new))
        rewritten += sum(len(p.files) for p in step)
    progress("rewriting files", rewritten, total)
    return lost


def wrong(step: Sequence[FilePart], new: Sequence[NewFile], *, read: int) -> str | None:
    """Why the new files do not have the `read` rows of the files that they replace; None if they do."""
    written = sum(f.rows for f in new)
    if written != read:
        return f"{plural(written, 'row', 'was')} written of {read:,}"
    lows, highs = [f.lo or 0 for p in step for f in p.files], [f.hi or 0 for p in step for f in p.files]
    if new and (min(f.lo for f in new) < min(lows) or max(f.hi for f in new) > max(highs)):
        return "sequence numbers are outside of those that were read"
    return None


def _tidy(
    tables: SparkTables, before: Main, done: Compacted, options: CompactOptions, progress: MaintainProgress
) -> None:
    """Removes dangling deletes and rewrites manifests. If another commit wins, it leaves that to the next run."""
    from strandline.iceberg.spark import maintenance as upkeep

    if tables.may_delete_live_files:
        if before.delete_files or _manifests(tables, before.name) > options.manifests_max:
            progress("leaving manifests as they are: REST catalog, warehouse in a folder", 0, None)
            done.manifests_left = True
        return
    if before.delete_files:
        progress("removing deletes that apply to nothing", 0, None)
        try:
            upkeep.remove_dangling_deletes(tables, before.name)
        except (RefusedError, CommitUnknown):
            done.lost += 1
    if _manifests(tables, before.name) > options.manifests_max:
        progress("rewriting manifests", 0, None)
        try:
            upkeep.rewrite_manifests(tables, before.name)
        except (RefusedError, CommitUnknown):
            done.lost += 1
        failpoints.hit("compact.after_manifests")


def _manifests(tables: SparkTables, name: str) -> int:
    table = tables.load(name)
    return int(table.currentSnapshot().dataManifests(table.io()).size())
