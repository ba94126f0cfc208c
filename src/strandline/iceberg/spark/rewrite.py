"""Rewriting chosen files of main in one commit: how rows that were there before us get their numbers.

The files are read and written through Iceberg's own rewrite groups, so nothing is visible until the commit, and the
commit fails if any of the files it replaces is no longer there. That is what makes a pass that was taken over harmless.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from strandline.core import failpoints
from strandline.core.errors import FailedError
from strandline.core.types import SEQ_COLUMN, SnapshotId
from strandline.core.wording import plural
from strandline.iceberg.metadata.table_metadata import BLOCK_SUMMARY, TableView, WapId
from strandline.iceberg.spark.tables import (
    CATALOG,
    JAVA_ERRORS,
    Prepared,
    SparkTables,
    StagedFile,
    check_epoch,
    explain,
    iterate,
    java_class,
    root_cause,
    tag_main,
)


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Files of one snapshot that are rewritten together."""

    id: str
    name: str
    table: Any
    snapshot: SnapshotId
    tasks: Any
    paths: tuple[str, ...]
    records: int
    """Rows of these files, by their manifests; deletes not counted."""
    has_deletes: bool


class FilesGone(Exception):
    """A file of the group is no longer in the table: another pass or a compaction was faster."""


def unnumbered_rows(tables: SparkTables, name: str) -> int:
    """How many rows have no number, by their files' metrics. Deleted ones are among them, and so are those of files
    that have no metrics."""
    number = tables.load(name).schema().findField(SEQ_COLUMN).fieldId()
    try:
        files = tables.spark.table(f"{CATALOG}.{name}.files").where("content = 0")
        found = files.selectExpr(f"sum(coalesce(null_value_counts[{number}], record_count)) AS rows").first()
    except JAVA_ERRORS as e:
        raise explain(e, f"the files of {name} cannot be counted") from e
    return int(found["rows"] or 0) if found is not None else 0


def unnumbered_group(
    tables: SparkTables,
    name: str,
    *,
    rows_max: int,
    skip: frozenset[str] = frozenset(),
    only: Sequence[str] | None = None,
) -> FileGroup | None:
    """The next files that have, or may have, rows without a number; by their metrics, without opening them.

    `only` asks for exactly these files and gets None if one of them is gone.
    """
    table = tables.load(name)
    current = table.currentSnapshot()
    if current is None:
        return None
    jvm: Any = tables.spark._jvm
    is_null = jvm.org.apache.iceberg.expressions.Expressions.isNull(SEQ_COLUMN)
    scan = table.newScan().useSnapshot(current.snapshotId()).filter(is_null).ignoreResiduals()
    tasks = jvm.java.util.ArrayList()
    paths: list[str] = []
    records, has_deletes = 0, False
    planned = scan.planFiles()
    try:
        for task in iterate(planned):
            path = task.file().location()
            if path in skip or (only is not None and path not in only):
                continue
            if paths and only is None and records + task.file().recordCount() > rows_max:
                break
            tasks.add(task)
            paths.append(path)
            records += int(task.file().recordCount())
            has_deletes = has_deletes or not task.deletes().isEmpty()
    except JAVA_ERRORS as e:
        raise explain(e, f"the files of {name} cannot be listed") from e
    finally:
        planned.close()
    if not paths or (only is not None and len(paths) < len(set(only))):
        return None
    return FileGroup(
        f"strandline-{uuid.uuid4().hex}",
        name,
        table,
        SnapshotId(current.snapshotId()),
        tasks,
        tuple(paths),
        records,
        has_deletes,
    )


@contextmanager
def reading(tables: SparkTables, group: FileGroup) -> Iterator[DataFrame]:
    """The live rows of exactly these files, deletes applied."""
    jvm: Any = tables.spark._jvm
    cache = jvm.org.apache.iceberg.spark.SparkTableCache.get()
    staged = jvm.org.apache.iceberg.spark.ScanTaskSetManager.get()
    cache.add(group.id, group.table)
    staged.stageTasks(group.table, group.id, group.tasks)
    try:
        yield tables.spark.read.format("iceberg").load(group.id)
    finally:
        staged.removeTasks(group.table, group.id)
        jvm.org.apache.iceberg.spark.FileRewriteCoordinator.get().clearRewrite(group.table, group.id)
        cache.remove(group.id)


def write(tables: SparkTables, group: FileGroup, df: DataFrame) -> list[Any]:
    """The files of this one write, known to nobody yet."""
    try:
        (
            df.write.format("iceberg")
            .mode("append")
            .option("distribution-mode", "none")
            .option("fanout-enabled", "true")
            .save(group.id)
        )
    except Exception as e:
        raise explain(e, f"files of {group.name} cannot be rewritten") from e
    jvm: Any = tables.spark._jvm
    coordinator = jvm.org.apache.iceberg.spark.FileRewriteCoordinator.get()
    return list(coordinator.fetchNewFiles(group.table, group.id))


def check_rows(group: FileGroup, new_files: Sequence[Any], *, read: int, deleted: int = 0) -> None:
    """Every row that was read is in the new files, unless it was to be deleted. Else the new files are removed, and
    nothing is committed."""
    written = sum(int(file.recordCount()) for file in new_files)
    if written + deleted == read:
        return
    discard(group.table, new_files)
    told = f" {plural(deleted, 'row', 'was')} to be deleted," if deleted else ""
    raise FailedError(
        f"{group.name}: {plural(read, 'row', 'was')} read,{told} and {plural(written, 'row', 'was')} written",
        hint="Nothing was changed. The files may be damaged, or the condition gives another answer each time.",
    )


def discard(table: Any, new_files: Sequence[Any]) -> None:
    """Files that no commit has named."""
    for file in new_files:
        table.io().deleteFile(file.location())


def bounds(tables: SparkTables, group: FileGroup, files: Sequence[Any]) -> list[StagedFile]:
    return [tables.staged_file(group.table, f) for f in files]


def commit(
    tables: SparkTables,
    group: FileGroup,
    new_files: Sequence[Any],
    wap: WapId,
    branch: str,
    *,
    epoch: int,
    may_move_tag: Callable[[TableView], bool],
) -> None:
    """Replace the group's files and remove the block's branch, in one commit. `FilesGone` if a file is not there, or if
    the branch is not: whoever gives a block up removes its branch first, and this pass can then never land. Nor can one
    of a ledger that was superseded: its numbers are another's."""

    def attempt() -> None:
        table = tables.load(group.name)
        prepared = Prepared(table)
        transaction = prepared.transaction
        view = tables.view_of(table)  # the metadata that the commit will replace, or fail
        if view.published_as(str(wap)) is not None:
            return  # it had landed, and only its answer was lost
        if branch not in view.refs:
            raise FilesGone(f"branch {branch} was removed: the block was given up")
        check_epoch(view, epoch)
        settle = may_move_tag(view)
        try:
            if tables.is_remote:
                prepared.require(branch)
            _replace_files(transaction.newRewrite(), table, group, new_files, wap)
            manage = transaction.manageSnapshots()
            manage.removeBranch(branch)
            manage.commit()
            if settle:
                tag_main(transaction)
            failpoints.hit("adopt.before_commit")
            if tables.is_remote:
                prepared.send()
            else:
                transaction.commitTransaction()
        except JAVA_ERRORS as e:
            if java_class(e).endswith("ValidationException"):
                raise FilesGone(root_cause(e)) from e
            raise
        failpoints.hit("adopt.after_commit")

    tables.repeat(attempt, f"numbering {wap.rows} cannot be committed")


def _replace_files(rewrite: Any, table: Any, group: FileGroup, new_files: Sequence[Any], wap: WapId) -> None:
    rewrite.validateFromSnapshot(group.snapshot)
    for task in group.tasks:
        rewrite.deleteFile(task.file())
    for file in new_files:
        rewrite.addFile(file)
    started_at = group.table.snapshot(group.snapshot).sequenceNumber()
    if started_at > 0:
        # Deletes by value that were committed meanwhile must still apply to these rows.
        rewrite.dataSequenceNumber(started_at)
    rewrite.set(BLOCK_SUMMARY, str(wap))
    rewrite.commit()
