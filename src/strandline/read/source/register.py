"""Makes the data source known to a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """From now on the session knows `format("strandline")`. Filters of a query reach the files, for which Spark needs
    a setting: it is switched on for the session."""
    from strandline.read.source.spark_source import PushingSource

    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(PushingSource)
