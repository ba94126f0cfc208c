"""Numbers are dense and unique whatever the plan is, and a source that changes under the stamp is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from strandline.core.errors import StampMismatch
from strandline.lake import Lake
from tests.campaign import scaled
from tests.conftest import MakeHome
from tests.spark.lakes import batch, create, in_main, new_lake, numbers, open_blocks, sql, values


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Iterator[Lake]:
    with new_lake(tmp_path_factory.mktemp("stamp"), make_home) as lake:
        lake.spark.conf.set("spark.sql.adaptive.enabled", "true")  # as users have it: it changes plans as they run
        create(lake, "stamped", {"n": "long"})
        yield lake


PLANS = {
    "one row": "SELECT 7L AS n",
    "many partitions": f"SELECT id AS n FROM range(0, 3000, 1, {scaled(80, 500)})",
    "mostly empty partitions": "SELECT id AS n FROM range(0, 60, 1, 60) WHERE id % 20 = 3",
    "group": "SELECT n FROM (SELECT id % 97 AS n, count(*) FROM range(0, 1000, 1, 4) GROUP BY 1)",
    "join": "SELECT a.id AS n FROM range(0, 300, 1, 3) a JOIN range(100, 900, 1, 4) b ON a.id = b.id",
    "skewed join": "SELECT b.id AS n FROM range(0, 2) a JOIN range(0, 400, 1, 3) b ON a.id = b.id % 2",
    "sort": "SELECT id AS n FROM range(0, 500, 1, 5) ORDER BY id % 13, id DESC",
    "repartition": "SELECT /*+ REPARTITION(9) */ id AS n FROM range(0, 500, 1, 2)",
    "rebalance": "SELECT /*+ REBALANCE */ id AS n FROM range(0, 500, 1, 6)",
    "coalesce": "SELECT /*+ COALESCE(2) */ id AS n FROM range(0, 500, 1, 11)",
    "distinct": "SELECT DISTINCT id % 50 AS n FROM range(0, 500, 1, 4)",
    "limit": "SELECT id AS n FROM range(0, 5000, 1, 8) LIMIT 130",
    "union": "SELECT id AS n FROM range(0, 20, 1, 3) UNION ALL SELECT id FROM range(20, 25, 1, 2)",
}


@pytest.mark.parametrize("plan", PLANS)
def test_numbers_are_dense_and_unique_whatever_the_plan(lake: Lake, plan: str) -> None:
    df = lake.spark.sql(PLANS[plan])
    done = lake.append("stamped", df)
    assert done.rows is not None
    found = sql(
        lake,
        "SELECT count(*), count(DISTINCT _ingest_seq), min(_ingest_seq), max(_ingest_seq), sum(n) "
        f"FROM lake.default.stamped WHERE _ingest_seq BETWEEN {done.rows.lo} AND {done.rows.hi}",
    )[0]
    assert tuple(found)[:4] == (len(done.rows), len(done.rows), done.rows.lo, done.rows.hi)
    if plan != "limit":  # whose rows Spark may choose again
        assert tuple(df.selectExpr("count(*)", "sum(n)").collect()[0]) == (found[0], found[4])


def test_a_frame_of_another_session_is_stamped_as_it_is(lake: Lake, spark: SparkSession) -> None:
    """Its session has a catalog of the same name, with another table under the same name, and a view of its own."""
    create(lake, "namesake", {"n": "long"})
    lake.append("namesake", numbers(lake, 100, 105))
    spark.sql("CREATE TABLE IF NOT EXISTS lake.default.namesake (n BIGINT) USING iceberg")
    spark.sql("INSERT INTO lake.default.namesake SELECT id FROM range(5)")
    lake.append("namesake", spark.table("lake.default.namesake"))
    other = lake.spark.newSession()
    other.range(200, 203).createOrReplaceTempView("only_there")
    lake.append("namesake", other.sql("SELECT id AS n FROM only_there"))
    assert sorted(values(lake, "namesake")) == [0, 1, 2, 3, 4, *range(100, 106), 200, 201, 202]


def _changing(lake: Lake, switch: Path, second: dict[int, int]) -> DataFrame:
    """Three partitions of ten rows; once the switch is there, as many as `second` says."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:

        from pyspark import TaskContext

        context = TaskContext.get()
        at = 0 if context is None else context.partitionId()
        for _ in batches:
            pass
        n = second.get(at, 10) if switch.exists() else 10
        if n:
            yield pa.RecordBatch.from_pydict({"n": pa.array([at * 100 + i for i in range(n)], pa.int64())})

    return lake.spark.range(0, 3, 1, 3).mapInArrow(rows, "n long")


CHANGES: dict[str, dict[int, int]] = {
    "one more": {1: 11},
    "one fewer": {1: 9},
    "one more here and one fewer there": {0: 11, 2: 9},
    "one fewer here and one more there": {0: 9, 2: 11},
    "a partition gone": {2: 0},
    "none left": {0: 0, 1: 0, 2: 0},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_source_that_changes_while_it_is_written_is_refused_and_can_be_offered_again(
    lake: Lake, change: str, tmp_path: Path
) -> None:
    create(lake, name := "changing_" + change.replace(" ", "_"), {"n": "long"})
    switch = tmp_path / "switch"

    def when_counted(step: str, rows: int | None) -> None:
        if step == "writing":
            switch.touch()

    with pytest.raises(StampMismatch) as refused:
        lake.append(name, _changing(lake, switch, CHANGES[change]), batch_id="b", progress=when_counted)
    assert refused.value.hint
    assert in_main(lake, name) == [] and open_blocks(lake, name) == [] and batch(lake, name, "b") is None
    assert lake.sealed(name) is None
    assert [r[0] for r in sql(lake, f"SELECT name FROM lake.default.{name}.refs") if r[0] != "main"] == []
    done = lake.append(name, _changing(lake, tmp_path / "never", {}), batch_id="b")
    assert not done.duplicate and done.row_count == 30
    assert [n for _, n in in_main(lake, name)] == [p * 100 + i for p in range(3) for i in range(10)]


def test_a_frame_that_was_counted_and_then_failed_leaves_no_block_behind(lake: Lake, tmp_path: Path) -> None:
    create(lake, "failing", {"n": "long"})
    switch = tmp_path / "switch"

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:

        for b in batches:
            if switch.exists():
                raise RuntimeError("the source went away")
            yield pa.RecordBatch.from_arrays([b.column(0)], ["n"])

    df = lake.spark.range(0, 10, 1, 2).mapInArrow(rows, "n long")
    with pytest.raises(Exception, match="the source went away"):
        lake.append(
            "failing", df, batch_id="b", progress=lambda step, rows: switch.touch() if step == "writing" else None
        )
    assert open_blocks(lake, "failing") == [] and in_main(lake, "failing") == []
    switch.unlink()
    assert lake.append("failing", df, batch_id="b").row_count == 10
