"""Ends what Spark does for a run when the run is to end."""

from __future__ import annotations

from contextlib import AbstractContextManager

from pyspark.sql import SparkSession

from strandline.iceberg.session import job_watch
from strandline.reconcile.model import Watch


def watched(spark: SparkSession, watch: Watch) -> AbstractContextManager[None]:
    """What is raised is what the watch says, not that a job was called off."""
    return job_watch.watched(spark, watch.check)
