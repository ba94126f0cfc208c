"""What people use today: Iceberg's own streaming read, which keeps its place in a checkpoint folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class StreamingRead:
    """`availableNow`: read what is new, write it as Parquet, end."""

    def __init__(self, spark: SparkSession, table: str, folder: Path) -> None:
        self.spark, self.table, self.folder = spark, table, folder

    def run(self) -> None:
        # What was there before counts as read: the first run of a new checkpoint would copy the whole table.
        frame = (
            self.spark.readStream.format("iceberg")
            .option("stream-from-timestamp", str(self.started_at))
            .load(self.table)
        )
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .option("path", str(self.folder / "out"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    started_at = 0
    """Milliseconds; snapshots before it are not read."""

    def start_now(self) -> None:
        import time

        self.started_at = int(time.time() * 1000)
        time.sleep(0.01)
