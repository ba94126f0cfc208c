"""A stream that was away for longer than its table remembers: the same query over three sources.

Rows come, the stream has them and stops. More rows come, the table is compacted, more rows come, and each format's own
procedures remove what no reader needs any more. Then the stream continues. If its source cannot, it begins anew with
another checkpoint: there is no other way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench import lakes
from bench.faults.counting import COLUMNS, Arrived, arrived, count, figures, numbers_below
from bench.measure import Bench, Measurement
from bench.peers import delta
from bench.results import Samples

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from strandline.lake import Lake

_EVENT = "a stream was away while the table was compacted and old files went"
FIGURES = {
    "iceberg": figures(f"{_EVENT}, beside Iceberg's", "Iceberg's streaming read"),
    "delta": figures(f"{_EVENT}, beside Delta's", f"Delta Lake {delta.version()}'s read of the change data feed"),
}
BATCHES = 3
STARTS_MAX = 5


@dataclass(slots=True)
class Copying:
    """`availableNow` into Parquet files, from whatever is new."""

    folder: Path
    load: Callable[[], DataFrame]
    anew: Callable[[], DataFrame] | None = None
    """For a second checkpoint; None: whoever fails for good fails the measurement."""

    def run(self) -> None:
        for _ in range(STARTS_MAX):
            try:
                return self._copy(self.load, "first")
            except Exception as e:
                # Spark gives a Python process 10 s to start; on a busy machine, it is started again.
                if "failed to connect" not in str(e):
                    if self.anew is None:
                        raise
                    return self._copy(self.anew, "second")
        raise RuntimeError(f"the query did not start in {STARTS_MAX} times")

    def _copy(self, load: Callable[[], DataFrame], checkpoint: str) -> None:
        writer = load().writeStream.format("parquet").option("path", str(self.folder / "rows" / checkpoint))
        query = writer.option("checkpointLocation", str(self.folder / checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()


def measure(bench: Bench) -> dict[str, Samples]:
    import strandline

    lake = delta.lake_with_delta(bench.work / "lake")
    strandline.register(lake.spark)
    lake.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    batch = bench.sized(10_000, 1_000)
    found = count(bench, batch * BATCHES, FIGURES, lambda n: _once(lake, bench.work / str(n), f"events_{n}", batch))
    lake.close()
    return found


def _once(lake: Lake, folder: Path, name: str, batch: int) -> dict[str, Arrived]:
    table = folder / "delta"
    spark = lake.spark
    lakes.create(lake, name, COLUMNS)
    options = {"lake": str(lake.config.home), "consumer": name}
    patient = {"streaming-skip-delete-snapshots": "true", "streaming-skip-overwrite-snapshots": "true"}

    def iceberg() -> DataFrame:
        return spark.readStream.format("iceberg").options(**patient).load(f"lake.default.{name}")

    sides = {
        "ours": Copying(folder / "ours", lambda: spark.readStream.format("strandline").options(**options).load(name)),
        "iceberg": Copying(folder / "iceberg", iceberg, iceberg),
        # Anew without a version: the feed begins with all rows of the table as it is.
        "delta": Copying(
            folder / "changes",
            lambda: delta.change_feed(lake, table),
            lambda: spark.readStream.format("delta").option("readChangeFeed", "true").load(str(table)),
        ),
    }

    def rows_come(which: int) -> None:
        numbers = spark.range(which * batch, (which + 1) * batch, 1, 2)
        rows = numbers.selectExpr("id AS n", "timestamp_seconds(1700000000 + id) AS at")
        lake.append(name, rows)
        delta.append(rows, table)

    rows_come(0)
    for side in sides.values():
        side.run()
    rows_come(1)
    spark.sql(f"CALL lake.system.rewrite_data_files(table => 'default.{name}', options => map('rewrite-all', 'true'))")
    spark.sql(f"OPTIMIZE delta.`{table}`")
    rows_come(2)
    now = "older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => 1"
    spark.sql(f"CALL lake.system.expire_snapshots(table => 'default.{name}', {now})")
    spark.sql(f"VACUUM delta.`{table}` RETAIN 0 HOURS")
    for side in sides.values():
        side.run()
    return {which: arrived(numbers_below(side.folder / "rows"), BATCHES * batch) for which, side in sides.items()}


MEASUREMENT = Measurement(tuple(figure for pair in FIGURES.values() for figure in pair), measure)
