"""Compares the digest of what a follower stages with the digest that the leader has of the batch.

The digest is taken by the executors in the job that writes the rows; the driver sees four sums. If it is the batch's,
the rows are those that were ingested, whatever they came through. If not, the leader may have changed or deleted rows
since, or its table has other types than the batch had. Then what was staged is compared with what the leader has now.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from strandline.core.errors import FailedError
from strandline.core.types import INTERNAL_COLUMNS, SEQ_COLUMN, Dataset, SeqRange, SnapshotId
from strandline.iceberg.metadata.identifier import in_spark
from strandline.iceberg.spark.java_errors import explaining
from strandline.ingest.stamp import HALVES, digest_measures, digest_text
from strandline.replicate.context import FollowContext

_OBSERVED_SECONDS_MAX = 60.0  # Spark tells what it observed soon after the job; never, if it lost the news


class ObservedRows:
    """Rows whose digest is taken while they are written. `expected`: what the leader has of the batch."""

    def __init__(self, rows: DataFrame, expected: str) -> None:
        self._observation = Observation()
        self._expected = expected
        fields = [f for f in rows.schema.fields if f.name not in INTERNAL_COLUMNS]
        self.frame = rows.observe(self._observation, F.count(F.lit(1)).alias("rows"), *digest_measures(fields))

    def is_proven(self) -> bool:
        """Whether the rows that were written are those of the batch. False also if nobody knows."""
        found: list[Mapping[str, Any]] = []
        asking = threading.Thread(target=lambda: found.append(self._observation.get), daemon=True)
        asking.start()
        asking.join(_OBSERVED_SECONDS_MAX)
        return bool(found) and _text(found[0]) == self._expected


def check_staged_rows(context: FollowContext, dataset: Dataset, rows: SeqRange, snapshot: SnapshotId) -> None:
    """For rows that are not those of the batch: raises FailedError unless what was staged is what the leader has now,
    each row with its sequence number."""
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
    return _text(found.asDict())


def _text(sums: Mapping[str, Any]) -> str:
    return digest_text([sums[name] or 0 for name in HALVES], sums["rows"])
