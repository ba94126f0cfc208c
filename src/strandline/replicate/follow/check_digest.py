"""Compares the digest of what a follower stages with the digest that the leader has of the batch.

Executors take the digest in the job that writes the rows; the driver gets four sums. If the digests are equal, the rows
are those that were ingested. If not, the leader may have changed or deleted rows since, or its table has other types
than the batch had. Then the staged rows are compared with the rows that the leader has now.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from strandline.core.errors import FailedError
from strandline.core.types import SEQ_COLUMN, Dataset, SeqRange, SnapshotId
from strandline.iceberg.metadata.identifier import in_spark
from strandline.iceberg.spark.java_errors import explaining
from strandline.ingest.digest import digest_measures, sums_text
from strandline.replicate.follow.context import FollowContext


def check_staged_rows(context: FollowContext, dataset: Dataset, rows: SeqRange, snapshot: SnapshotId) -> None:
    """Raises FailedError unless the staged rows are those that the leader has now, each with its sequence number."""
    tables = context.work.tables
    inside = f"{SEQ_COLUMN} BETWEEN {rows.lo} AND {rows.hi}"
    with context.source.content(tables, dataset.uuid, rows) as content:
        theirs = _digest(content.frame(tables.spark.table(in_spark(dataset.name)).schema), dataset)
    ours = _digest(tables.read(dataset.name, snapshot).where(inside), dataset)
    if ours != theirs:
        raise FailedError(
            f"{dataset.name}: what was staged for {rows} is not what the leader has",
            hint="Nothing of it was committed, and the follower fetches it again.",
        )


def _digest(rows: DataFrame, dataset: Dataset) -> str:
    with explaining(f"the rows of {dataset.name} cannot be compared with the leader's"):
        found = rows.agg(F.count(F.lit(1)).alias("rows"), *digest_measures(rows.schema.fields)).collect()[0]
    return sums_text([found.asDict()], found["rows"])
