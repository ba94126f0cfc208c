"""Rewrites chosen files of main in one commit, for adoption, compaction and deletion.

Files are read and written through Iceberg's own rewrite groups. Nothing is visible until the commit. The commit fails
if one of the replaced files is gone. A process that dies before the commit leaves orphan files. `unnumbered_group` and
`commit` are for adoption, which gives existing rows their sequence numbers.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from strandline.core import failpoints
from strandline.core.errors import FailedError
from strandline.core.text.wording import plural
from strandline.core.types import SEQ_COLUMN, SnapshotId
from strandline.iceberg.metadata.identifier import in_spark
from strandline.iceberg.metadata.table_metadata import BLOCK_SUMMARY, TableView, WapId
from strandline.iceberg.session.spark_internals import set_active
from strandline.iceberg.spark import java
from strandline.iceberg.spark.java_errors import JAVA_ERRORS, explaining, java_class, root_cause
from strandline.iceberg.spark.table_change import check_epoch
from strandline.iceberg.spark.tables import SparkTables, planned_files


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Files of one snapshot that are rewritten together."""

    id: str
    name: str
    table: Any
    snapshot: SnapshotId
    tasks: tuple[Any, ...]
    paths: tuple[str, ...]
    records: int  # rows of these files according to manifests, before deletes
    has_deletes: bool


class FilesGone(Exception):
    """A file of the group is no longer in the table: another pass or a compaction has replaced it."""


def unnumbered_rows(tables: SparkTables, name: str) -> int:
    """How many rows have no sequence number, according to manifests. Deleted rows are included, and all rows of files
    without a null count."""
    field_id = tables.load(name).schema().findField(SEQ_COLUMN).fieldId()
    with explaining(f"the files of {name} cannot be counted"):
        files = tables.spark.table(in_spark(f"{name}.files")).where("content = 0")
        total = files.selectExpr(f"sum(coalesce(null_value_counts[{field_id}], record_count)) AS rows").first()
    return int(total["rows"] or 0) if total is not None else 0


def unnumbered_group(
    tables: SparkTables,
    name: str,
    *,
    rows_max: int,
    skip: frozenset[str] = frozenset(),
    only: Sequence[str] | None = None,
) -> FileGroup | None:
    """The next files that may have rows without a sequence number, according to manifests. None if there are none. With
    `only`, exactly these files, or None if one of them is gone."""
    table = tables.load(name)
    if (current := table.currentSnapshot()) is None:
        return None
    is_null = tables.java.is_null(SEQ_COLUMN)
    scan = table.newScan().useSnapshot(current.snapshotId()).filter(is_null).ignoreResiduals()
    tasks: list[Any] = []
    records = 0
    with explaining(f"the files of {name} cannot be listed"):
        for task in planned_files(scan):
            path = task.file().location()
            if path in skip or (only is not None and path not in only):
                continue
            if tasks and only is None and records + task.file().recordCount() > rows_max:
                break
            tasks.append(task)
            records += int(task.file().recordCount())
    if not tasks or (only is not None and len(tasks) < len(set(only))):
        return None
    return group_of(name, table, SnapshotId(current.snapshotId()), tasks)


def group_of(name: str, table: Any, snapshot: SnapshotId, tasks: Sequence[Any]) -> FileGroup:
    return FileGroup(
        f"strandline-{uuid.uuid4().hex}",
        name,
        table,
        snapshot,
        tuple(tasks),
        tuple(str(task.file().location()) for task in tasks),
        sum(int(task.file().recordCount()) for task in tasks),
        any(not task.deletes().isEmpty() for task in tasks),
    )


@contextmanager
def staged(tables: SparkTables, table: Any, id: str, tasks: Iterable[Any]) -> Iterator[None]:
    """Lets Spark read the live rows of exactly these files under this id, with deletes applied, and write new files."""
    manager = tables.java.scan_tasks
    with writable(tables, table, id):
        manager.stageTasks(table, id, tables.java.listed(tasks))
        try:
            yield
        finally:
            manager.removeTasks(table, id)


@contextmanager
def writable(tables: SparkTables, table: Any, id: str) -> Iterator[None]:
    """Lets Spark write new files for the table under this id, without a commit."""
    set_active(tables.spark)
    cache = tables.java.table_cache
    cache.add(id, table)
    try:
        yield
    finally:
        tables.java.rewrites.clearRewrite(table, id)
        cache.remove(id)


@contextmanager
def reading(tables: SparkTables, group: FileGroup) -> Iterator[DataFrame]:
    """The live rows of the group's files."""
    with staged(tables, group.table, group.id, group.tasks):
        yield tables.spark.read.format("iceberg").load(group.id)


def write(tables: SparkTables, group: FileGroup, df: DataFrame) -> list[Any]:
    return write_files(tables, group.name, group.table, group.id, df, {"distribution-mode": "none"})


def write_files(
    tables: SparkTables, name: str, table: Any, id: str, df: DataFrame, options: Mapping[str, str]
) -> list[Any]:
    """Writes the rows, and returns the new files. No snapshot references them yet. `id` is the one that `staged` or
    `writable` prepared."""
    with explaining(f"files of {name} cannot be written"):
        df.write.format("iceberg").mode("append").options(**options).option("fanout-enabled", "true").save(id)
        return list(tables.java.rewrites.fetchNewFiles(table, id))


def check_rows(group: FileGroup, new_files: Sequence[Any], *, read: int, deleted: int = 0) -> None:
    """Raises FailedError, and removes the new files, unless all rows that were read are in the new files or were to be
    deleted."""
    written = sum(int(file.recordCount()) for file in new_files)
    if written + deleted == read:
        return
    discard(group.table, new_files)
    to_be_deleted = f" {plural(deleted, 'row', 'was')} to be deleted," if deleted else ""
    raise FailedError(
        f"{group.name}: {plural(read, 'row', 'was')} read,{to_be_deleted} and {plural(written, 'row', 'was')} written",
        hint="Nothing was changed. The files may be damaged, or the condition gives another result each time.",
    )


def discard(table: Any, new_files: Sequence[Any]) -> None:
    """Deletes new files that no snapshot references."""
    for file in new_files:
        table.io().deleteFile(file.location())


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
    """Replaces the group's files and removes the block's branch, in one commit. Raises `FilesGone` if a file or the
    branch is gone: a process that abandons a block removes its branch first, so that this pass can never land. A pass
    of a superseded ledger cannot land either: its sequence numbers belong to the ledger that superseded it."""

    def attempt() -> None:
        change = tables.change(group.name)
        view = tables.view_of(change.table)  # the metadata that the commit replaces; on any other, it fails
        if view.published_as(wap) is not None:
            return  # an earlier attempt has landed, and its answer was lost
        if branch not in view.refs:
            raise FilesGone(f"branch {branch} was removed: the block was abandoned")
        check_epoch(view, epoch)
        settle = may_move_tag(view)
        try:
            replace_files(
                change.transaction.newRewrite(),
                group.snapshot,
                (task.file() for task in group.tasks),
                new_files,
                sequence=group.table.snapshot(group.snapshot).sequenceNumber(),
                summary=(BLOCK_SUMMARY, str(wap)),
            )
            failpoints.hit("adopt.before_commit")
            change.commit(remove=[branch], settle=settle)
        except JAVA_ERRORS as e:
            if java_class(e) == java.REFUSED:
                raise FilesGone(root_cause(e)) from e
            raise
        failpoints.hit("adopt.after_commit")

    tables.repeat(attempt, f"numbering {wap.rows} cannot be committed")


def replace_files(
    rewrite: Any, since: SnapshotId, old: Iterable[Any], new: Iterable[Any], *, sequence: int, summary: tuple[str, str]
) -> None:
    """Commits the rewrite. `sequence` is Iceberg's sequence number of the snapshot whose rows were rewritten."""
    rewrite.validateFromSnapshot(since)
    for file in old:
        rewrite.deleteFile(file)
    for file in new:
        rewrite.addFile(file)
    if sequence > 0:
        # Equality deletes that were committed meanwhile must still apply to these rows.
        rewrite.dataSequenceNumber(sequence)
    rewrite.set(*summary)
    rewrite.commit()
