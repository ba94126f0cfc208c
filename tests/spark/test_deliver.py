"""Every settled row to a sink once, whatever happens between two ticks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.json as pj
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from strandline.core import failpoints
from strandline.core.errors import UsageError
from strandline.core.types import Seq, SeqRange
from strandline.deliver.send import build_spark
from strandline.deliver.send.build_spark import Shipment
from strandline.deliver.sink import Address
from strandline.iceberg.spark import conditions
from strandline.lake_admin import rebuild_ledger
from strandline.ledger.deliver import lanes, sinks
from tests.spark.flaky import TROUBLE
from tests.spark.lakes import create, new_lake, numbers, sql
from tests.spark.sinks import armed, digests, names, objects, rows, tick
from tests.spark.upkeep import compact_as_anyone, expire_as_anyone

if TYPE_CHECKING:
    from strandline.lake import Lake
    from tests.conftest import MakeHome


pytestmark = pytest.mark.usefixtures("flaky_kind")


def add(lake: Lake, out: Path, name: str = "out", kind: str = "files", **options: str) -> None:
    lake.delivery.add(name, "events", kind, {"path": str(out), **options})


class trouble:
    """With a sink that fails: see tests/spark/flaky.py."""

    def __init__(self, out: Path, what: str) -> None:
        self.file, self.what = out.parent / TROUBLE, what

    def __enter__(self) -> None:
        self.file.write_text(self.what)

    def __exit__(self, *exc: object) -> None:
        self.file.unlink()


def expected(lo: int, hi: int) -> list[tuple[int, int]]:
    return [(n, n) for n in range(lo, hi + 1)]


def test_rows_arrive_once_in_order_and_only_new_ones_later(lake: Lake, out: Path) -> None:
    add(lake, out)
    assert tick(lake, "out").did == "idle"
    lake.append("events", numbers(lake, 1, 50))
    assert tick(lake, "out").rows == 50
    assert tick(lake, "out").did == "idle"
    lake.append("events", numbers(lake, 51, 60))
    assert tick(lake, "out").rows == 10
    assert names(out) == ["all/1-50", "all/51-60"]
    assert rows(out) == expected(1, 60)


def test_chunks_hold_so_many_rows_and_no_more(lake: Lake, out: Path) -> None:
    add(lake, out, chunk_rows_max="750")
    lake.append("events", numbers(lake, 1, 2000))
    tick(lake, "out")
    sizes = [int(hi) - int(lo) + 1 for lo, hi in (n.removeprefix("all/").split("-") for n in names(out))]
    assert max(sizes) <= 750 and sum(sizes) == 2000 and len(sizes) <= 4
    assert rows(out) == expected(1, 2000)


def test_chunks_hold_so_many_bytes_and_a_larger_row_stands_alone(
    tmp_path: Path, make_home: MakeHome, out: Path
) -> None:
    with new_lake(tmp_path / "lake", make_home) as lake:
        create(lake, "events", {"n": "long", "text": "string"})
        lake.delivery.add("out", "events", "files", {"path": str(out), "chunk_bytes_max": "2000"})
        sized = F.when(F.col("n") == 13, F.repeat(F.lit("x"), 5000)).otherwise(F.repeat(F.lit("y"), 100))
        lake.append("events", numbers(lake, 1, 40).withColumn("text", sized))
        tick(lake, "out")
        assert "all/13-13" in names(out)
        assert rows(out) == expected(1, 40)
        assert all(int(n[4:].split("-")[1]) - int(n[4:].split("-")[0]) < 20 for n in names(out))


def test_a_lost_acknowledgement_and_new_rows_before_the_retry(
    lake: Lake, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(lake, out)
    lake.append("events", numbers(lake, 1, 50))
    with armed(monkeypatch, "deliver.before_acknowledge=fail"), pytest.raises(RuntimeError):
        lake.tick()
    before = digests(out)
    assert list(before) == ["all/1-50"]
    lake.append("events", numbers(lake, 51, 60))
    assert tick(lake, "out").did == "delivered"
    assert names(out) == ["all/1-50", "all/51-60"]
    assert digests(out)["all/1-50"] == before["all/1-50"]
    assert rows(out) == expected(1, 60)


def test_a_retry_sends_the_same_bytes_however_the_table_was_rewritten(lake: Lake, out: Path) -> None:
    """The first time straight from the files, the second time through Spark."""
    add(lake, out, kind="flaky", chunk_rows_max="16")
    lake.append("events", numbers(lake, 1, 50))
    with trouble(out, "lost 17"):
        assert tick(lake, "out").did == "waiting"
    first = digests(out)
    assert {"all/1-16", "all/17-32"} <= set(first), "those behind may be given back unsent"
    for name, path in objects(out).items():  # as if they had never arrived
        if name != "all/1-16":
            path.unlink()
    sql(lake, REVERSED)
    lake.append("events", numbers(lake, 51, 60))
    assert tick(lake, "out").did == "delivered"
    assert rows(out) == expected(1, 60)
    assert {name: digest for name, digest in digests(out).items() if name in first} == first


REVERSED = (
    "CALL lake.system.rewrite_data_files(table => 'default.events', strategy => 'sort', sort_order => 'n DESC', "
    "options => map('rewrite-all', 'true'))"
)


def test_rows_out_of_order_across_a_chunk_boundary_and_the_later_chunk_fails(lake: Lake, out: Path) -> None:
    lake.append("events", numbers(lake, 1, 60))
    sql(lake, REVERSED)
    add(lake, out, kind="flaky", chunk_rows_max="32")
    with trouble(out, "later 20"):
        assert tick(lake, "out").did == "waiting"
    assert rows(out) == expected(1, 31)
    assert tick(lake, "out").did == "delivered"
    assert rows(out) == expected(1, 60)


def test_an_outcome_that_is_not_known_is_asked_for_and_not_sent_again(lake: Lake, out: Path) -> None:
    add(lake, out, kind="flaky")
    lake.append("events", numbers(lake, 1, 10))
    with trouble(out, "lost 1"):
        assert tick(lake, "out").did == "waiting"
    lake.append("events", numbers(lake, 11, 20))
    assert tick(lake, "out").did == "delivered"
    assert rows(out) == expected(1, 20)
    assert (out.parent / "offered").read_text().split() == ["/1-10", "/11-20"]


def test_a_delete_between_the_failure_and_the_retry(lake: Lake, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(lake, out)
    lake.append("events", numbers(lake, 1, 50))
    with armed(monkeypatch, "files.before_link=fail"):
        assert tick(lake, "out").did == "waiting"
    sql(lake, "DELETE FROM lake.default.events WHERE n BETWEEN 10 AND 19")
    report = tick(lake, "out")
    assert report.did == "delivered", report
    assert rows(out) == expected(1, 9) + expected(20, 50)
    assert names(out) == ["all/1-50"]


def test_everything_was_deleted_before_it_could_be_sent(lake: Lake, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(lake, out)
    lake.append("events", numbers(lake, 1, 50))
    with armed(monkeypatch, "files.before_link=fail"):
        tick(lake, "out")
    sql(lake, "DELETE FROM lake.default.events")
    tick(lake, "out")
    assert names(out) == []
    lake.append("events", numbers(lake, 51, 52))
    tick(lake, "out")
    assert names(out) == ["all/51-52"]


def test_a_restored_ledger_delivers_nothing_twice_and_forgets_nothing(lake: Lake, out: Path, tmp_path: Path) -> None:
    add(lake, out, chunk_rows_max="20")
    lake.append("events", numbers(lake, 1, 30))
    tick(lake, "out")
    lake.ledger.backup(tmp_path / "copy.db")
    lake.append("events", numbers(lake, 31, 75))
    tick(lake, "out")
    before = digests(out)
    lake.append("events", numbers(lake, 76, 80))
    shutil.copy(tmp_path / "copy.db", lake.config.path("ledger.db"))
    lake.append("events", numbers(lake, 81, 90))
    tick(lake, "out")
    assert [v for _, v in rows(out)] == list(range(1, 91))
    assert {k: v for k, v in digests(out).items() if k in before} == before


def test_a_lost_ledger_finds_its_sink_again(lake: Lake, out: Path) -> None:
    add(lake, out)
    lake.append("events", numbers(lake, 1, 30))
    tick(lake, "out")
    before = digests(out)
    lake.append("events", numbers(lake, 31, 40))
    lake.config.path("ledger.db").unlink()
    rebuild_ledger(lake.config)
    add(lake, out)
    tick(lake, "out")
    assert [v for _, v in rows(out)] == list(range(1, 41))
    assert {k: v for k, v in digests(out).items() if k in before} == before
    assert lake.delivery.verify("out").ok


def test_a_sink_that_was_removed_goes_on_where_it_stands(lake: Lake, out: Path) -> None:
    add(lake, out)
    lake.append("events", numbers(lake, 1, 30))
    tick(lake, "out")
    lake.delivery.remove("out")
    lake.append("events", numbers(lake, 31, 40))
    add(lake, out, "again")
    tick(lake, "again")
    assert rows(out) == expected(1, 40)
    assert names(out) == ["all/1-30", "all/31-40"]


def test_a_catalog_that_was_rolled_back_behind_the_seal_is_refused(lake: Lake, out: Path) -> None:
    add(lake, out)
    lake.append("events", numbers(lake, 1, 10))
    lake.append("events", numbers(lake, 11, 20))
    first = sql(lake, "SELECT snapshot_id FROM lake.default.events.snapshots ORDER BY committed_at")[0][0]
    sql(lake, f"CALL lake.system.set_current_snapshot('default.events', {first})")
    report = tick(lake, "out")
    assert report.did == "waiting" and "rolled back" in (report.reason or "")
    assert names(out) == []


def test_rows_that_were_copied_with_their_numbers_are_held_and_told(lake: Lake, out: Path) -> None:
    add(lake, out)
    lake.append("events", numbers(lake, 1, 10))
    sql(lake, "INSERT INTO lake.default.events SELECT * FROM lake.default.events WHERE n = 7")
    report = tick(lake, "out")
    assert report.did == "waiting" and "sequence number 7 is on two rows" in (report.reason or "")
    assert names(out) == []


def test_what_a_filter_leaves_out_advances_the_mark_and_is_counted(lake: Lake, out: Path) -> None:
    add(lake, out, where="n % 10 = 0")
    lake.append("events", numbers(lake, 1, 50))
    report = tick(lake, "out")
    assert (report.rows, report.withheld) == (5, 45)
    lake.append("events", numbers(lake, 51, 55))
    assert tick(lake, "out").withheld == 5
    assert names(out) == ["all/1-50"]
    lake.delivery.update("out", {}, unset=["where"])
    lake.append("events", numbers(lake, 56, 57))
    tick(lake, "out")
    assert [v for _, v in rows(out)] == [10, 20, 30, 40, 50, 56, 57]


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_no_condition_can_take_a_row_apart(lake: Lake, out: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """Even one that gives another answer whenever it is asked, and that nobody refused."""
    monkeypatch.setattr(conditions, "find_instability", lambda *_: None)
    create(lake, "wide", {"n": "long", "a": "string", "b": "struct<x:long>", "c": "double"})
    options = {"path": str(out), "where": "rand() < 0.5", "format": form, "compression": "none"}
    lake.delivery.add("out", "wide", "files", options)
    wide = numbers(lake, 1, 200).selectExpr("n", "string(n) AS a", "named_struct('x', n) AS b", "double(n) AS c")
    lake.append("wide", wide)
    report = tick(lake, "out")
    assert report.rows > 0 and report.withheld > 0 and report.rows + report.withheld == 200
    [path] = out.rglob(f"*.{form}")
    found = pj.read_json(path) if form == "jsonl" else pq.read_table(path)
    want = [{"_ingest_seq": n, "n": n, "a": str(n), "b": {"x": n}, "c": float(n)} for n in found["n"].to_pylist()]
    assert found.to_pylist() == want and found.num_rows == report.rows


UNSTABLE = {
    "rand() < 0.5": "another value",
    "uuid() > '8'": "another value",
    "shuffle(array(n, 2))[0] = 2": "another value",
    "timestamp_seconds(n) < now()": "time or the session",
    "n < unix_timestamp()": "time or the session",
    "current_time() > time'01:00:00'": "time or the session",
    "string(n) = current_user()": "time or the session",
    "date_add(date'2020-01-01', int(n)) < date 'today'": "another time",
    "timestamp_seconds(n) < cast('now' AS timestamp)": "another time",
    "a_function(n)": "user-defined function",
    "n < a_variable": "not a value of the row",
    "n IN (SELECT id FROM range(3))": "other tables",
    "_file LIKE '%a%'": "where the row is stored",
}
STABLE = (
    "n BETWEEN 1 AND 3 OR n * pi() > 9",
    "exists(array(n), x -> x > 2)",
    "date_add(date'2020-01-01', int(n)) > '2020-01-03'",
)


def test_a_condition_that_depends_on_more_than_the_row_is_refused(lake: Lake, out: Path) -> None:
    lake.spark.udf.register("a_function", lambda n: True, "boolean")
    sql(lake, "DECLARE VARIABLE a_variable bigint DEFAULT 3")
    add(lake, out, where=STABLE[0])
    for where, why in UNSTABLE.items():
        with pytest.raises(UsageError, match=why):
            add(lake, out.parent / "other", "other", where=where)
        with pytest.raises(UsageError, match=why):
            lake.delivery.update("out", {"where": where})
    for where in STABLE:
        lake.delivery.update("out", {"where": where})
    # One that was accepted by an older version waits, with the reason, and delivers nothing.
    with lake.ledger.write() as connection:
        record = sinks.get(connection, "out")
        sinks.set_options(connection, record.id, {**record.options, "where": "rand() < 0.5"}, record.destination)
    lake.append("events", numbers(lake, 1, 10))
    report = tick(lake, "out")
    assert report.did == "waiting" and "rand" in (report.reason or "") and names(out) == []


def test_a_sink_that_starts_now_gets_only_what_comes(lake: Lake, out: Path) -> None:
    lake.append("events", numbers(lake, 1, 10))
    lake.delivery.add("out", "events", "files", {"path": str(out)}, from_now=True)
    assert tick(lake, "out").did == "idle"
    lake.append("events", numbers(lake, 11, 12))
    tick(lake, "out")
    assert names(out) == ["all/11-12"]
    lake.append("events", numbers(lake, 13, 14))
    lake.config.path("ledger.db").unlink()
    rebuild_ledger(lake.config)
    lake.delivery.add("out", "events", "files", {"path": str(out)}, from_now=True)
    tick(lake, "out")
    assert rows(out) == expected(11, 14), "the place was its own: none that came meanwhile is left out"
    assert lake.delivery.verify("out", taken_is_fine=True).ok


def test_a_snapshot_that_is_expired_between_plan_and_send_costs_no_tick(
    lake: Lake, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(lake, out)
    lake.append("events", numbers(lake, 1, 10))
    lake.append("events", numbers(lake, 11, 20))
    reached: list[str] = []

    def expire(point: str) -> None:
        if point == "deliver.after_plan":
            reached.append(point)
            compact_as_anyone(lake, "events")
            expire_as_anyone(lake, "events")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(failpoints, "hit", expire)
        report = tick(lake, "out")
    assert (report.did, report.rows, report.reason) == ("delivered", 20, None) and reached
    assert sorted(rows(out)) == expected(1, 20)


def test_a_sink_that_was_restored_from_a_backup_is_noticed_and_stops(lake: Lake, out: Path, tmp_path: Path) -> None:
    add(lake, out)
    lake.append("events", numbers(lake, 1, 10))
    tick(lake, "out")
    shutil.copytree(out, tmp_path / "backup")
    lake.append("events", numbers(lake, 11, 20))
    tick(lake, "out")
    shutil.rmtree(out)
    shutil.copytree(tmp_path / "backup", out)
    lake.append("events", numbers(lake, 21, 30))
    report = tick(lake, "out")
    assert report.did == "stopped" and "11..20" in (report.reason or "")
    assert lake.delivery.get("out").state == "stopped"
    lake.delivery.recover_sink("out", resend=True)
    tick(lake, "out")
    assert sorted(rows(out)) == expected(1, 30)


def test_a_loss_that_a_person_accepts_is_not_asked_for_again(lake: Lake, out: Path) -> None:
    add(lake, out)
    lake.append("events", numbers(lake, 1, 10))
    tick(lake, "out")
    shutil.rmtree(out)
    lake.append("events", numbers(lake, 11, 12))
    assert tick(lake, "out").did == "stopped"
    assert lake.delivery.recover_sink("out", accept_loss=True).lost == (("", "1..10"),)
    tick(lake, "out")
    assert rows(out) == expected(11, 12)


def test_a_reset_starts_a_generation_with_marks_and_a_place_of_its_own(lake: Lake, out: Path) -> None:
    add(lake, out)
    lake.append("events", numbers(lake, 1, 10))
    token = lake.read_since("events").continuation
    lake.append("events", numbers(lake, 11, 20))
    tick(lake, "out")
    assert lake.delivery.reset("out", to=token).generation == 2
    tick(lake, "out")
    assert rows(out / "generation=2") == expected(11, 20)
    lake.delivery.reset("out")
    tick(lake, "out")
    assert rows(out / "generation=3") == expected(1, 20)


def test_partitions_are_lanes_of_their_own(tmp_path: Path, make_home: MakeHome, out: Path) -> None:
    with new_lake(tmp_path / "lake", make_home) as lake:
        create(lake, "events", {"n": "long", "k": "string"}, deliver_by=["k"])
        add(lake, out)
        key = F.element_at(F.array(*map(F.lit, ["a/b", "a_b", ""])), (F.col("n") % 4 + 1).cast("int"))
        lake.append("events", numbers(lake, 1, 40).withColumn("k", F.when(F.col("n") % 4 < 3, key)))
        tick(lake, "out")
        assert names(out) == [f"k={k}/1-40" for k in ("", "a%2Fb", "a_b", "~")]
        lake.append("events", numbers(lake, 41, 44).withColumn("k", F.lit("a_b")))
        lake.append("events", numbers(lake, 45, 46).withColumn("k", F.lit("new")))
        tick(lake, "out")
        assert sorted(set(names(out))) == sorted(
            [f"k={k}/1-40" for k in ("", "a%2Fb", "a_b", "~")] + ["k=a_b/41-46", "k=new/41-46"]
        )
        assert sorted(rows(out)) == expected(1, 46)


def test_an_update_of_the_partition_column_moves_no_row_between_lanes(
    tmp_path: Path, make_home: MakeHome, out: Path
) -> None:
    with new_lake(tmp_path / "lake", make_home) as lake:
        create(lake, "events", {"n": "long", "k": "string"}, deliver_by=["k"])
        add(lake, out, kind="flaky")
        halves = F.when(F.col("n") <= 5, "low").otherwise("high")
        lake.append("events", numbers(lake, 1, 10).withColumn("k", halves))
        with trouble(out, "later 1"):
            tick(lake, "out")
        sql(lake, "UPDATE lake.default.events SET k = 'low' WHERE n = 9")
        tick(lake, "out")
        assert sorted(rows(out)) == expected(1, 10)
        assert names(out) == ["k=high/1-10", "k=low/1-10"]


def test_a_sink_follows_a_new_column(lake: Lake, out: Path) -> None:
    from strandline.iceberg.schema.alteration import AddColumn
    from strandline.iceberg.schema.columns import Primitive

    add(lake, out)
    lake.append("events", numbers(lake, 1, 5))
    tick(lake, "out")
    lake.alter_dataset("events", [AddColumn("more", Primitive("string"))])
    lake.append("events", numbers(lake, 6, 8).withColumn("more", F.lit("x")))
    tick(lake, "out")
    assert rows(out) == expected(1, 8)
    assert [v for _, v in rows(out.parent / "out", "n")][-1] == 8


def test_the_same_destination_twice_and_one_inside_the_warehouse_are_refused(lake: Lake, out: Path) -> None:
    from strandline.core.errors import RefusedError

    add(lake, out)
    with pytest.raises(RefusedError, match="already"):
        add(lake, out, "twin")
    with pytest.raises(RefusedError, match="inside the warehouse"):
        add(lake, lake.config.path("warehouse/x"), "inside")


def test_fifteen_hundred_partitions_and_none_of_them_starves(tmp_path: Path, make_home: MakeHome, out: Path) -> None:
    """One plan and one job for all; a partition without new rows costs neither an intent, nor a job, nor an object."""
    with new_lake(tmp_path / "lake", make_home) as lake:
        create(lake, "events", {"n": "long", "k": "long"}, deliver_by=["k"])
        add(lake, out)
        lake.append("events", numbers(lake, 1, 3000).withColumn("k", F.col("n") % 1500))
        assert (tick(lake, "out").rows, len(names(out))) == (3000, 1500)
        lake.append("events", numbers(lake, 3001, 3010).withColumn("k", F.lit(7).cast("long")))
        jobs = lake.spark.sparkContext.statusTracker()
        before = len(jobs.getJobIdsForGroup(None))
        assert tick(lake, "out").chunks == 1
        assert len(jobs.getJobIdsForGroup(None)) - before < 10
        assert len(names(out)) == 1501
        standing = lake.delivery.get("out")
        with lake.ledger.read() as connection:
            marks = {lane.mark for lane in lanes.unchecked(connection, standing)}
        assert marks == {3010}  # every lane has passed what was not for it
        assert sorted(rows(out)) == expected(1, 3010)


def test_lines_that_lie_in_place_are_built_by_a_task_for_each_run(lake: Lake) -> None:
    """A union of frames of one partition each would be one partition, and so one task, if Spark had its way."""
    lake.append("events", numbers(lake, 1, 100))
    df = lake.spark.table("lake.default.events")
    address = Address("lake", "sink", 1, "default.events", "")
    chunks = [Shipment(n, address, SeqRange(Seq(10 * n + 1), Seq(10 * n + 10)), 10) for n in range(10)]
    runs = build_spark.in_runs(chunks, 4)
    placed = build_spark._in_place(df, runs, build_spark.Cargo("jsonl", tuple(df.schema.fields), None))
    assert placed.rdd.getNumPartitions() == len(runs) == 4
    held = placed.groupBy(F.spark_partition_id()).agg(F.min("_sl_number"), F.max("_sl_number"), F.count("*"))
    assert sorted(tuple(r)[1:] for r in held.collect()) == [(1, 30, 30), (31, 60, 30), (61, 90, 30), (91, 100, 10)]
