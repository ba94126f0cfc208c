"""A person asks to be forgotten: rows go wherever the lake has them, and whoever else has them is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from strandline.core.errors import FailedError, StorageError, TableUnfit, UsageError
from strandline.core.failpoints import FailpointError
from strandline.core.retry import RetryPolicy
from strandline.core.types import Seq, SeqRange
from strandline.deliver import sink_kinds
from strandline.iceberg.spark import floor as table_floor
from strandline.iceberg.spark import row_delete
from strandline.ledger import audit
from strandline.ledger.deliver import losses, quarantine, sinks
from strandline.ledger.deliver.losses import Reason
from strandline.maintain import context as maintain_context
from strandline.maintain.purge.plan import MEANWHILE, SENT_AGAIN, UNDER_WAY, PurgeResult
from strandline.maintain.purge.sinks import SinkSearch
from strandline.receive.drain import drain
from tests.spark.bodies import Sender, files
from tests.spark.flaky import REFUSES
from tests.spark.lakes import counter, create, in_main, new_lake, numbers, sql
from tests.spark.sinks import armed, tick

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from strandline.lake import Lake
    from tests.conftest import MakeHome

ALICE = "who = 'alice'"


@pytest.fixture
def lake(tmp_path: Path, make_home: MakeHome) -> Iterator[Lake]:
    with new_lake(tmp_path / "lake", make_home) as lake:
        create(lake, "events", {"n": "long", "who": "string"})
        yield lake


def append(lake: Lake, lo: int, hi: int) -> None:
    """Every fifth is Alice's."""
    who = "CASE WHEN n % 5 = 0 THEN 'alice' ELSE 'bob' END AS who"
    lake.append("events", numbers(lake, lo, hi).selectExpr("n", who))


def purge(lake: Lake, where: str = ALICE, **options: Any) -> PurgeResult:
    return lake.maintenance.purge("events", where, **options).result


def left(lake: Lake) -> list[int]:
    return [n for _, n in in_main(lake, "events")]


def others(lo: int, hi: int) -> list[int]:
    return [n for n in range(lo, hi + 1) if n % 5]


def data_files_hold(lake: Lake, text: bytes) -> list[Path]:
    folder = lake.config.warehouse_folder
    assert folder is not None
    return [p for p in folder.rglob("*.parquet") if text in p.read_bytes()]


def items(lake: Lake) -> list[tuple[int, list[list[int]]]]:
    """The sequence number of each purge, and where it deleted rows: what followers learn of it."""
    with lake.ledger.read() as connection:
        found = connection.exec_driver_sql("SELECT lo, ranges FROM block WHERE item = 'purge' ORDER BY lo").all()
    return [(lo, json.loads(ranges)) for lo, ranges in found]


def test_rows_go_everywhere_and_whoever_has_them_is_named(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("has", "lacks"):
        lake.delivery.add(name, "events", "files", {"path": str(tmp_path / name), "chunk_rows_max": "10"})
    append(lake, 1, 20)
    tick(lake, "has")
    append(lake, 21, 40)
    with armed(monkeypatch, "deliver.before_send=fail@1"):
        assert tick(lake, "lacks").reason is not None
    rejects = lake.config.home / "rejects" / "default.events" / "batch.jsonl"
    rejects.parent.mkdir(parents=True)
    raws = ['{"n": "x", "who": "alice"}', '{"n": "x", "who": "bob"}', "alice;7"]
    rejects.write_text("".join(json.dumps({"line": 1, "reason": "no", "raw": r}) + "\n" for r in raws))

    rehearsed = purge(lake, dry_run=True)
    assert (rehearsed.deleted_rows, rehearsed.rejects, rehearsed.snapshots_expired) == (8, 1, None)
    assert left(lake) == list(range(1, 41)) and len(rejects.read_text().splitlines()) == 3

    done = purge(lake)
    assert (done.deleted_rows, done.first, done.last, done.not_settled) == (8, 5, 40, 0)
    assert items(lake) == [(42, [[n, n] for n in range(5, 41, 5)])], "followers keep the rows between"
    assert lake.sealed("events") == 42 == lake.witness.read().highest
    assert [(x.sink, x.rows) for x in done.holding] == [("has", 4)]
    assert [(x.sink, x.rows, x.why) for x in done.may_hold] == [("lacks", 8, (UNDER_WAY,))]
    assert [(x.sink, x.rows) for x in done.undelivered] == [("has", 4), ("lacks", 8)]
    assert done.left == ()
    assert (done.rejects, done.rejects_not_judged) == (1, 1)
    assert [json.loads(x)["raw"] for x in rejects.read_text().splitlines()] == raws[1:]
    assert left(lake) == others(1, 40)
    assert data_files_hold(lake, b"alice") == [], "no older snapshot shows them either"
    with lake.ledger.read() as connection:
        told = audit.latest(connection)
        assert sum(x.rows or 0 for x in losses.of_sink(connection, lake.delivery.get("lacks"))) == 8
    assert not any("alice" in json.dumps(e.detail) for e in told), "who asked is not kept"

    lake.tick()
    append(lake, 41, 50)
    lake.tick()
    report = {s.name: s for s in lake.delivery.verify().sinks}
    assert {n: [f.detail for f in s.findings] for n, s in report.items()} == {"has": [], "lacks": []}
    assert (report["has"].rows, report["has"].gone, report["lacks"].rows) == (46, 4, 42)
    assert purge(lake, "who = 'carol'").deleted_rows == 0
    assert len(items(lake)) == 1, "a purge that deletes nothing is none to a follower"


def test_a_table_that_hides_deleted_rows_in_delete_files_is_written_anew(lake: Lake) -> None:
    sql(lake, "ALTER TABLE lake.default.events SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    append(lake, 1, 40)
    assert purge(lake, keep_snapshots=True).deleted_rows == 8
    assert data_files_hold(lake, b"alice") != []
    append(lake, 41, 45)
    done = purge(lake)
    assert (done.deleted_rows, done.delete_files_left) == (1, 0)
    assert data_files_hold(lake, b"alice") == [] and left(lake) == others(1, 45)


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_a_delete_that_would_take_other_rows_with_it_is_refused_before_its_commit(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    sql(lake, f"ALTER TABLE lake.default.events SET TBLPROPERTIES ('write.delete.mode' = '{mode}')")
    append(lake, 1, 20)
    sql(lake, "DELETE FROM lake.default.events WHERE n = 7")
    before, files, write = left(lake), data_files_hold(lake, b""), row_delete.write
    with monkeypatch.context() as patched:
        patched.setattr(row_delete, "write", lambda tables, group, df: write(tables, group, df.where("n <> 3")))
        with pytest.raises(FailedError, match="4 rows were to be deleted"):
            purge(lake)
    assert left(lake) == before and data_files_hold(lake, b"") == files, "nothing of it is left"
    assert purge(lake).deleted_rows == 4 and left(lake) == [n for n in before if n % 5]


def test_every_sink_that_was_ever_sent_such_rows_is_named_also_removed_and_reset_ones(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = lambda name, **options: lake.delivery.add(name, "events", "files", {"path": str(tmp_path / name)} | options)  # noqa: E731
    add("removed")
    add("reset")
    add("picky", where="n <= 5")
    append(lake, 1, 10)
    lake.tick()
    lake.delivery.remove("removed")
    lake.delivery.reset("reset")
    lake.delivery.update("picky", {"where": "n > 5"})
    append(lake, 11, 20)
    assert tick(lake, "picky").reason is None
    stray = tmp_path / "stray.jsonl"
    stray.write_text('{"n": 21, "who": "bob"}\n{"n": "x", "who": "alice"}\n{"n": "x", "who": "bob\u2028alice"}\n')
    lake.ingest("events", [stray], rejects_folder=tmp_path / "aside")
    [rejected] = (tmp_path / "aside" / "default.events").glob("*.jsonl")
    busy = sinks.leases.take(lake.ledger, lake.delivery.get("picky").id, seconds=600)
    assert busy is not None, "somebody delivers, and goes on"
    monkeypatch.setattr(maintain_context, "_WAIT_FOR_DELIVERER", RetryPolicy(0.1, 0.1, seconds_max=0.5))
    add("erratic")
    with lake.ledger.write() as connection:  # an older version accepted such conditions
        erratic = sinks.get(connection, "erratic")
        options = {**erratic.options, "where": "rand() < 0.5"}
        sinks.set_options(connection, erratic.id, options, erratic.destination)

    rehearsed = purge(lake, dry_run=True)
    done = purge(lake)
    assert replace(done, snapshots_expired=None) == rehearsed
    assert [(x.sink, x.rows, x.generation, x.older, x.removed) for x in done.holding] == [
        ("picky", 3, 1, False, False),
        ("removed", 2, 1, False, True),
        ("reset", 2, 1, True, False),
    ], "of picky: 5 by its first condition, 15 and 20 by its second"
    assert done.may_hold == () and done.left == ()
    assert [(x.sink, x.rows, x.generation) for x in done.undelivered] == [("erratic", 4, 1), ("reset", 4, 2)]
    lake.delivery.remove("erratic")
    assert (done.rejects, done.rejects_not_judged, done.rejects_elsewhere) == (1, 0, ())
    assert [json.loads(line)["raw"] for line in rejected.read_text().split("\n") if line] == [
        '{"n": "x", "who": "bob\u2028alice"}'
    ]
    with lake.ledger.write() as connection:
        assert not sinks.leases.holds(connection, busy), "what it still records counts for nothing"
    lake.tick()
    assert lake.delivery.verify().ok


def test_a_sink_that_is_added_meanwhile_is_counted_or_named(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(lake, 1, 10)
    look, delete = SinkSearch.find_exposed, table_floor.delete

    def add_first(name: str, then: Any) -> Any:
        def patched(*args: Any, **more: Any) -> Any:
            if all(s.name != name for s in lake.delivery.list_sinks()):
                lake.delivery.add(name, "events", "files", {"path": str(tmp_path / name)})
            return then(*args, **more)

        return patched

    def and_dies(*args: Any, **more: Any) -> None:
        delete(*args, **more)
        raise FailpointError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(table_floor, "delete", add_first("before_a_run_died", and_dies))
        with pytest.raises(FailpointError):
            purge(lake, "n = 7")
    monkeypatch.setattr(SinkSearch, "find_exposed", add_first("before_it_is_recorded", look))
    monkeypatch.setattr(table_floor, "delete", add_first("while_rows_go", delete))
    monkeypatch.setattr(maintain_context.sinks.leases, "release", _storage_fails)
    monkeypatch.setattr(maintain_context, "_WAIT_FOR_DELIVERER", RetryPolicy(0.1, 0.1, seconds_max=0.1))
    done = purge(lake)
    assert [(x.sink, x.rows) for x in done.undelivered] == [("before_a_run_died", 2), ("before_it_is_recorded", 2)]
    assert [(x.sink, x.rows, x.why) for x in done.may_hold] == [("while_rows_go", None, (MEANWHILE,))]
    assert done.named_before == ("before_a_run_died",), "the run that did not end could not look for it"
    with lake.ledger.read() as connection:
        [loss] = losses.of_sink(connection, lake.delivery.get("while_rows_go"))
        before = losses.of_sink(connection, lake.delivery.get("before_a_run_died"))
        late = [e.detail["late"] for e in audit.latest(connection) if e.event == "maintain.purge_settled"]
    assert (loss.reason, loss.rows, loss.until) == (Reason.FORGOTTEN, None, 10)
    assert [(x.reason, x.rows, x.until) for x in before] == [(Reason.FORGOTTEN, None, 7), (Reason.PURGED, 2, 10)]
    assert late == [["while_rows_go"], ["before_a_run_died"]], "for the next one, if this one dies, too"
    assert purge(lake).named_before == (), "it was looked for once"
    monkeypatch.undo()
    with lake.ledger.write() as connection:
        sinks.forget_leases(connection)
    lake.tick()
    assert lake.delivery.verify().ok


def test_a_run_that_died_is_started_again_and_whom_it_had_found_is_named(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.delivery.add("out", "events", "files", {"path": str(tmp_path / "out")})
    append(lake, 1, 10)
    lake.tick()
    with armed(monkeypatch, "purge.after_table=fail"), pytest.raises(FailpointError):
        purge(lake)
    assert data_files_hold(lake, b"alice") != [] and [ranges for _, ranges in items(lake)] == [[[5, 5], [10, 10]]]
    with monkeypatch.context() as broken:
        broken.setattr("strandline.maintain.purge.run.expire", _storage_fails)
        done = purge(lake)
    assert done.left == ("old snapshots: the disk is away",) and done.snapshots_expired is None
    assert done.named_before == ("out",)
    with monkeypatch.context() as broken:
        broken.setattr("strandline.maintain.purge.run.expire", lambda *_: sql(lake, "SELECT CAST('alice' AS int)"))
        [said] = purge(lake).left
    assert said.startswith("old snapshots: ") and "message is not stored" in said and "alice" not in said
    done = purge(lake)
    assert (done.deleted_rows, done.left, done.named_before) == (0, (), ())
    assert data_files_hold(lake, b"alice") == [] and len(items(lake)) == 1


def test_a_run_that_died_before_it_had_its_number_gets_one_by_the_next(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(lake, 1, 10)
    with armed(monkeypatch, "purge.before_witness=fail"), pytest.raises(FailpointError):
        purge(lake)
    assert left(lake) == others(1, 10) and items(lake) == []
    append(lake, 11, 20)
    assert purge(lake).deleted_rows == 2
    (first, dead), (second, own) = items(lake)
    assert dead == [[5, 5], [10, 10]] and own != dead and first < second == lake.sealed("events")


def _storage_fails(*_: Any) -> None:
    raise StorageError("the disk is away")


def test_a_restored_ledger_learns_from_the_table_what_was_purged(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.delivery.add("out", "events", "files", {"path": str(tmp_path / "out")})
    append(lake, 1, 10)
    lake.tick()
    append(lake, 11, 20)
    assert lake.ledger.path is not None
    lake.ledger.backup(tmp_path / "copy.db")
    assert purge(lake).deleted_rows == 4
    lake.ledger.close()
    shutil.copy(tmp_path / "copy.db", lake.ledger.path)
    lake.recover()
    with lake.ledger.read() as connection:
        assert losses.purged(connection, lake.dataset("events").id) == [SeqRange(Seq(5), Seq(20))]
        [loss] = losses.of_sink(connection, lake.delivery.get("out"))
        opened = next(e.detail for e in audit.latest(connection) if e.event == "ledger.resynced")
    assert (loss.reason, loss.after, loss.until) == (Reason.FORGOTTEN, 10, 20)
    assert opened["sinks_below_a_purge"] == ["out"]
    [(again, ranges)] = items(lake)
    assert ranges == [[n, n] for n in (5, 10, 15, 20)], "the table names the rows"
    assert again == lake.witness.read().highest, "followers learn of it, whatever they knew"
    lake.ledger.backup(tmp_path / "later.db")
    monkeypatch.setattr(table_floor, "PURGES_RECORDED_MAX", 1)
    assert purge(lake, "n = 13").deleted_rows == 1
    told = [(p.rows, p.count) for p in lake.maintenance.context.tables.settled.view("default.events").purged]
    assert told == [(SeqRange(Seq(5), Seq(20)), 5)], "it lies between those that were told before"
    lake.ledger.close()
    shutil.copy(tmp_path / "later.db", lake.ledger.path)
    lake.recover()
    with lake.ledger.read() as connection:
        found = losses.of_sink(connection, lake.delivery.get("out"))
    assert [(x.reason, x.after, x.until) for x in found] == [(Reason.FORGOTTEN, 10, 20)] * 2
    append(lake, 21, 30)
    lake.tick()
    assert lake.delivery.verify().ok


def foreign(lake: Lake, *numbers: int) -> None:
    """Rows of Alice's that another engine wrote, with numbers of its own."""
    rows = ", ".join(f"({n}, 1000, 'alice')" for n in numbers)
    sql(lake, f"INSERT INTO lake.default.events (_ingest_seq, n, who) VALUES {rows}")


def test_rows_that_are_not_ours_go_too_and_are_counted_apart_whatever_their_numbers(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(lake, "others", {"n": "long"})
    lake.delivery.add("out", "events", "files", {"path": str(tmp_path / "out")})
    append(lake, 1, 5)
    lake.append("others", numbers(lake, 1, 5))  # takes 6..10
    append(lake, 6, 10)
    lake.tick()
    near, far = counter(lake) + 1_000, 10**15
    foreign(lake, 0, -3, 7, 7, near, far)
    monkeypatch.setattr("strandline.maintain.count_rows.RANGES_MAX", 0)
    rehearsed = purge(lake, dry_run=True)
    done = purge(lake)
    assert (done.deleted_rows, done.foreign, done.not_settled, done.left) == (8, 6, 0, ())
    assert (rehearsed.deleted_rows, rehearsed.foreign) == (8, 6)
    assert [(x.sink, x.rows) for x in done.holding] == [("out", 2)], "only ours were ever sent"
    assert left(lake) == others(1, 10)
    assert near <= counter(lake) < far, "a number that was seen on a foreign row is never given to one of ours"
    append(lake, 11, 15)
    lake.tick()
    assert left(lake) == [*others(1, 10), *range(11, 16)]


def test_rows_that_others_change_or_number_between_the_count_and_the_delete_are_left_and_told(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql(lake, "CREATE TABLE lake.default.people (n BIGINT, who STRING) USING iceberg")
    who = "CASE WHEN id % 5 = 0 THEN 'alice' ELSE 'bob' END"
    sql(lake, f"INSERT INTO lake.default.people SELECT id, {who} FROM range(1, 13, 1, 1)")
    lake.adopt_dataset("people")
    sql(lake, "INSERT INTO lake.default.people (n, who) VALUES (20, 'alice')")
    delete = table_floor.delete

    def changed_first(*args: Any, **more: Any) -> None:
        sql(lake, "UPDATE lake.default.people SET who = 'alice' WHERE n IN (1, 7, 12)")
        lake.adopt_dataset("people")
        delete(*args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(table_floor, "delete", changed_first)
        done = lake.maintenance.purge("people", ALICE, keep_snapshots=True).result
    assert (done.first, done.last, done.without_number) == (5, 10, 1)
    [said] = done.left
    assert said.startswith("4 rows that fit came")
    kept = [n for _, n in in_main(lake, "people")]
    assert kept == [*others(1, 12), 20], "nothing but what the table was told, which followers delete"
    done = lake.maintenance.purge("people", ALICE).result
    assert (done.deleted_rows, done.left) == (4, ())
    assert [n for _, n in in_main(lake, "people")] == [n for n in others(2, 11) if n != 7]


def test_a_snapshot_that_a_tag_or_a_rule_keeps_and_that_shows_the_rows_is_named(lake: Lake) -> None:
    append(lake, 1, 4)
    sql(lake, "ALTER TABLE lake.default.events CREATE TAG harmless")
    append(lake, 5, 10)
    sql(lake, "ALTER TABLE lake.default.events CREATE TAG audited")

    def keep(snapshots: int) -> None:
        table = lake.maintenance.context.tables.settled.load("default.events")
        table.manageSnapshots().setMinSnapshotsToKeep("main", snapshots).commit()

    keep(9)
    done = purge(lake)
    assert (done.deleted_rows, done.refs_kept) == (2, 1)
    assert len(done.left) == 2 and "tag audited" in done.left[0] and "main" in done.left[1]
    sql(lake, "ALTER TABLE lake.default.events DROP TAG audited")
    keep(1)
    done = purge(lake)
    assert (done.left, done.refs_kept, data_files_hold(lake, b"alice")) == ((), 0, [])


def test_what_is_no_condition_or_would_stop_it_halfway_deletes_nothing_and_says_what_to_do(lake: Lake) -> None:
    append(lake, 1, 5)
    bad = ["", "nobody = 1", "n + 1", "n = 1; DROP TABLE lake.default.events", "n = 1) OR (1 = 1", "count(*) > 0"]
    unstable = ["rand() < 0.5", "timestamp_seconds(n) < now()", "n IN (SELECT id FROM range(3))", "_file LIKE '%a%'"]
    nowhere = "n IN (SELECT id FROM lake.default.nowhere)"
    with pytest.raises(UsageError, match="reads other tables"):
        purge(lake, nowhere)  # whether they exist is not for everybody who may purge rows of this one
    for where in (*bad, *unstable, "CAST(who AS int) = 1"):
        with pytest.raises(UsageError) as refused:
            purge(lake, where)
        assert refused.value.hint
        assert left(lake) == list(range(1, 6))
    sql(lake, "ALTER TABLE lake.default.events SET TBLPROPERTIES ('gc.enabled' = 'false')")
    with pytest.raises(TableUnfit):
        purge(lake)
    assert left(lake) == list(range(1, 6))
    assert purge(lake, keep_snapshots=True).deleted_rows == 1


def test_a_condition_that_ends_in_a_comment_deletes_no_more_than_it_says(lake: Lake) -> None:
    append(lake, 1, 10)
    assert purge(lake, "n = 3 -- ").deleted_rows == 1
    assert left(lake) == [1, 2, *range(4, 11)]


def test_it_reaches_rows_that_wait_at_the_receiver_and_does_not_wait_for_those_that_come(lake: Lake) -> None:
    sender = Sender(lake, "events")
    alice = pa.table({"n": pa.array([11, 15], pa.int64()), "who": ["bob", "alice"]})
    sender.bring(alice)
    context = lake.receiver.context

    def append_and_receive(name: str, df: DataFrame, batch_id: str, check: Callable[[], None]) -> Any:
        done = context.ingestion.append_received(name, df, batch_id, check)
        sender.bring(alice)
        return done

    ingestion = SimpleNamespace(catch_up=context.ingestion.catch_up, append_received=append_and_receive)
    assert drain(replace(context, ingestion=ingestion), lake.dataset("events")) == 1
    assert (left(lake), len(files(lake))) == ([11, 15], 1)
    done = purge(lake)
    assert (done.bodies_ingested, done.deleted_rows, done.left) == (1, 2, ())
    assert left(lake) == [11, 11] and files(lake) == []


def test_rows_that_sinks_refused_go_by_what_they_are_whatever_became_of_the_sink(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sink_kinds._BUILT_IN, "flaky", "tests.spark.flaky:KIND")
    (tmp_path / REFUSES).write_text("bad 5 6")
    for name in ("out", "removed"):
        lake.delivery.add(name, "events", "flaky", {"path": str(tmp_path / name), "chunk_rows_max": "10"})
    append(lake, 1, 10)
    lake.tick()
    lake.delivery.reset("out")
    lake.tick()
    rows = lake.delivery.quarantined()
    kept = {(q.sink, q.row.generation, int(q.row.seq)): Path(q.place) for q in rows}
    assert len(kept) == 6, "the same number is there twice"
    lake.delivery.remove("removed")
    orphan = kept["out", 2, 5].with_name("7.arrow")
    orphan.write_bytes(kept["out", 2, 5].read_bytes())
    again = next(q.row.id for q in rows if (q.sink, q.row.generation, q.row.seq) == ("out", 2, 5))
    quarantine.start_replay(lake.ledger, again)

    done = purge(lake)
    assert (done.quarantined, done.quarantined_not_judged) == (3, 0)
    assert {key for key, path in kept.items() if path.exists()} == {
        ("out", 1, 6), ("out", 2, 6), ("removed", 1, 6), ("out", 2, 5),
    }  # fmt: skip
    assert not orphan.exists(), "a deliverer died before the ledger knew of it"
    assert [(x.sink, x.rows, x.generation) for x in done.holding] == [("out", 1, 1), ("out", 1, 2), ("removed", 1, 1)]
    assert [(x.sink, x.generation, x.rows, x.why) for x in done.may_hold] == [("out", 2, 1, (SENT_AGAIN,))]
    [unclear] = done.left
    assert "strandline sink quarantine replay out 5" in unclear

    assert quarantine.refused_again(lake.ledger, again, "still not to its taste")
    done = purge(lake)
    assert (done.deleted_rows, done.quarantined, done.left) == (0, 1, ()), "by what was kept: the table has it no more"
    assert not kept["out", 2, 5].exists() and kept["out", 2, 6].exists()
