"""Removes the entries of missing data files from main in one commit, through Spark: for table formats that PyIceberg
cannot write.

Tokens cannot be voided here. Only the last check before the commit stops a process that has lost its lease.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import functions as f

from strandline.iceberg.metadata.identifier import in_spark
from strandline.iceberg.metadata.table_metadata import BATCH_SUMMARY, DROPPED_SUMMARY
from strandline.iceberg.spark.table_change import TableChange
from strandline.iceberg.spark.tables import SparkTables, iterate


def drop_data_files(
    tables: SparkTables,
    name: str,
    paths: Sequence[str],
    *,
    token: str,
    summary: Mapping[str, str],
    before_commit: Callable[[], None],
) -> int:
    """Removes the entries of these files from main. Returns how many files that were. `paths` are without the scheme
    `file:`, and with `s3://` for all S3 schemes. Raises CommitUnknown."""

    def attempt() -> int:
        table = tables.load(name)
        if (landed := _landed(table, token)) is not None:
            return landed
        if not (stored_paths := _as_stored(tables, name, paths)):
            return 0
        count = len(set(stored_paths.values()))
        # One attempt: a commit of Iceberg's own would retry for minutes, without checking the lease. The transaction
        # only prepares the commit, which then lands on the metadata that it was prepared on, or fails.
        change = TableChange(table, is_remote=tables.is_remote)
        delete = change.transaction.newDelete().validateFilesExist()
        for path in stored_paths:
            delete.deleteFile(tables.java.not_a_string(path))
        for key, value in {**summary, BATCH_SUMMARY: token, DROPPED_SUMMARY: str(count)}.items():
            delete.set(key, value)
        delete.commit()
        before_commit()
        change.send()
        return count

    return tables.repeat(attempt, f"entries of {name} cannot be dropped")


def _landed(table: Any, token: str) -> int | None:
    for snapshot in iterate(table.snapshots()):
        summary = snapshot.summary()
        if summary.get(BATCH_SUMMARY) == token:
            return int(summary.get(DROPPED_SUMMARY) or 0)
    return None


def _as_stored(tables: SparkTables, name: str, paths: Sequence[str]) -> dict[str, str]:
    """The paths as the table stores them, each with the one of `paths` that it stands for."""
    path = f.regexp_replace(f.regexp_replace("file_path", "^file:(//)?", ""), "^s3[an]://", "s3://")
    files = tables.spark.table(in_spark(f"{name}.files")).where("content = 0").where(path.isin(list(paths)))
    return {row.file_path: row.path for row in files.select("file_path", path.alias("path")).distinct().collect()}
