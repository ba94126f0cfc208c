"""Starts Spark once and runs typical queries, while the JVM records the classes. `class_archive` runs this as a
program."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from strandline.core.types import SEQ_COLUMN
from strandline.iceberg.session.class_archive import training_flags
from strandline.iceberg.session.java import JavaFound
from strandline.iceberg.session.launch import context_options, start_context, stop_context


def main(arguments: list[str]) -> None:
    home, version, archive, scratch_name, *jar_names = arguments
    scratch = Path(scratch_name)
    options = context_options(
        master="local[2]",
        driver_memory="1g",
        jars=tuple(map(Path, jar_names)),
        archive_flags=training_flags(Path(archive)),
        scratch=scratch,
        options={},
    )
    context = start_context(options, JavaFound(Path(home), version), scratch / "training.log")
    try:
        _typical_work(context, scratch)
    finally:
        exit_code = stop_context()
    if exit_code != 0:  # for example, the disk was full when the JVM wrote the archive
        log = (scratch / "training.log").read_text("utf-8", "replace")
        raise SystemExit(f"the JVM ended with exit code {exit_code}: {log}")


def _typical_work(context: SparkContext, scratch: Path) -> None:
    spark = SparkSession(context).newSession()
    catalog = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:sqlite:{scratch / 'catalog.db'}",
        ".jdbc.schema-version": "V1",
        ".warehouse": str(scratch / "warehouse"),
        ".cache-enabled": "false",
    }
    for key, value in catalog.items():
        spark.conf.set(f"spark.sql.catalog.lake{key}", value)
    spark.sql("CREATE NAMESPACE lake.a")
    columns = f"{SEQ_COLUMN} bigint NOT NULL, at timestamp, name string, size double"
    spark.sql(f"CREATE TABLE lake.a.t ({columns}) USING iceberg")
    rows = spark.range(1000).select(
        (F.col("id") + 1).alias(SEQ_COLUMN),
        F.timestamp_seconds("id").alias("at"),
        F.concat(F.lit("n"), F.col("id").cast("string")).alias("name"),
        F.col("id").cast("double").alias("size"),
    )
    rows.write.mode("overwrite").json(str(scratch / "rows.json"))
    rows.write.mode("overwrite").parquet(str(scratch / "rows.parquet"))
    spark.read.schema(rows.schema).json(str(scratch / "rows.json")).writeTo("lake.a.t").append()
    spark.read.parquet(str(scratch / "rows.parquet")).writeTo("lake.a.t").append()
    spark.sql("ALTER TABLE lake.a.t CREATE BRANCH b")
    rows.writeTo("lake.a.t.branch_b").append()
    new = spark.table("lake.a.t").where(F.col(SEQ_COLUMN) > 10).orderBy(SEQ_COLUMN).limit(5)
    if len(new.collect()) != 5:
        raise SystemExit("the rows that were written cannot be read")
    new.toPandas()
    spark.table("lake.a.t").groupBy("name").count().agg(F.max("count")).collect()
    spark.sql("SELECT count(*) FROM lake.a.t.files").collect()


if __name__ == "__main__":
    main(sys.argv[1:])
