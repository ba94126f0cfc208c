"""Deletes the rows that match a condition, and accounts for all rows of the touched files before the commit.

Files are replaced as a whole. A file whose rows all match is removed; of other files, the remaining rows are written
again. Rows written plus rows matched must equal rows read; otherwise nothing is committed. The commit fails if one of
the files is gone, or had rows deleted meanwhile. Then the table is read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from strandline.core.errors import Superseded
from strandline.core.types import SEQ_COLUMN, SnapshotId
from strandline.iceberg.metadata.identifier import in_spark
from strandline.iceberg.spark.java import COMMIT_FAILED, NOT_LANDED, REFUSED
from strandline.iceberg.spark.java_errors import JAVA_ERRORS, java_class, root_cause
from strandline.iceberg.spark.rewrite import check_rows, discard, group_of, reading, write
from strandline.iceberg.spark.table_change import check_epoch
from strandline.iceberg.spark.tables import ReadAgain, SparkTables, planned_files


@dataclass(frozen=True, slots=True)
class _Matches:
    """The matching rows, counted by file, and the bounds of their sequence numbers."""

    by_file: Mapping[str, int]
    first: int | None  # None, like `last`, if a matching row has no sequence number
    last: int | None


def delete(tables: SparkTables, name: str, condition: str, *, epoch: int | None = None) -> None:
    """Deletes the rows. Repeats a commit that lost, or whose outcome is unknown: a second delete finds no rows. With an
    `epoch`, nothing is deleted once the table's epoch is higher, however late the commit arrives. Raises CommitUnknown
    and Superseded."""
    hint = "Nothing is lost: the next run continues."
    tables.repeat(lambda: _attempt(tables, name, condition, epoch), f"rows of {name} cannot be deleted", hint)


def _attempt(tables: SparkTables, name: str, condition: str, epoch: int | None) -> None:
    table = tables.load(name)
    if (current := table.currentSnapshot()) is None:
        return
    snapshot = SnapshotId(current.snapshotId())
    matches = _count(tables, name, table, snapshot, condition)
    if not matches.by_file:
        return
    whole, partial = _tasks(tables, name, table, snapshot, matches)
    added: list[Any] = []
    if partial:
        group = group_of(name, table, snapshot, partial)
        with reading(tables, group) as df:
            live = df.count() if group.has_deletes else group.records
            added = write(tables, group, df.where(~_matches(condition)))
            deleted = sum(matches.by_file[path] for path in group.paths)
            check_rows(group, added, read=live, deleted=deleted)
    _commit(tables, name, table, _ReplacedFiles(snapshot, [*whole, *partial], added), epoch)


def _matches(condition: str) -> Any:
    return F.coalesce(F.expr(condition), F.lit(False))


def _count(tables: SparkTables, name: str, table: Any, snapshot: SnapshotId, condition: str) -> _Matches:
    view = tables.view_of(table)
    if view.main_has_current_schema:
        df: DataFrame = tables.read(name, snapshot)
    else:  # time travel would use the snapshot's own schema, and the condition may use a newer column
        df = tables.spark.table(in_spark(name))
    number = F.col(SEQ_COLUMN)
    counts = (
        df.where(F.expr(condition))
        .groupBy(df.metadataColumn("_file").alias("file"))
        .agg(F.count("*").alias("rows"), F.min(number).alias("first"), F.max(number).alias("last"), F.count(number))
    )
    per_file = counts.collect()
    if tables.view(name).main != snapshot and not view.main_has_current_schema:
        raise ReadAgain("the table was changed while its rows were counted")
    has_unnumbered = any(r[4] < r["rows"] for r in per_file)
    return _Matches(
        {r["file"]: r["rows"] for r in per_file},
        None if has_unnumbered else min((r["first"] for r in per_file), default=None),
        None if has_unnumbered else max((r["last"] for r in per_file), default=None),
    )


def _tasks(
    tables: SparkTables, name: str, table: Any, snapshot: SnapshotId, matches: _Matches
) -> tuple[list[Any], list[Any]]:
    """The files to remove, and the files to rewrite because some rows stay. Files with deletes are rewritten."""
    scan = table.newScan().useSnapshot(snapshot).ignoreResiduals()
    if matches.first is not None and matches.last is not None:
        scan = scan.filter(tables.java.between(SEQ_COLUMN, matches.first, matches.last))
    whole: list[Any] = []
    partial: list[Any] = []
    for task in planned_files(scan):
        if (count := matches.by_file.get(str(task.file().location()))) is not None:
            is_whole = task.deletes().isEmpty() and count == task.file().recordCount()
            (whole if is_whole else partial).append(task)
    if len(whole) + len(partial) != len(matches.by_file):
        raise ReadAgain(f"{name} no longer has the files whose rows were counted")
    return whole, partial


@dataclass(frozen=True, slots=True)
class _ReplacedFiles:
    """The files that the commit removes from the table, as it was at the snapshot, and those that it adds."""

    snapshot: SnapshotId
    old: Sequence[Any]
    added: Sequence[Any]

    def plan(self, on: Any) -> None:
        overwrite = on.newOverwrite()
        overwrite.validateFromSnapshot(self.snapshot)
        overwrite.validateNoConflictingDeletes()  # also checks that every replaced file still exists
        for task in self.old:
            overwrite.deleteFile(task.file())
        for file in self.added:
            overwrite.addFile(file)
        overwrite.commit()


def _commit(tables: SparkTables, name: str, table: Any, replaced: _ReplacedFiles, epoch: int | None) -> None:
    """Commits the change. After a refusal, removes the new files, but not with a REST catalog."""
    try:
        if epoch is None:
            with tables.changing(table) as change:
                replaced.plan(change)
        else:
            _commit_in(tables, name, replaced, epoch)
    except Superseded:
        if not tables.is_remote:
            discard(table, replaced.added)
        raise
    except JAVA_ERRORS as e:
        if not tables.is_remote and java_class(e) in NOT_LANDED:
            discard(table, replaced.added)
        if java_class(e) == REFUSED:
            raise ReadAgain(root_cause(e)) from e
        raise


def _commit_in(tables: SparkTables, name: str, replaced: _ReplacedFiles, epoch: int) -> None:
    """Commits on exactly the metadata whose epoch was checked. If another commit came between, the change is planned on
    the new metadata, as Iceberg itself would do, but with another check."""
    for n in range(tables.attempts_max):
        change = tables.change(name)
        check_epoch(tables.view_of(change.table), epoch, "nothing was deleted")
        replaced.plan(change.transaction)
        try:
            change.send()
        except JAVA_ERRORS as e:
            if java_class(e) != COMMIT_FAILED or n == tables.attempts_max - 1:
                raise
        else:
            return
