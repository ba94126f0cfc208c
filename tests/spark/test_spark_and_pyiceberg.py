"""Spark and PyIceberg on one catalog: what one makes the other uses, and what Spark deleted is not counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from strandline.core.errors import TableUnfit
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import Seq, SeqRange
from strandline.iceberg.metadata.metadata_peek import read_glance
from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog, open_catalog
from strandline.iceberg.pyiceberg.foreign_rows import count_foreign_rows
from strandline.iceberg.pyiceberg.ordered_rows import read_ordered
from strandline.iceberg.schema.alteration import AddColumn, DropColumn, RenameColumn, WidenColumn
from strandline.iceberg.schema.columns import Primitive, iceberg_schema
from strandline.iceberg.schema.schema_file import parse_columns, parse_type
from strandline.iceberg.session.lake_session import open_session
from strandline.iceberg.spark.prepare import add_sequence_column
from strandline.iceberg.spark.tables import SparkTables
from tests.servers import S3

WRITABLE = {
    "boolean": "true",
    "int": "1",
    "long": "2",
    "float": "CAST('NaN' AS FLOAT)",
    "double": "1.5D",
    "decimal(20,3)": "1.234BD",
    "date": "DATE'2024-01-01'",
    "timestamp": "TIMESTAMP_NTZ'2024-01-01 00:00:00'",
    "timestamptz": "TIMESTAMP'2024-01-01 00:00:00Z'",
    "string": "'x'",
    "uuid": "'12345678-1234-1234-1234-123456789abc'",
    "fixed[4]": "X'01020304'",
    "binary": "X'01'",
    "list<string>": "array('a', null)",
    "map<string,long>": "map('a', 1L)",
    "struct<a:int,b:struct<c:string>>": "named_struct('a', 1, 'b', named_struct('c', 'x'))",
}


@dataclass
class Both:
    config: LakeConfig
    spark: SparkSession
    light: PyIcebergCatalog

    def sql(self, text: str) -> list[Any]:
        return self.spark.sql(text).collect()

    def not_ours(self, name: str, *owned: tuple[int, int]) -> tuple[int, int] | None:
        ranges = [SeqRange(Seq(lo), Seq(hi)) for lo, hi in owned]
        counted = count_foreign_rows(self.light.load(name), ranges, lambda snapshot, highest: True, last=0)
        return None if counted is None else (counted.unnumbered, counted.foreign)


@pytest.fixture
def both(lake_home: Callable[..., LakeConfig]) -> Iterator[Both]:
    config = lake_home()
    light = open_catalog(config)
    yield Both(config, open_session(config), light)
    light.close()


def test_a_table_made_without_spark_takes_rows_of_every_type_from_spark(both: Both) -> None:
    user = parse_columns([{"name": f"c{i}", "type": kind} for i, kind in enumerate(WRITABLE)])
    both.light.create_dataset_table(
        "events", user, lake_id="l", epoch=1, deliver_by=["c9"], partition_by="day(c8), bucket(2, c2)"
    )
    both.sql(f"INSERT INTO lake.default.events VALUES (1L, 'p', {', '.join(WRITABLE.values())})")
    row = both.light.load("events").scan().to_arrow().to_pylist()[0]
    assert row["_ingest_seq"] == 1 and row["c9"] == "x" and row["c13"] == ["a", None]
    glance = read_glance(both.config, "events")
    assert glance is not None and glance.row_count == 1
    with pytest.raises(PySparkException, match="_ingest_seq"):
        both.sql("INSERT INTO lake.default.events (c0) VALUES (true)")


def test_an_altered_table_is_read_and_written_by_spark(both: Both) -> None:
    user = parse_columns([{"name": "a", "type": "int"}, {"name": "b", "type": "string"}, {"name": "c", "type": "date"}])
    both.light.create_dataset_table("events", user, lake_id="l", epoch=1)
    both.sql("INSERT INTO lake.default.events VALUES (1, 7, 'x', null)")
    both.light.alter(
        "events",
        [
            WidenColumn("a", Primitive("long")), RenameColumn("b", "bb"), DropColumn("c"),
            AddColumn("d", parse_type("list<struct<x:int>>", where="d")),
        ],
    )  # fmt: skip
    both.sql("INSERT INTO lake.default.events VALUES (2, 99999999999, 'y', array(named_struct('x', 1)))")
    rows = both.sql("SELECT a, bb, d[0].x AS x FROM lake.default.events ORDER BY _ingest_seq")
    assert [tuple(row) for row in rows] == [(7, "x", None), (99999999999, "y", 1)]


@pytest.mark.parametrize("kind", ["time", "timestamp_ns", "timestamptz_ns", "geometry", "geography"])
def test_types_that_are_refused_are_those_that_spark_cannot_write(both: Both, kind: str) -> None:
    """When this fails, Spark or Iceberg has learnt the type: stop refusing it."""
    both.sql("CREATE NAMESPACE IF NOT EXISTS lake.default")
    jvm = both.spark._jvm
    schema = json.dumps(iceberg_schema(parse_columns([{"name": "v", "type": kind}])))
    catalog = both.spark._jsparkSession.sessionState().catalogManager().catalog("lake").icebergCatalog()
    identifier = jvm.org.apache.iceberg.catalog.TableIdentifier.parse("default.t")
    builder = catalog.buildTable(identifier, jvm.org.apache.iceberg.SchemaParser.fromJson(schema))
    builder.withProperty("format-version", "3").create()
    with pytest.raises(Exception, match=r"(?i)unsupported|does not support|not supported"):
        both.spark.table("lake.default.t").schema  # noqa: B018
        value = "ST_GeomFromWKB" if kind == "geometry" else "ST_GeogFromWKB"
        both.sql(f"INSERT INTO lake.default.t VALUES ({value}(X'0101000000000000000000F03F0000000000000040'))")


def test_a_table_with_a_variant_is_listed_with_what_is_the_matter(both: Both) -> None:
    both.sql("CREATE NAMESPACE IF NOT EXISTS lake.default")
    both.sql("CREATE TABLE lake.default.v (v VARIANT) USING iceberg TBLPROPERTIES ('format-version'='3')")
    assert both.light.table_names() == ["default.v"]
    with pytest.raises(TableUnfit, match="variant"):
        both.light.load("v")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_deleted_rows_are_not_counted_whatever_deletes_them(both: Both, version: int) -> None:
    """Copy-on-write in version 1, position deletes in 2, deletion vectors in 3."""
    mode = "copy-on-write" if version == 1 else "merge-on-read"
    both.sql("CREATE NAMESPACE IF NOT EXISTS lake.default")
    both.sql(
        f"CREATE TABLE lake.default.old (v BIGINT) USING iceberg"
        f" TBLPROPERTIES ('format-version'='{version}', 'write.delete.mode'='{mode}')"
    )
    both.sql("INSERT INTO lake.default.old SELECT /*+ COALESCE(1) */ id FROM range(1, 11)")
    both.sql("DELETE FROM lake.default.old WHERE v IN (1)")
    assert both.not_ours("old") == (9, 0)
    add_sequence_column(SparkTables(both.spark, attempts_max=5), "default.old", lake_id="l", epoch=1)
    both.sql("DELETE FROM lake.default.old WHERE v IN (2)")
    both.sql("INSERT INTO lake.default.old SELECT /*+ COALESCE(1) */ id, id FROM range(1, 101)")
    both.sql("DELETE FROM lake.default.old WHERE _ingest_seq IN (5, 50, 51)")
    assert both.not_ours("old", (1, 50)) == (8, 49)
    glance = read_glance(both.config, "old")
    assert glance is not None and glance.row_count == (105 if version == 1 else None)


def test_deletes_by_value_make_the_count_unknown_only_where_they_matter(both: Both) -> None:
    user = parse_columns([{"name": "v", "type": "long"}])
    both.light.create_dataset_table("events", user, lake_id="l", epoch=1)
    both.sql("INSERT INTO lake.default.events SELECT /*+ COALESCE(1) */ id, id FROM range(1, 11)")
    jvm = both.spark._jvm
    table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(both.spark._jsparkSession, "lake.default.events")
    gateway = both.spark.sparkContext._gateway
    fields = gateway.new_array(gateway.jvm.int, 1)
    fields[0] = 2
    builder = jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(table.spec()).ofEqualityDeletes(fields)
    builder = builder.withPath(table.location() + "/data/eq.parquet").withFileSizeInBytes(10)
    table.newRowDelta().addDeletes(builder.withRecordCount(1).withFormat("parquet").build()).commit()
    assert both.not_ours("events", (1, 10)) == (0, 0)
    assert both.not_ours("events", (1, 5)) is None
    with pytest.raises(TableUnfit, match="equality deletes, which only Spark can read"):
        read_ordered(both.light.load("default.events"), 1, 5)
    both.sql("INSERT INTO lake.default.events VALUES (99, 1)")
    assert both.not_ours("events", (1, 10)) == (0, 1), "rows that came later are not touched by it"


def test_a_warehouse_in_a_bucket_is_shared_too(
    lake_home: Callable[..., LakeConfig], s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUCKET_SECRET", s3.secret_key)
    warehouse = {
        "url": f"s3://{s3.make_bucket()}/wh", "endpoint": s3.endpoint, "access_key": s3.access_key,
        "secret_key": "env:BUCKET_SECRET",
    }  # fmt: skip
    config = lake_home({"warehouse": warehouse})
    both = Both(config, open_session(config), open_catalog(config))
    both.light.create_dataset_table("events", parse_columns([{"name": "v", "type": "long"}]), lake_id="l", epoch=1)
    both.sql("INSERT INTO lake.default.events VALUES (1, 1), (2, 2), (9, 9)")
    assert both.not_ours("events", (1, 5)) == (0, 1)
    both.light.alter("events", [AddColumn("w", Primitive("string"))])
    assert [tuple(r) for r in both.sql("SELECT v, w FROM lake.default.events WHERE v = 9")] == [(9, None)]
    assert read_glance(config, "events") is None
    both.light.close()
