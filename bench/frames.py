"""The rows that are measured with: made by expressions, the same in every run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENT_COLUMNS: list[dict[str, Any]] = [
    {"name": "event_id", "type": "string", "required": True},
    {"name": "at", "type": "timestamptz"},
    {"name": "user_id", "type": "long"},
    {"name": "kind", "type": "string"},
    {"name": "amount", "type": "decimal(12,2)"},
    {"name": "score", "type": "double"},
    {"name": "ok", "type": "boolean"},
    {"name": "message", "type": "string"},
]
"""About 150 bytes a row, of eight types' worth of encodings."""

READING_COLUMNS: list[dict[str, Any]] = [
    {"name": "at", "type": "timestamptz"},
    {"name": "sensor", "type": "string"},
    {"name": "value", "type": "double"},
    {"name": "trace", "type": "string"},
]
"""About 70 bytes a row."""


def events(spark: SparkSession, first: int, rows: int, partitions: int) -> DataFrame:
    from pyspark.sql import functions as F

    number = F.col("id")
    mixed = F.xxhash64(number)
    return spark.range(first, first + rows, 1, partitions).select(
        F.lower(F.hex(mixed)).alias("event_id"),
        F.timestamp_micros(F.lit(1_700_000_000_000_000) + number * 1000).alias("at"),
        F.pmod(mixed, F.lit(1_000_000)).alias("user_id"),
        F.element_at(F.array(*map(F.lit, ("view", "click", "order", "refund"))), (number % 4 + 1).cast("int")).alias(
            "kind"
        ),
        (F.pmod(mixed, F.lit(10_000_000)) / 100).cast("decimal(12,2)").alias("amount"),
        (F.pmod(mixed, F.lit(1_000_003)) / 1_000_003).cast("double").alias("score"),
        (number % 7 != 0).alias("ok"),
        F.concat_ws(" ", F.lit("session"), F.md5(number.cast("string")), F.lit("came from"), number % 997).alias(
            "message"
        ),
    )


def readings(spark: SparkSession, first: int, rows: int, partitions: int) -> DataFrame:
    from pyspark.sql import functions as F

    number = F.col("id")
    return spark.range(first, first + rows, 1, partitions).select(
        F.timestamp_micros(F.lit(1_700_000_000_000_000) + number * 1000).alias("at"),
        F.concat(F.lit("sensor-"), number % 1000).alias("sensor"),
        (F.pmod(F.xxhash64(number), F.lit(1_000_003)) / 1_000_003).cast("double").alias("value"),
        F.concat(F.lower(F.hex(F.xxhash64(number))), F.lower(F.hex(F.xxhash64(number, F.lit(1))))).alias("trace"),
    )


def write_events(spark: SparkSession, folder: Path, rows: int, *, files: int) -> int:
    """Parquet files that every side reads; gives their bytes."""
    events(spark, 0, rows, files).write.mode("overwrite").parquet(str(folder))
    return sum(p.stat().st_size for p in folder.glob("*.parquet"))
