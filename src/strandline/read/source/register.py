"""Registers the data source with a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """After this, the session has `format("strandline")`. Also sets the option that Spark needs to push filters
    down."""
    from strandline.read.source.spark_source import PushingSource

    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(PushingSource)
