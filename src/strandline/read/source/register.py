"""Registers the data source with a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """After this, the session has `format("strandline")`. Also sets the option that Spark needs to push filters
    down, and has Spark take our code to the executors of a cluster."""
    from strandline.iceberg.session.executor_code import send_code
    from strandline.iceberg.session.spark_internals import context_of
    from strandline.read.source.spark_source import PushingSource

    if (context := context_of(spark)) is not None:
        send_code(context)
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(PushingSource)
