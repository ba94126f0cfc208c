"""The Spark data source: settled rows as frames and streams, whatever happens to the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.sql import DataFrame

import strandline
from strandline.lake import Lake
from tests.conftest import MakeHome
from tests.spark.lakes import create, in_order, new_lake, numbers, sql
from tests.spark.upkeep import compact_as_anyone, expire_as_anyone

T = TypeVar("T")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Iterator[Lake]:
    with new_lake(tmp_path_factory.mktemp("source"), make_home) as lake:
        strandline.register(lake.spark)
        yield lake


def read(lake: Lake, dataset: str, **options: Any) -> DataFrame:
    return with_options(lake, lake.spark.read, dataset, options)


SLOW = "Python worker failed to connect"
"""Spark gives a new Python process 10 s to start, which a machine that stalls does not keep."""


def patiently(act: Callable[[], T]) -> T:
    for _ in range(30):
        try:
            return act()
        except Exception as e:
            if SLOW not in str(e):
                raise
    return act()


def with_options(lake: Lake, reader: Any, dataset: str, options: dict[str, Any]) -> DataFrame:
    given = {"lake": str(lake.config.home), "dataset": dataset, **options}
    frame: DataFrame = patiently(lambda: reader.format("strandline").options(**given).load())
    return frame


class Stream:
    """A query into memory of this test, which may be stopped and started again."""

    def __init__(self, lake: Lake, dataset: str, checkpoint: Path, **options: Any) -> None:
        self.lake, self.dataset, self.checkpoint, self.options = lake, dataset, checkpoint, options
        self.batches: dict[int, list[Any]] = {}
        self.repeated: list[int] = []

    def run(self, trigger: dict[str, Any] | None = None) -> None:
        """Everything that is there."""
        patiently(lambda: self._run(trigger))

    def _run(self, trigger: dict[str, Any] | None) -> None:
        frame = with_options(self.lake, self.lake.spark.readStream, self.dataset, self.options)
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()
        try:
            if trigger is None:
                query.processAllAvailable()
            else:
                query.awaitTermination()
        finally:
            query.stop()

    def _take(self, df: DataFrame, epoch: int) -> None:
        rows = in_order(df.collect())
        if epoch in self.batches:
            self.repeated.append(epoch)
            assert rows == self.batches[epoch], "a batch that is repeated has the same rows"
        self.batches[epoch] = rows

    @property
    def values(self) -> list[int]:
        return sorted(r.n for rows in self.batches.values() for r in rows)


def test_a_read_gives_the_settled_rows_with_the_columns_that_were_asked_for(lake: Lake) -> None:
    create(lake, "plain", {"n": "long", "t": "string"})
    assert read(lake, "plain").collect() == []
    lake.append("plain", numbers(lake, 1, 10).selectExpr("n", "concat('t', n) AS t"))
    lake.append("plain", numbers(lake, 11, 20).selectExpr("n", "concat('t', n) AS t"))
    df = read(lake, "plain")
    assert df.schema == lake.read_since("plain").df.schema
    assert in_order(df.collect()) == in_order(lake.read_since("plain").df.collect())
    assert read(lake, "plain", columns="t", with_sequence="true").columns == ["_ingest_seq", "t"]
    assert sorted(r.n for r in read(lake, "plain", until="10", columns="n").collect()) == list(range(1, 11))
    token = lake.read_since("plain", until=15).continuation
    assert sorted(r.n for r in read(lake, "plain", since=token).collect()) == list(range(16, 21))
    assert sorted(r.n for r in read(lake, "plain", where="n >= 9 and t < 't12'").collect()) == [10, 11]


def test_a_stream_gives_each_row_once_through_compaction_expiry_and_restarts(lake: Lake, tmp_path: Path) -> None:
    create(lake, "events", {"n": "long"})
    stream = Stream(lake, "events", tmp_path / "checkpoint")
    stream.run()
    for k in range(4):
        lake.append("events", numbers(lake, k * 10 + 1, k * 10 + 10))
        if k == 2:
            sql(
                lake,
                "CALL lake.system.rewrite_data_files(table => 'default.events', options => map('rewrite-all', 'true'))",
            )
        sql(
            lake,
            "CALL lake.system.expire_snapshots(table => 'default.events', "
            "older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => 1)",
        )
        stream.run()
    assert stream.values == list(range(1, 41)) and [len(b) for b in stream.batches.values()] == [0, 10, 10, 10, 10]


def test_a_stream_goes_in_steps_of_at_most_so_many_rows(lake: Lake, tmp_path: Path) -> None:
    create(lake, "steps", {"n": "long"})
    lake.append("steps", numbers(lake, 1, 25))
    stream = Stream(lake, "steps", tmp_path / "checkpoint", max_rows_per_trigger=10)
    stream.run()
    assert [len(rows) for rows in stream.batches.values()] == [10, 10, 5]
    lake.append("steps", numbers(lake, 26, 45))
    stream.run()
    assert [len(rows) for rows in stream.batches.values()] == [10, 10, 5, 10, 10]
    assert stream.values == list(range(1, 46))


def test_availablenow_and_once_take_one_step_and_skip_no_row(lake: Lake, tmp_path: Path) -> None:
    create(lake, "bounded", {"n": "long"})
    lake.append("bounded", numbers(lake, 1, 25))
    stream = Stream(lake, "bounded", tmp_path / "checkpoint", max_rows_per_trigger=10)
    sizes: list[int] = []
    for trigger in ({"availableNow": True}, {"once": True}, {"availableNow": True}, {"availableNow": True}):
        stream.run(trigger)
        sizes.append(sum(map(len, stream.batches.values())))
    assert sizes == [10, 20, 25, 25]
    assert stream.values == list(range(1, 26))


def test_a_query_that_starts_at_an_older_commit_has_the_same_batches(lake: Lake, tmp_path: Path) -> None:
    """As after a failure between a batch and its commit, for every batch, though more rows came and files changed."""
    create(lake, "again", {"n": "long"})
    lake.append("again", numbers(lake, 1, 17))
    stream = Stream(lake, "again", tmp_path / "checkpoint", max_rows_per_trigger=6)
    stream.run()
    first = dict(stream.batches)
    lake.append("again", numbers(lake, 18, 20))
    compact_as_anyone(lake, "again")
    expire_as_anyone(lake, "again")
    for log in (tmp_path / "checkpoint" / "commits").iterdir():
        if log.name.lstrip(".").partition(".")[0] == str(max(first)):
            log.unlink()
    stream.run()
    assert stream.repeated == [max(first)] and {n: stream.batches[n] for n in first} == first
    assert stream.values == list(range(1, 21))
