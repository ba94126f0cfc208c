"""Cancels a run's Spark jobs when the run must end."""

from __future__ import annotations

from contextlib import AbstractContextManager

from pyspark.sql import SparkSession

from strandline.iceberg.session import job_watch
from strandline.reconcile.model import Watch


def watched(spark: SparkSession, watch: Watch) -> AbstractContextManager[None]:
    """Raises what `watch.check` raises, instead of Spark's error about a cancelled job."""
    return job_watch.watched(spark, watch.check)
