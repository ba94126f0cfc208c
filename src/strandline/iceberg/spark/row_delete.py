"""Deleting the rows that fit a condition, with every row of a touched file accounted for before the commit.

Files are replaced whole. A file of which every row fits goes; of the others, the rows that stay are written anew. What
was written, and what the condition takes, must add up to what was read, or nothing is committed. The commit fails if
one of the files is no longer there, or had rows deleted meanwhile: then everything is looked at again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from strandline.core.errors import CommitUnknown
from strandline.core.types import SEQ_COLUMN, SnapshotId
from strandline.core.wording import plural
from strandline.iceberg.metadata.identifier import in_spark
from strandline.iceberg.spark.java import NOT_LANDED
from strandline.iceberg.spark.rewrite import check_rows, discard, group_of, reading, write
from strandline.iceberg.spark.tables import (
    JAVA_ERRORS,
    Prepared,
    SparkTables,
    explain,
    iterate,
    java_class,
    root_cause,
)

_LOST = (
    "CommitFailedException",
    "ValidationException",
    "CommitStateUnknownException",
    "RESTException",
    "UncheckedSQLException",
)


@dataclass(frozen=True, slots=True)
class _Fitting:
    """The rows that fit, counted by the file that holds them, and the numbers between which they lie."""

    by_file: Mapping[str, int]
    first: int | None
    last: int | None
    """None where a row that fits has no number."""


class _Moved(Exception):
    """Main is not what it was when its rows were counted."""


def delete(tables: SparkTables, name: str, condition: str) -> None:
    """The same again deletes nothing, so a commit that lost, or whose outcome is unknown, is simply repeated."""
    last = ""
    for n in range(tables.attempts_max):
        try:
            return _attempt(tables, name, condition)
        except _Moved as e:
            last = str(e)
        except JAVA_ERRORS as e:
            last = f"{java_class(e)} {root_cause(e)}"
            if not any(word in last for word in _LOST):
                raise explain(e, f"rows of {name} cannot be deleted") from e
        time.sleep(min(2.0, 0.05 * 2 ** min(n, 6)) * random.random())
    raise CommitUnknown(
        f"rows of {name} cannot be deleted: {plural(tables.attempts_max, 'attempt')}, the last one: {last}",
        hint="Nothing is lost: the next run goes on with it.",
    )


def _attempt(tables: SparkTables, name: str, condition: str) -> None:
    table = tables.load(name)
    current = table.currentSnapshot()
    if current is None:
        return
    snapshot = SnapshotId(current.snapshotId())
    fitting = _count(tables, name, table, snapshot, condition)
    if not fitting.by_file:
        return
    whole, partial = _tasks(tables, name, table, snapshot, fitting)
    added: list[Any] = []
    if partial:
        group = group_of(name, table, snapshot, partial)
        with reading(tables, group) as df:
            live = df.count() if group.has_deletes else group.records
            added = write(tables, group, df.where(~_fits(condition)))
            gone = sum(fitting.by_file[path] for path in group.paths)
            check_rows(group, added, read=live, deleted=gone)
    _commit(tables, table, snapshot, [*whole, *partial], added)


def _fits(condition: str) -> Any:
    return F.coalesce(F.expr(condition), F.lit(False))


def _count(tables: SparkTables, name: str, table: Any, snapshot: SnapshotId, condition: str) -> _Fitting:
    view = tables.view_of(table)
    if view.main_has_current_schema:
        df: DataFrame = tables.read(name, snapshot)
    else:  # a snapshot is read with the schema it was written with, and the condition may be about a newer column
        df = tables.spark.table(in_spark(name))
    number = F.col(SEQ_COLUMN)
    counts = (
        df.where(F.expr(condition))
        .groupBy(df.metadataColumn("_file").alias("file"))
        .agg(F.count("*").alias("rows"), F.min(number).alias("first"), F.max(number).alias("last"), F.count(number))
    )
    found = counts.collect()  # a line per file
    if tables.view(name).main != snapshot and not view.main_has_current_schema:
        raise _Moved("the table was changed while its rows were counted")
    has_unnumbered = any(r[4] < r["rows"] for r in found)
    return _Fitting(
        {r["file"]: r["rows"] for r in found},
        None if has_unnumbered else min((r["first"] for r in found), default=None),
        None if has_unnumbered else max((r["last"] for r in found), default=None),
    )


def _tasks(
    tables: SparkTables, name: str, table: Any, snapshot: SnapshotId, fitting: _Fitting
) -> tuple[list[Any], list[Any]]:
    """The files of which every row goes, and those of which some stay. A file that has deletes is one of the latter."""
    scan = table.newScan().useSnapshot(snapshot).ignoreResiduals()
    if fitting.first is not None and fitting.last is not None:
        scan = scan.filter(tables.java.between(SEQ_COLUMN, fitting.first, fitting.last))
    whole: list[Any] = []
    partial: list[Any] = []
    planned = scan.planFiles()
    try:
        for task in iterate(planned):
            count = fitting.by_file.get(str(task.file().location()))
            if count is not None:
                is_whole = task.deletes().isEmpty() and count == task.file().recordCount()
                (whole if is_whole else partial).append(task)
    finally:
        planned.close()
    if len(whole) + len(partial) != len(fitting.by_file):
        raise _Moved(f"{name} has other files than were counted")
    return whole, partial


def _commit(tables: SparkTables, table: Any, snapshot: SnapshotId, old: Sequence[Any], added: Sequence[Any]) -> None:
    """With a REST catalog it is sent by ourselves, and nobody tidies up after it."""
    prepared = Prepared(table) if tables.is_remote else None
    overwrite = (table if prepared is None else prepared.transaction).newOverwrite()
    overwrite.validateFromSnapshot(snapshot)
    overwrite.validateNoConflictingDeletes()  # also: every file that is replaced is still there
    for task in old:
        overwrite.deleteFile(task.file())
    for file in added:
        overwrite.addFile(file)
    try:
        overwrite.commit()
        if prepared is not None:
            prepared.send()
    except JAVA_ERRORS as e:
        if not tables.is_remote and java_class(e) in NOT_LANDED:
            discard(table, added)
        raise
