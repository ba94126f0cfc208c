"""Writes data files first, then commits them to a block's own branch.

Spark would do both at once. But the digest of a batch is known only when all rows are written, and the commit must put
it into the snapshot.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from strandline.core import failpoints
from strandline.core.errors import FailedError
from strandline.iceberg.metadata.table_metadata import WapId
from strandline.iceberg.spark.number_bounds import NewFile, new_files
from strandline.iceberg.spark.rewrite import discard, writable, write_files
from strandline.iceberg.spark.tables import SparkTables


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """Data files that no snapshot references yet."""

    files: tuple[NewFile, ...]
    _table: Any = field(repr=False)
    _java_files: tuple[Any, ...] = field(repr=False)

    def discard(self) -> None:
        """Deletes the files. Must not be called once they are staged."""
        discard(self._table, self._java_files)


def write_rows(tables: SparkTables, name: str, stamped: DataFrame) -> WrittenRows:
    """Writes the rows. Each task commits once, and no shuffle follows the stamp: a task that runs again writes its rows
    completely or not at all."""
    table, id = tables.load(name), f"strandline-{uuid.uuid4().hex}"
    with writable(tables, table, id):
        files = tuple(write_files(tables, name, table, id, stamped, {"distribution-mode": "none"}))
    return WrittenRows(tuple(new_files(tables.java, table, files)), table, files)


def stage(tables: SparkTables, name: str, branch: str, wap: WapId, written: WrittenRows) -> None:
    """Appends the files to the block's own branch, which must exist. Readers of main do not see it. Raises FailedError
    if the branch was removed."""
    failpoints.hit("stage.before_commit")

    def attempt() -> None:
        change = tables.change(name)
        view = tables.view_of(change.table)
        if branch not in view.refs:
            raise FailedError(f"branch {branch} of {name} was removed: the block was abandoned")
        if not view.snapshots[view.refs[branch]].added_block(wap):
            change.append(branch, written._java_files, ("wap.id", str(wap)))

    tables.repeat(attempt, f"rows cannot be staged in {name}", lock_table=name)
    failpoints.hit("stage.after_commit")
