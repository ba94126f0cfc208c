"""Delta Lake in the same Spark as Strandline: jars of its own, and the settings that its documentation asks for.

Its release is one for Spark 4.1, so both sides of a line run in one JVM.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.core.settings.lake_config import CONFIG_NAME
from strandline.iceberg.session.jars import Jar, ensure_jars
from strandline.iceberg.session.java import find_java
from strandline.iceberg.session.runtime import cache_folder
from strandline.lake import Lake, open_lake
from strandline.lake_admin import init_lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What Spark does not bring itself.
_SHA256 = {
    "io.delta:delta-spark_4.1_2.13:4.4.0": "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10",
    "io.delta:delta-storage:4.4.0": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "io.delta:delta-kernel-api:4.4.0": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    "io.delta:delta-kernel-defaults:4.4.0": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    "io.delta:delta-kernel-unitycatalog:4.4.0": "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
    "io.unitycatalog:unitycatalog-client:0.6.0": "48257499a86b801a3e2372cec55ac226ca1c1c7eabe5c118e7302f29a1fdbc19",
    "io.unitycatalog:unitycatalog-hadoop:0.6.0": "c47b63c961c87102b9e1d63809a0915ba4c86b7652f57c8d39ca3a05b441a150",
}
JARS = tuple(Jar(*coordinates.split(":"), sha256) for coordinates, sha256 in _SHA256.items())

# As they come, the first makes 10,000 tasks of listing folders, and the second 50 of reading a log: too many for one
# machine, which is what is compared here.
_FOR_ONE_MACHINE = {
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(4 * (os.cpu_count() or 1)),
    "spark.databricks.delta.snapshotPartitions": str(os.cpu_count() or 1),
}


def version() -> str:
    return JARS[0].version


def lake_with_delta(home: Path) -> Lake:
    """A new lake, whose Spark has Delta Lake, too; the process must not have started a Spark before."""
    jars = ensure_jars(cache_folder() / "bench-jars", JARS, find_java(), None)
    options = {
        "spark.driver.extraClassPath": os.pathsep.join(map(str, jars)),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions,"
        "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        **_FOR_ONE_MACHINE,
    }
    init_lake(home).close()
    with (home / CONFIG_NAME).open("a", encoding="utf-8") as file:
        file.write("\n[spark.options]\n")
        file.writelines(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in options.items())
    return open_lake(home)


def append(frame: DataFrame, table: Path) -> None:
    """Makes the table if need be, with a change data feed, and files in the codec that ours have."""
    options = {"delta.enableChangeDataFeed": "true", "compression": "zstd"}
    frame.write.format("delta").mode("append").options(**options).save(str(table))


def change_feed(lake: Lake, table: Path) -> DataFrame:
    """All changes from the first on, as a stream."""
    options = {"readChangeFeed": "true", "startingVersion": "0"}
    return lake.spark.readStream.format("delta").options(**options).load(str(table))


def forget(lake: Lake) -> None:
    """What Delta keeps in memory of the logs that it has read."""
    lake.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
