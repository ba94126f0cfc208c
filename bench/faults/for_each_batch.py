"""`python -m bench.faults.for_each_batch LAKE TARGET`: a query that appends every batch to Parquet files with
`foreachBatch`, and is killed when it has written the first."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.lake import Lake, open_lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DATASET = "events"


def copy(lake: Lake, target: Path, after_write: Callable[[], object]) -> None:
    def write(batch: DataFrame, _: int) -> None:
        batch.write.mode("append").parquet(str(target / "rows"))
        after_write()

    rows = lake.spark.readStream.format("iceberg").load(f"lake.default.{DATASET}")
    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(target / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    copy(open_lake(Path(sys.argv[1])), Path(sys.argv[2]), lambda: os.kill(os.getpid(), signal.SIGKILL))
