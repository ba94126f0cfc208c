"""Tables that Spark wrote: partitioned, with delete files, with an evolved schema and spec, of format version 3. Their
entries are dropped, and Spark reads what is left."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strandline import Lake
from strandline.config import LakeConfig
from strandline.drift import Asked
from strandline.reconcile.paths import canonical, key
from strandline.tables import light_drop, spark_drop
from tests.spark.protocol import frame, ids, new_lake


@pytest.fixture
def lake(tmp_path: Path, make_home: Callable[..., LakeConfig], spark_started: object) -> Iterator[Lake]:
    with new_lake(tmp_path, make_home) as made:
        yield made


def files(lake: Lake, name: str, where: str = "content = 0") -> list[str]:
    rows = lake.spark.sql(f"SELECT file_path FROM lake.default.{name}.files WHERE {where} ORDER BY 1").collect()
    return [row.file_path for row in rows]


def count(lake: Lake, name: str) -> int:
    return lake.spark.table(f"lake.default.{name}").count()


def test_a_lake_that_spark_wrote_is_in_order_and_its_drift_is_repaired(lake: Lake) -> None:
    for n in range(3):
        lake.append("events", frame(lake, 10 * n), batch_id=f"b{n}")
    report = lake.reconcile()
    assert report.aborted is None and not report.outcome.partial
    assert (report.outcome.found.missing, report.outcome.found.orphans, report.outcome.found.foreign) == (0, 0, 0)
    live = [canonical(path) for path in files(lake, "events")]
    orphan = Path(live[0]).with_name("stray.parquet")
    orphan.write_bytes(b"x")
    os.utime(orphan, (1e9, 1e9))
    run = lake.reconcile(act=True)
    assert run.outcome.done.orphans == 1 and not orphan.exists() and len(ids(lake)) == 30
    lake.reconciler.restore(run.id)
    assert orphan.exists() and lake.reconciler.run(Asked()).outcome.found.orphans == 1


def test_entries_of_a_partitioned_table_with_delete_files_are_dropped_without_a_jvm(lake: Lake) -> None:
    spark = lake.spark
    spark.sql(
        "CREATE TABLE lake.default.parts (id long, at timestamp, kind string) USING iceberg PARTITIONED BY (days(at)) "
        "TBLPROPERTIES ('write.delete.mode' = 'merge-on-read', 'format-version' = '2')"
    )
    days = "SELECT id, timestamp '2026-01-01' + make_interval(0, 0, 0, cast(id % 3 AS int)), 'k' FROM range(30)"
    spark.sql(f"INSERT INTO lake.default.parts {days}")
    spark.sql("DELETE FROM lake.default.parts WHERE id < 3")
    spark.sql("ALTER TABLE lake.default.parts ADD COLUMN more int AFTER id")
    spark.sql("ALTER TABLE lake.default.parts ADD PARTITION FIELD kind")
    spark.sql("INSERT INTO lake.default.parts VALUES (100, 1, timestamp '2026-01-01', 'x'), (101, 1, NULL, NULL)")
    assert files(lake, "parts", "content = 1")
    before = count(lake, "parts")
    gone, null_one = files(lake, "parts", "record_count = 10")[0], files(lake, "parts", "lower_bounds[2] IS NULL")
    wanted = {key(gone), *(key(path) for path in null_one)}
    for path in (gone, *null_one):
        os.unlink(canonical(path))
    dropped = light_drop.drop_data_files(
        lake.catalog, "default.parts", wanted, key, token="t", summary={"why": "gone"}, attempts_max=3,
        before_commit=lambda: None,
    )  # fmt: skip
    assert len(dropped.paths) == 1 + len(null_one)
    spark.catalog.refreshTable("lake.default.parts")
    assert count(lake, "parts") == before - 9 - len(null_one)
    spark.sql("INSERT INTO lake.default.parts VALUES (102, 1, timestamp '2026-01-01', 'x')")
    assert count(lake, "parts") == before - 8 - len(null_one)


def test_entries_of_a_table_of_version_3_are_dropped_by_spark_once_for_a_token(lake: Lake) -> None:
    lake.spark.sql("CREATE TABLE lake.default.three (id long) USING iceberg TBLPROPERTIES ('format-version' = '3')")
    for n in range(3):
        lake.spark.sql(f"INSERT INTO lake.default.three VALUES ({n}), ({n + 10})")
    assert not light_drop.is_possible(lake.catalog, "default.three")
    gone, kept = files(lake, "three")[:1], files(lake, "three")[1:]
    os.unlink(canonical(gone[0]))

    def drop(paths: list[str], token: str) -> int:
        return spark_drop.drop_data_files(
            lake.tables(), "default.three", [canonical(path) for path in paths], token=token, summary={"why": "gone"},
            before_commit=lambda: None,
        )  # fmt: skip

    rows = 6 - lake.spark.read.parquet(*[canonical(path) for path in kept]).count()
    assert drop(gone, "one") == 1 and drop(kept, "one") == 1
    assert count(lake, "three") == 6 - rows
    assert light_drop.landed(lake.catalog, "default.three", "one") == 1
