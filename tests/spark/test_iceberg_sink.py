"""Rows into a table of another catalog, from a lake to what the owner of that table sees with a Spark of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline import Lake
from strandline.core.errors import RefusedError, SchemaError
from tests.conftest import MakeHome
from tests.rest_catalog import RestCatalogs
from tests.spark.deliveries import Delivered, OtherTable, in_catalog, make_lake

Made = Callable[..., tuple[Delivered, OtherTable]]


@pytest.fixture
def made(tmp_path: Path, make_home: MakeHome) -> Iterator[Made]:
    lakes: list[Lake] = []

    def make(*, by_lane: bool = False, **options: str) -> tuple[Delivered, OtherTable]:
        lake = make_lake(tmp_path / "lake", make_home, by_lane=by_lane)
        lakes.append(lake)
        delivered, other = Delivered(lake), in_catalog(tmp_path / "other")
        delivered.add(other, **{"chunk_rows_max": "4"} | options)
        return delivered, other

    yield make
    for lake in lakes:
        lake.close()


def as_owner(lake: Lake, other: OtherTable, statement: str) -> list[Any]:
    """By Spark SQL, with Iceberg's JDBC catalog on the same file."""
    conf = lake.spark.conf
    conf.set("spark.sql.catalog.other", "org.apache.iceberg.spark.SparkCatalog")
    conf.set("spark.sql.catalog.other.catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog")
    conf.set("spark.sql.catalog.other.uri", f"jdbc:sqlite:{other.folder}/catalog.db")
    conf.set("spark.sql.catalog.other.warehouse", f"file://{other.folder}/warehouse")
    conf.set("spark.sql.catalog.other.cache-enabled", "false")
    return lake.spark.sql(statement).collect()


def tick(delivered: Delivered) -> None:
    for report in delivered.lake.tick().sinks:
        assert report.reason is None, report


def is_whole(delivered: Delivered, other: OtherTable, *, older: int = 0) -> None:
    """`older` rows are of a generation before."""
    assert other.see().rows == delivered.expected
    report = delivered.lake.delivery.verify()
    assert report.ok, [f for verdict in report.sinks for f in verdict.findings]
    assert [v.rows for v in report.sinks] == [delivered.rows - older]


def test_what_is_delivered_outlives_the_owners_compaction_and_expiry(made: Made) -> None:
    delivered, other = made()
    for _ in range(2):
        delivered.ingest()
        tick(delivered)
    is_whole(delivered, other)
    [done] = as_owner(
        delivered.lake,
        other,
        "CALL other.system.rewrite_data_files('shop.events', options => map('min-input-files', '2'))",
    )
    assert done["rewritten_data_files_count"] == 6
    as_owner(
        delivered.lake, other,
        "CALL other.system.expire_snapshots('shop.events', TIMESTAMP '2999-01-01 00:00:00', 1)",
    )  # fmt: skip
    assert len(other.load().snapshots()) == 1
    is_whole(delivered, other)
    as_owner(delivered.lake, other, "INSERT INTO other.shop.events (n, k) VALUES (-1, 'mine')")
    delivered.ingest()
    tick(delivered)
    rows = as_owner(delivered.lake, other, "SELECT _ingest_seq, n FROM other.shop.events ORDER BY n")
    assert [(r[0], r[1]) for r in rows] == [(None, -1), *delivered.expected]
    assert delivered.lake.delivery.verify().ok


def test_a_table_that_was_set_back_stops_the_sink_until_a_person_decides(made: Made) -> None:
    delivered, other = made()
    delivered.ingest()
    tick(delivered)
    before = other.load().current_snapshot().snapshot_id
    delivered.ingest()
    tick(delivered)
    as_owner(delivered.lake, other, f"CALL other.system.rollback_to_snapshot('shop.events', {before})")
    delivered.ingest()
    [report] = delivered.lake.tick().sinks
    assert report.did == "stopped" and "rolled back" in (report.reason or ""), report
    with pytest.raises(RefusedError, match="10 of 20 rows"):
        delivered.lake.delivery.recover_sink("iceberg")
    recovered = delivered.lake.delivery.recover_sink("iceberg", resend=True)
    assert (recovered.generation, recovered.lost_rows) == (2, 10)
    tick(delivered)
    is_whole(delivered, other, older=10)


def test_lanes_are_told_apart_in_one_table(made: Made) -> None:
    delivered, other = made(by_lane=True)
    delivered.ingest(30)
    tick(delivered)
    is_whole(delivered, other)
    table = other.load()
    found = table.scan().to_arrow().to_pylist()
    assert {(r["_ingest_partition"], r["k"]) for r in found} == {("k=lane+0", "lane 0"), ("k=lane+1", "lane 1")}
    table.delete("_ingest_seq == 7")
    [verdict] = delivered.lake.delivery.verify().sinks
    [finding] = verdict.findings
    assert (str(finding.kind), finding.partition, finding.what) == ("missing_row", "k=lane+1", "number 7")


def test_chosen_rows_and_columns_come_with_their_numbers(made: Made) -> None:
    delivered, other = made(columns="n", where="n % 2 = 0")
    delivered.ingest()
    tick(delivered)
    found = other.load().scan().to_arrow()
    assert found.column_names == ["_ingest_seq", "n"]
    assert sorted(found["_ingest_seq"].to_pylist()) == [2, 4, 6, 8, 10]
    [verdict] = delivered.lake.delivery.verify().sinks
    assert (verdict.rows, verdict.withheld, verdict.findings) == (5, 5, ())
    table = other.load()
    table.overwrite(found.set_column(1, "n", found["n"].combine_chunks().fill_null(0).cast("int64").take([0] * 5)))
    [verdict] = delivered.lake.delivery.verify().sinks
    assert {str(f.kind) for f in verdict.findings} == {"digest"}, "a value that somebody changed is noticed"


def test_a_column_that_the_dataset_gets_later_is_added(made: Made) -> None:
    from strandline.iceberg.schema.alteration import AddColumn
    from strandline.iceberg.schema.columns import Primitive

    delivered, other = made()
    delivered.ingest()
    tick(delivered)
    delivered.lake.alter_dataset("events", [AddColumn("price", Primitive("decimal(10,2)"))])
    delivered.ingest()
    tick(delivered)
    assert [f.name for f in other.load().schema().fields] == ["_ingest_seq", "n", "k", "price"]
    is_whole(delivered, other)


def test_a_ledger_that_was_lost_goes_on_where_the_table_is(made: Made, tmp_path: Path) -> None:
    """The record of the table is the truth: what it holds is not sent again."""
    delivered, other = made()
    delivered.ingest()
    tick(delivered)
    lake = delivered.lake
    lake.delivery.remove("iceberg")
    options = {**other.options, "chunk_rows_max": "3"}
    lake.delivery.add("again", "events", "iceberg", options)
    delivered.ingest()
    [report] = lake.tick().sinks
    assert (report.did, report.rows) == ("delivered", 10), report
    is_whole(delivered, other)


def test_a_partitioned_table_in_a_rest_catalog(
    rest_catalogs: RestCatalogs, tmp_path: Path, make_home: MakeHome
) -> None:
    from pyiceberg.catalog.rest import RestCatalog

    catalog = rest_catalogs.take()
    uri = f"http://127.0.0.1:{catalog.port}"
    with make_lake(tmp_path / "lake", make_home) as lake:
        conf = lake.spark.conf
        conf.set("spark.sql.catalog.rest", "org.apache.iceberg.spark.SparkCatalog")
        conf.set("spark.sql.catalog.rest.type", "rest")
        conf.set("spark.sql.catalog.rest.uri", uri)
        conf.set("spark.sql.catalog.rest.cache-enabled", "false")
        lake.spark.sql("CREATE NAMESPACE rest.shop")
        lake.spark.sql(
            "CREATE TABLE rest.shop.events (k STRING, n BIGINT, _ingest_seq BIGINT, note STRING) "
            "USING iceberg PARTITIONED BY (bucket(3, n), k)"
        )
        delivered = Delivered(lake)
        lake.delivery.add("rest", "events", "iceberg", {"catalog": uri, "table": "shop.events", "chunk_rows_max": "7"})
        delivered.ingest(40)
        tick(delivered)
        rows = lake.spark.sql("SELECT _ingest_seq, n FROM rest.shop.events ORDER BY 1").collect()
        assert [(r[0], r[1]) for r in rows] == delivered.expected
        pruned = lake.spark.sql("SELECT count(*) FROM rest.shop.events WHERE n = 17 AND k = 'lane 1'").collect()
        assert pruned[0][0] == 1, "a row is in the partition where Spark looks for it"
        table = RestCatalog("x", uri=uri).load_table("shop.events")
        assert {t.file.partition[1] for t in table.scan().plan_files()} == {"lane 0", "lane 1"}
        assert lake.delivery.verify().ok
        lake.spark.sql(
            "CREATE TABLE rest.shop.newer (k STRING, n BIGINT, _ingest_seq BIGINT) USING iceberg "
            "TBLPROPERTIES ('format-version' = '3')"
        )
        with pytest.raises(SchemaError, match="format version 3"):
            lake.delivery.add("newer", "events", "iceberg", {"catalog": uri, "table": "shop.newer"})
