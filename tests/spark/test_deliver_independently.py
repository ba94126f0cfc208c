"""One sink that is slow, broken or stopped does not hold back another; neither does one partition."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from strandline.jobs.loop import LoopControl
from tests.spark.flaky import TROUBLE
from tests.spark.lakes import create, new_lake, numbers, sql
from tests.spark.sinks import names, rows, tick
from tests.waiting import eventually

if TYPE_CHECKING:
    from strandline.lake import Lake
    from tests.conftest import MakeHome


pytestmark = pytest.mark.usefixtures("flaky_kind")


@contextmanager
def daemon(lake: Lake) -> Iterator[None]:
    stopping = threading.Event()
    loop = threading.Thread(target=lake.delivery.run, args=(LoopControl(stopping),))
    loop.start()
    try:
        yield
    finally:
        stopping.set()
        loop.join(200)
        assert not loop.is_alive()


def test_the_daemon_does_not_wait_for_a_slow_sink(lake: Lake, tmp_path: Path) -> None:
    slow, fast = tmp_path / "a" / "slow", tmp_path / "fast"
    lake.delivery.add("slow", "events", "flaky", {"path": str(slow)})
    lake.delivery.add("fast", "events", "files", {"path": str(fast)})
    slow.parent.mkdir(exist_ok=True)
    (slow.parent / TROUBLE).write_text("slow 1")
    lake.append("events", numbers(lake, 1, 5))
    try:
        with daemon(lake):
            eventually(lambda: names(fast) == ["all/1-5"], 200)
            eventually((slow.parent / "offered").exists, 200)
            lake.append("events", numbers(lake, 6, 9))
            eventually(lambda: names(fast) == ["all/1-5", "all/6-9"], 200)
            assert names(slow) == []
            (slow.parent / TROUBLE).unlink()
            eventually(lambda: names(slow) == ["all/1-5", "all/6-9"], 200)
    finally:
        (slow.parent / TROUBLE).unlink(missing_ok=True)


def test_a_sink_that_raises_what_nobody_foresaw_takes_no_other_with_it(lake: Lake, tmp_path: Path) -> None:
    broken, fine = tmp_path / "a" / "broken", tmp_path / "fine"
    lake.delivery.add("broken", "events", "flaky", {"path": str(broken)})
    lake.delivery.add("fine", "events", "files", {"path": str(fine)})
    (broken.parent / TROUBLE).write_text("raise 1")
    lake.append("events", numbers(lake, 1, 5))
    reports = {s.name: s for s in lake.tick().sinks}
    assert reports["fine"].rows == 5
    assert reports["broken"].did == "waiting" and "a fault of the sink" in (reports["broken"].reason or "")
    (broken.parent / TROUBLE).unlink()
    assert tick(lake, "broken").rows == 5


def test_a_row_that_cannot_be_built_holds_back_its_own_partition_only(tmp_path: Path, make_home: MakeHome) -> None:
    out = tmp_path / "out"
    with new_lake(tmp_path / "lake", make_home) as lake:
        create(lake, "events", {"n": "long", "k": "string", "d": "long"}, deliver_by=["k"])
        lake.delivery.add("out", "events", "files", {"path": str(out), "where": "10 / d > 0"})
        bad = F.when(F.col("n") == 3, 0).otherwise(1).cast("long")
        lake.append(
            "events",
            numbers(lake, 1, 6).withColumn("k", F.when(F.col("n") < 4, "x").otherwise("y")).withColumn("d", bad),
        )
        assert tick(lake, "out").did == "waiting"
        assert names(out) == ["k=y/1-6"]
        sql(lake, "UPDATE lake.default.events SET d = 1")
        tick(lake, "out")
        assert [v for _, v in sorted(rows(out))] == [1, 2, 3, 4, 5, 6]


def test_rows_without_a_number_never_ride_along(lake: Lake, tmp_path: Path) -> None:
    """An adopted table: others append to it, and a compaction puts their rows into the files of ours."""
    out = tmp_path / "out"
    sql(lake, "CREATE TABLE lake.default.old (n BIGINT) USING iceberg")
    sql(lake, "INSERT INTO lake.default.old VALUES (1), (2)")
    lake.adopt_dataset("old")
    lake.delivery.add("out", "old", "files", {"path": str(out)})
    lake.append("old", numbers(lake, 3, 5))
    sql(lake, "INSERT INTO lake.default.old (n) VALUES (100), (101)")
    sql(lake, "CALL lake.system.rewrite_data_files(table => 'default.old', options => map('rewrite-all', 'true'))")
    tick(lake, "out")
    assert [v for _, v in sorted(rows(out))] == [1, 2, 3, 4, 5]
    lake.adopt_dataset("old")
    tick(lake, "out")
    assert sorted(v for _, v in rows(out)) == [1, 2, 3, 4, 5, 100, 101]
