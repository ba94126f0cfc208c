"""Retention beside delivery, on real tables: what a sink is owed stays, what goes is counted, and verify knows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from strandline.core.errors import FailedError, RefusedError, SchemaError, Skipped
from strandline.core.failpoints import FailpointError
from strandline.core.settings.maintain import RetainSettings
from strandline.core.types import Reserved
from strandline.deliver.verify.ranges import Fault
from strandline.iceberg.spark import row_delete
from strandline.ledger import audit
from strandline.ledger.deliver import losses, sinks
from strandline.ledger.deliver.losses import Reason
from strandline.ledger.ingest import blocks, datasets
from strandline.ledger.maintain import floors, retention_holds
from strandline.maintain import count_rows
from strandline.maintain.retain import retain
from strandline.maintain.retain_result import Retained
from strandline.read import foreign_rows
from tests.spark.lakes import create, in_main, new_lake, numbers, sql
from tests.spark.sinks import armed, objects, tick

if TYPE_CHECKING:
    from strandline.lake import Lake
    from tests.conftest import MakeHome

OLD = timedelta(days=30)
LATER = timedelta(days=31)


@pytest.fixture
def lake(tmp_path: Path, make_home: MakeHome) -> Iterator[Lake]:
    with new_lake(tmp_path / "lake", make_home) as lake:
        create(lake, "events", {"n": "long", "at": "timestamptz"})
        yield lake


def append(lake: Lake, lo: int, hi: int, at: str = "NULL") -> None:
    lake.append("events", numbers(lake, lo, hi).selectExpr("n", f"CAST({at} AS TIMESTAMP) AS at"))


def add(lake: Lake, out: Path, **options: str) -> None:
    lake.delivery.add(out.name, "events", "files", {"path": str(out), "chunk_rows_max": "10", **options})


def run(lake: Lake, later: timedelta = LATER, *, dry_run: bool = False, **rule: Any) -> Retained:
    """As if it were later; a person says that this is so."""
    now = datetime.now(UTC) + later
    target = lake.dataset("events")
    return retain(
        lake.maintenance.context,
        target,
        RetainSettings(older_than=OLD, **rule),
        now=now,
        accept_clock=True,
        dry_run=dry_run,
    )


def left(lake: Lake) -> list[int]:
    return [n for _, n in in_main(lake, "events")]


def events(lake: Lake, name: str) -> list[dict[str, Any]]:
    with lake.ledger.read() as connection:
        return [e.detail for e in reversed(audit.latest(connection)) if e.event == name]


def floor(lake: Lake) -> int | None:
    with lake.ledger.read() as connection:
        return floors.get(connection, lake.dataset("events").id)


def held(lake: Lake) -> list[tuple[str, int | None]]:
    with lake.ledger.read() as connection:
        return [(h.name, h.rows) for h in retention_holds.of_dataset(connection, lake.dataset("events").id)]


def proved(lake: Lake) -> dict[str, tuple[int, int, int]]:
    """Every sink without a finding: rows that it holds, those of them that the lake has no more, and what it lost."""
    report = lake.delivery.verify()
    assert [(f.kind, f.what, f.detail) for s in report.sinks for f in s.findings] == []
    return {s.name: (s.rows, s.gone, s.lost) for s in report.sinks}


def test_what_the_slowest_sink_has_goes_the_rest_is_held_and_a_new_sink_starts_above_it(
    lake: Lake, tmp_path: Path
) -> None:
    add(lake, tmp_path / "fast")
    add(lake, tmp_path / "slow")
    append(lake, 1, 20)
    lake.tick()
    append(lake, 21, 50)
    tick(lake, "fast")
    assert run(lake, timedelta(days=29)).due_up_to is None, "nothing is old yet"

    before = left(lake)
    rehearsed = run(lake, dry_run=True)
    assert (rehearsed.deleted_rows, [(h.sink, h.rows) for h in rehearsed.held]) == (20, [("slow", 30)])
    assert left(lake) == before and floor(lake) is None and held(lake) == []

    watch = lake.watch("events")
    done = run(lake)
    assert (done.deleted_rows, done.deleted_up_to, done.floor, done.due_up_to) == (20, 20, 20, 50)
    assert lake.sealed("events") == watch.refresh() == 50
    assert left(lake) == list(range(21, 51)) and held(lake) == [("slow", 30)]
    assert lake.tables().view("default.events").floor == 20
    assert [e["sink"] for e in events(lake, "maintain.retention_held")] == ["slow"]

    lake.delivery.add("new", "events", "files", {"path": str(tmp_path / "new")})
    assert lake.delivery.get("new").start == 20
    assert events(lake, "sink.added")[-1]["floor"] == 20
    lake.tick()
    assert run(lake).released == ("slow",)
    assert left(lake) == [] and floor(lake) == 50 and held(lake) == []
    assert lake.sealed("events") == 50, "not one row is left, and the seal stays"
    lake.maintenance.expire("events", older_than=timedelta(), keep_min=1)
    lake.recover()
    assert lake.sealed("events") == watch.refresh() == 50
    assert run(lake).deleted_rows == 0
    append(lake, 51, 60)
    lake.tick()
    assert proved(lake) == {"fast": (60, 50, 0), "slow": (60, 50, 0), "new": (40, 30, 0)}
    again = lake.delivery.reset("new", to=None)
    assert (again.start, again.generation) == (50, 2)
    lake.tick()
    assert proved(lake)["new"] == (10, 0, 0)
    with lake.ledger.read() as connection:
        assert sum(x.rows or 0 for x in losses.of_sink(connection, lake.delivery.get("slow"))) == 0


def test_a_sink_that_lost_what_the_lake_no_longer_has_is_still_found_out(lake: Lake, tmp_path: Path) -> None:
    out = tmp_path / "out"
    add(lake, out)
    append(lake, 1, 30)
    lake.tick()
    run(lake)
    first, second, _ = objects(out).values()
    first.unlink()
    body = bytearray(second.read_bytes())
    body[len(body) // 3] ^= 1
    second.write_bytes(body)
    found = {f.kind for f in lake.delivery.verify("out").sinks[0].findings}
    assert found in ({Fault.MISSING, Fault.CORRUPT}, {Fault.MISSING, Fault.DIGEST})


def test_an_open_intent_keeps_its_rows_until_it_is_closed(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(lake, tmp_path / "out")
    append(lake, 1, 30)
    with armed(monkeypatch, "deliver.after_send=fail@1"):
        assert tick(lake, "out").reason is not None
    done = run(lake)
    assert (done.deleted_rows, left(lake)) == (0, list(range(1, 31)))
    assert tick(lake, "out").reason is None
    assert run(lake).deleted_rows == 30
    assert proved(lake) == {"out": (30, 30, 0)}


def test_what_is_dropped_is_counted_and_delivery_goes_on_above_it(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(lake, tmp_path / "fine")
    add(lake, tmp_path / "stuck")
    append(lake, 1, 20)
    lake.tick()
    append(lake, 21, 40)
    tick(lake, "fine")
    with armed(monkeypatch, "deliver.before_send=fail@1"):
        assert tick(lake, "stuck").reason is not None
    rule: dict[str, Any] = {"on_lag": "drop", "drop_after": timedelta(days=7)}
    assert run(lake, **rule).deleted_rows == 20, "held for the first time"
    assert run(lake, LATER + timedelta(days=6), **rule).deleted_rows == 0
    with armed(monkeypatch, "retain.after_drop_marks=fail"), pytest.raises(FailpointError):
        run(lake, LATER + timedelta(days=8), **rule)
    assert left(lake) == list(range(21, 41)) and events(lake, "sink.rows_lost")[-1]["rows"] == 20
    lake.tick()  # a deliverer comes before the rows are gone: what is counted as lost is not sent
    done = run(lake, LATER + timedelta(days=8), **rule)
    assert (done.deleted_rows, left(lake), held(lake)) == (20, [], [])
    append(lake, 41, 50)
    lake.tick()
    assert proved(lake) == {"fine": (50, 40, 0), "stuck": (30, 20, 20)}


def test_a_paused_sink_holds_unless_a_person_chose_otherwise(lake: Lake, tmp_path: Path) -> None:
    add(lake, tmp_path / "away", where="n % 2 = 0")
    append(lake, 1, 10)
    with lake.ledger.write() as connection:
        sinks.stop(connection, lake.delivery.get("away").id, "it stopped, and nobody chose that")
    assert run(lake, paused_sinks="ignore").deleted_rows == 0 and held(lake) == [("away", 5)]
    lake.delivery.pause("away")
    assert run(lake).deleted_rows == 0 and held(lake) == [("away", 5)]
    done = run(lake, paused_sinks="ignore")
    assert (done.deleted_rows, [(x.sink, x.rows) for x in done.lost], held(lake)) == (10, [("away", 5)], [])
    append(lake, 11, 20)
    lake.delivery.resume("away")
    lake.tick()
    assert proved(lake) == {"away": (5, 0, 5)}


def test_a_column_says_what_is_old_and_rows_without_a_value_stay(lake: Lake, tmp_path: Path) -> None:
    add(lake, tmp_path / "out")
    append(lake, 1, 10, "TIMESTAMP'2020-01-01 00:00:00Z'")
    append(lake, 11, 15)
    append(lake, 16, 20, "current_timestamp() + INTERVAL 40 DAYS")
    append(lake, 21, 30, "TIMESTAMP'2020-01-01 00:00:00Z'")
    rule: dict[str, Any] = {"column": "at", "on_lag": "drop", "drop_after": timedelta(days=7)}
    assert run(lake, **rule).deleted_rows == 0 and held(lake) == [("out", 20)]
    done = run(lake, LATER + timedelta(days=8), **rule)
    assert (done.deleted_rows, [(x.sink, x.rows) for x in done.lost]) == (20, [("out", 20)])
    assert left(lake) == list(range(11, 21))
    lake.tick()
    assert proved(lake) == {"out": (10, 0, 20)}, "rows between them that are not old are delivered all the same"
    with pytest.raises(SchemaError):
        run(lake, column="n")


def test_young_rows_of_a_partition_that_a_passed_over_sink_has_not_met_are_delivered(
    tmp_path: Path, make_home: MakeHome
) -> None:
    with new_lake(tmp_path / "lake", make_home) as lake:
        create(lake, "events", {"n": "long", "at": "timestamptz", "k": "string"}, deliver_by=["k"])

        def into(k: str, lo: int, hi: int, at: str) -> None:
            lake.append("events", numbers(lake, lo, hi).selectExpr("n", f"TIMESTAMP'{at}' AS at", f"'{k}' AS k"))

        into("a", 1, 10, "2020-01-01")
        add(lake, tmp_path / "out")
        lake.tick()
        lake.delivery.pause("out")
        into("a", 11, 20, "2020-01-01")
        into("b", 21, 30, "2999-01-01")
        into("a", 31, 40, "2020-01-01")
        done = run(lake, column="at", paused_sinks="ignore")
        assert done.deleted_rows == 30 and [x.rows for x in done.lost] == [20]
        lake.delivery.resume("out")
        lake.tick()
        assert sorted(left(lake)) == list(range(21, 31))
        assert proved(lake) == {"out": (20, 10, 20)}


def test_what_a_rule_left_below_the_floor_is_sent_again_and_what_is_gone_is_a_loss(lake: Lake, tmp_path: Path) -> None:
    out = tmp_path / "out"
    add(lake, out)
    append(lake, 1, 10, "TIMESTAMP'2020-01-01 00:00:00Z'")
    append(lake, 11, 20)
    append(lake, 21, 30, "TIMESTAMP'2020-01-01 00:00:00Z'")
    lake.tick()
    assert run(lake, column="at").deleted_rows == 20 and floor(lake) == 30
    shutil.rmtree(out)
    append(lake, 31, 40)
    assert tick(lake, "out").did == "stopped"
    lake.delivery.recover_sink("out", resend=True)
    assert run(lake, column="at").deleted_rows == 0, "what a sink is being sent is not deleted under its hands"
    lake.tick()
    assert sorted(n for o in objects(out).values() for n in _numbers(o)) == list(range(11, 21)) + list(range(31, 41))
    with lake.ledger.read() as connection:
        (lost,) = losses.of_sink(connection, lake.delivery.get("out"))
    assert (lost.reason, lost.after, lost.until, lost.rows) == (Reason.FORGOTTEN, None, 30, None)
    (proof,) = lake.delivery.verify().sinks
    assert proof.ok and proof.rows == 20 and proof.unprovable > 0


def test_a_partition_that_is_behind_holds_rows_that_it_is_not_owed_and_is_named_for_it(
    tmp_path: Path, make_home: MakeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_lake(tmp_path / "lake", make_home) as lake:
        create(lake, "events", {"n": "long", "at": "timestamptz", "k": "string"}, deliver_by=["k"])

        def into(k: str, lo: int, hi: int, at: str) -> None:
            lake.append("events", numbers(lake, lo, hi).selectExpr("n", f"TIMESTAMP'{at}' AS at", f"'{k}' AS k"))

        add(lake, tmp_path / "out")
        into("a", 1, 10, "2999-01-01")
        with armed(monkeypatch, "deliver.before_send=fail@1"):
            assert tick(lake, "out").reason is not None
        with lake.ledger.write() as connection:
            connection.exec_driver_sql("UPDATE sink SET retry_at = 4102444800000000")
        into("b", 11, 20, "2020-01-01")
        # By its name, it would be tried at once.
        assert lake.tick().sinks[0].rows == 10, "b goes on while a waits to be tried again"
        rule: dict[str, Any] = {"column": "at", "on_lag": "drop", "drop_after": timedelta(days=7)}
        for dry_run in (True, False):
            done = run(lake, dry_run=dry_run, **rule)
            assert (done.deleted_rows, [(h.sink, h.rows) for h in done.held]) == (0, [("out", 0)])
        assert held(lake) == [("out", 0)] and [e["rows"] for e in events(lake, "maintain.retention_held")] == [0]
        done = run(lake, LATER + timedelta(days=8), **rule)
        assert (done.deleted_rows, done.lost, done.released, held(lake)) == (10, (), ("out",), [])
        assert tick(lake, "out").rows == 10
        assert sorted(left(lake)) == list(range(1, 11)) and proved(lake) == {"out": (20, 10, 0)}


def test_a_commit_that_lands_while_rows_are_looked_at_is_no_reason_to_refuse(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(lake, "others", {"n": "long"})
    append(lake, 1, 10)
    lake.append("others", numbers(lake, 1, 10))
    append(lake, 11, 20)
    monkeypatch.setattr(count_rows, "RANGES_MAX", 1)
    count = foreign_rows.count
    commits: list[str] = []

    def meddled(*arguments: Any) -> Any:
        if len(commits) < 2:
            commits.append("a batch")
            append(lake, 21, 25)
            with lake.ledger.write() as connection:
                datasets.forget_counts(connection)
        return count(*arguments)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(foreign_rows, "count", meddled)
        assert run(lake).deleted_rows == 20 and len(commits) == 2
    append(lake, 31, 40)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(foreign_rows, "count", lambda *_: None)
        with pytest.raises(RefusedError, match="may have foreign rows"):
            run(lake)


def test_a_published_row_above_the_seal_is_never_deleted_however_old_it_is(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that lives has taken 11 to 20; what came after it is in the table, and old enough."""
    old = "TIMESTAMP'2020-01-01 00:00:00Z'"
    append(lake, 1, 10, old)
    wanted = blocks.NewBlock(lake.dataset("events").id, 10, "under way", None)
    writer, _ = blocks.reserve(lake.ledger, lake.witness, wanted, lease_seconds=600)
    assert isinstance(writer, Reserved)
    append(lake, 21, 30, old)
    assert in_main(lake, "events") == [(n, n) for n in (*range(1, 11), *range(21, 31))]
    for rule in ({}, {"column": "at"}):
        planned = run(lake, dry_run=True, **rule)
        assert (planned.sealed, planned.due_up_to, planned.deleted_rows) == (10, 10, 10)
    assert (run(lake).deleted_rows, left(lake), floor(lake)) == (10, list(range(21, 31)), 10)
    assert (run(lake, column="at").deleted_rows, left(lake)) == (0, list(range(21, 31)))
    assert blocks.abandon(lake.ledger, lake.witness, writer, "its writer gave it up")
    with armed(monkeypatch, "stage.after_mark=fail"), pytest.raises(FailpointError):
        append(lake, 31, 40)
    assert (run(lake).deleted_rows, left(lake)) == (10, []), "the seal has come as far"
    lake.recover()
    assert left(lake) == list(range(31, 41)), "what was staged is published, and young to nobody but the clock"


def test_a_condition_that_fails_on_a_row_holds_all_rows_and_a_rule_that_drops_counts_them_all(
    lake: Lake, tmp_path: Path
) -> None:
    """Nobody can tell which of them the sink would get, so none of them goes uncounted."""
    create(lake, "words", {"n": "long", "text": "string"})

    def into(lo: int, hi: int, text: str) -> None:
        lake.append("words", numbers(lake, lo, hi).selectExpr("n", f"{text} AS text"))

    def retained(later: timedelta, **rule: Any) -> Retained:
        context, now = lake.maintenance.context, datetime.now(UTC) + later
        return retain(
            context, lake.dataset("words"), RetainSettings(older_than=OLD, **rule), now=now, accept_clock=True
        )

    lake.delivery.add("out", "words", "files", {"path": str(tmp_path / "out"), "where": "CAST(text AS INT) > 5"})
    into(1, 10, "CAST(n AS STRING)")
    lake.tick()
    into(11, 20, "'seven'")
    rule: dict[str, Any] = {"on_lag": "drop", "drop_after": timedelta(days=7)}
    for _ in range(2):
        done = retained(LATER, **rule)
        assert [(h.sink, h.rows) for h in done.held] == [("out", 10)]
    done = retained(LATER + timedelta(days=8), **rule)
    assert (done.deleted_rows, [(x.sink, x.rows) for x in done.lost], done.held) == (10, [("out", 10)], ())
    into(21, 30, "CAST(n AS STRING)")
    lake.tick()
    assert proved(lake) == {"out": (15, 10, 10)}


def test_a_restored_ledger_takes_the_floor_from_the_table_and_says_what_it_cannot_know(
    lake: Lake, tmp_path: Path
) -> None:
    add(lake, tmp_path / "got")
    add(lake, tmp_path / "passed")
    append(lake, 1, 20)
    assert lake.ledger.path is not None
    lake.ledger.backup(tmp_path / "copy.db")
    tick(lake, "got")
    lake.delivery.pause("passed")
    assert run(lake, paused_sinks="ignore").deleted_rows == 20
    lake.ledger.close()
    shutil.copy(tmp_path / "copy.db", lake.ledger.path)
    lake.recover()
    assert floor(lake) == 20
    assert events(lake, "ledger.resynced")[-1]["sinks_below_the_floor"] == ["got", "passed"]
    lake.delivery.add("new", "events", "files", {"path": str(tmp_path / "new")})
    assert lake.delivery.get("new").start == 20
    append(lake, 21, 30)
    lake.tick()
    report = {s.name: s for s in lake.delivery.verify().sinks}
    assert {n: (s.ok, s.unprovable > 0) for n, s in report.items()} == {
        "got": (True, True), "passed": (True, True), "new": (True, False),
    }  # fmt: skip
    assert report["got"].rows == 30


def test_after_a_jump_of_the_clock_a_run_is_skipped_and_says_so(lake: Lake) -> None:
    append(lake, 1, 10)
    target, context = lake.dataset("events"), lake.maintenance.context
    now = datetime.now(UTC)
    retain(context, target, RetainSettings(older_than=OLD), now=now)
    create(lake, "others", {"n": "long"})
    lake.append("others", numbers(lake, 1, 10))
    other = lake.dataset("others")
    retain(context, other, RetainSettings(older_than=OLD), now=now)
    for jump in (timedelta(days=31), timedelta(days=-31)):
        for each in (target, other):  # what one of them saw does not make the other believe it
            with pytest.raises(Skipped, match="clock"):
                retain(context, each, RetainSettings(older_than=OLD), now=now + jump)
        now += jump
        if jump > timedelta():
            assert left(lake) == list(range(1, 11))
    assert retain(context, target, RetainSettings(older_than=OLD), now=now).deleted_rows == 0
    assert [e["accepted"] for e in events(lake, "maintain.clock_jumped")] == [False] * 4
    assert len(in_main(lake, "others")) == 10


def test_compaction_and_expiry_of_everything_else_leave_a_retained_table_readable(lake: Lake, tmp_path: Path) -> None:
    add(lake, tmp_path / "out")
    append(lake, 1, 10)
    lake.tick()
    run(lake)
    sql(lake, "CALL lake.system.rewrite_manifests('default.events')")
    sql(
        lake,
        "CALL lake.system.expire_snapshots(table => 'default.events', retain_last => 1, "
        "older_than => TIMESTAMP '2100-01-01')",
    )
    append(lake, 11, 20)
    lake.tick()
    assert proved(lake) == {"out": (20, 10, 0)}


def test_a_run_that_would_take_a_young_row_with_it_is_refused_before_its_commit(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = numbers(lake, 1, 20, partitions=1)
    lake.append("events", frame.selectExpr("n", "IF(n <= 10, timestamp '2020-01-01', timestamp '2999-01-01') AS at"))
    before, main, write = left(lake), lake.tables().view("default.events").main, row_delete.write
    with monkeypatch.context() as patched:
        patched.setattr(row_delete, "write", lambda tables, group, df: write(tables, group, df.where("n <> 19")))
        with pytest.raises(FailedError, match="10 rows were to be deleted"):
            run(lake, timedelta(0), column="at")
    assert left(lake) == before and lake.tables().view("default.events").main == main
    assert run(lake, timedelta(0), column="at").deleted_rows == 10 and left(lake) == list(range(11, 21))


def test_each_of_them_tells_how_far_it_is(lake: Lake, tmp_path: Path) -> None:
    add(lake, tmp_path / "out")
    for lo in range(1, 60, 10):
        append(lake, lo, lo + 9)
    lake.tick()
    told: dict[str, set[str]] = {"compact": set(), "retain": set(), "expire": set()}
    care = lake.maintenance
    care.compact("events", progress=lambda step, *_: told["compact"].add(step))
    care.retain(
        "events", older_than=timedelta(0), accept_clock=True, progress=lambda step, *_: told["retain"].add(step)
    )
    care.expire("events", older_than=timedelta(0), progress=lambda step, *_: told["expire"].add(step))
    assert all(told.values()), told
    assert "deleting rows" in told["retain"] and left(lake) == []


def test_a_place_that_is_delivered_to_again_goes_on_and_what_went_meanwhile_is_said(lake: Lake, tmp_path: Path) -> None:
    add(lake, tmp_path / "out")
    append(lake, 1, 20)
    lake.tick()
    lake.delivery.remove("out")
    append(lake, 21, 40)
    assert run(lake).deleted_rows == 40, "a sink that was removed holds nothing"
    append(lake, 41, 50)
    add(lake, tmp_path / "out")
    lake.tick()
    (again,) = lake.delivery.verify().sinks
    assert again.ok and [f.range for f in again.findings if f.kind is Fault.UNPROVABLE and f.range] != []
    assert sorted(n for o in objects(tmp_path / "out").values() for n in _numbers(o)) == [*range(1, 21), *range(41, 51)]


def _numbers(path: Path) -> list[int]:
    import pyarrow.parquet as pq

    return pq.ParquetFile(path).read(columns=["n"])["n"].to_pylist()


@pytest.mark.parametrize("point", ["floor.before_witness", "floor.after_witness", "retain.after_floor"])
def test_a_run_that_died_is_gone_on_with(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    add(lake, tmp_path / "out")
    append(lake, 1, 20)
    lake.tick()
    with armed(monkeypatch, f"{point}=fail"), pytest.raises(FailpointError):
        run(lake)
    assert left(lake) == list(range(1, 21)), "the floor comes first"
    add(lake, tmp_path / "new")
    assert lake.delivery.get("new").start == (20 if point == "retain.after_floor" else None)
    lake.tick()
    assert run(lake).deleted_rows == 20 and left(lake) == []
    append(lake, 21, 30)
    lake.tick()
    report = lake.delivery.verify()
    assert [f.detail for s in report.sinks for f in s.findings] == []
