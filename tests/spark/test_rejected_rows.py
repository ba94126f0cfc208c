"""Rows that a sink refuses for good are set aside, and everything else flows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from pyspark.sql import functions as F

from strandline.core.errors import RefusedError, UsageError
from strandline.ledger import audit
from strandline.ledger.deliver import intents, lanes, sinks
from strandline.status.documents import lake_documents
from tests.spark.flaky import REFUSES, TROUBLE
from tests.spark.lakes import create, new_lake, numbers
from tests.spark.sinks import armed, names, rows, tick

if TYPE_CHECKING:
    from strandline.lake import Lake
    from tests.conftest import MakeHome


pytestmark = pytest.mark.usefixtures("flaky_kind")


def add(lake: Lake, out: Path, **options: str) -> None:
    lake.delivery.add("out", "events", "flaky", {"path": str(out), **options})


@contextmanager
def refusing(out: Path, rule: str) -> Iterator[None]:
    """With a sink that refuses by a rule: see tests/spark/flaky.py."""
    file = out.parent / REFUSES
    file.write_text(rule)
    try:
        yield
    finally:
        file.unlink()


def offered(out: Path) -> list[str]:
    return (out.parent / "offered").read_text().split()


def delivered(out: Path) -> list[int]:
    return sorted(v for _, v in rows(out))


def without(hi: int, *bad: int) -> list[int]:
    return [n for n in range(1, hi + 1) if n not in bad]


def set_aside(lake: Lake, **options: Any) -> dict[int, str]:
    return {int(q.row.seq): q.row.state.value for q in lake.delivery.quarantined("out", **options)}


def mark(lake: Lake) -> int | None:
    with lake.ledger.read() as connection:
        [lane] = lanes.unchecked(connection, sinks.get(connection, "out"))
    return lane.mark


def verdict(lake: Lake) -> Any:
    [found] = lake.delivery.verify("out").sinks
    return found


def test_the_bad_rows_stand_alone_in_quarantine_and_the_rest_flows(lake: Lake, out: Path) -> None:
    add(lake, out, chunk_rows_max="32")
    lake.append("events", numbers(lake, 1, 100))
    with refusing(out, "bad 17 60 61"):
        report = tick(lake, "out")
    assert (report.did, report.rows) == ("delivered", 97)
    assert delivered(out) == without(100, 17, 60, 61)
    assert mark(lake) == 100
    found = lake.delivery.quarantined("out", contents_max=10)
    assert [(int(q.row.seq), q.content) for q in found] == [(n, {"_ingest_seq": n, "n": n}) for n in (17, 60, 61)]
    assert all(q.row.reason == "not to its taste (400)" and Path(q.place).is_file() for q in found)
    [status] = [s for s in lake.status().sinks if s.name == "out"]
    assert lake_documents.sink_status(status)["quarantined"] == 3
    lake.append("events", numbers(lake, 101, 110))
    assert tick(lake, "out").rows == 10
    proof = verdict(lake)
    assert proof.ok and proof.quarantined == 3, proof.findings


def test_a_chunk_that_is_only_too_large_is_split_and_nothing_is_set_aside(lake: Lake, out: Path) -> None:
    add(lake, out)
    lake.append("events", numbers(lake, 1, 100))
    with refusing(out, "large 30"):
        assert tick(lake, "out").rows == 100
    assert names(out) == ["all/1-25", "all/26-50", "all/51-75", "all/76-100"]
    assert set_aside(lake) == {} and verdict(lake).ok


def test_a_sink_that_refuses_everything_stops_and_nothing_is_split_or_set_aside(lake: Lake, out: Path) -> None:
    add(lake, out, chunk_rows_max="10", quarantine_rows_max="8")
    lake.append("events", numbers(lake, 1, 100))
    with refusing(out, "all"):
        report = tick(lake, "out")
    assert report.did == "stopped" and "not to its taste" in (report.reason or "") and report.hint
    assert len(offered(out)) <= 12 and set_aside(lake) == {}
    with lake.ledger.read() as connection:
        [intent] = intents.open_of(connection, sinks.get(connection, "out"))
    assert all(len(c.rows) > 1 for c in intent.chunks)
    lake.delivery.resume("out")
    assert tick(lake, "out").rows == 100
    assert delivered(out) == without(100)


def test_a_sink_that_refuses_everything_is_not_brought_a_lake_row_by_row(lake: Lake, out: Path) -> None:
    """Each intent stays within the bound, and none of them lands anything."""
    add(lake, out, quarantine_rows_max="3")
    with refusing(out, "all"):
        reports = []
        for n in range(1, 6):
            lake.append("events", numbers(lake, n, n))
            reports.append(tick(lake, "out").did)
    assert reports == ["delivered", "delivered", "delivered", "stopped", "stopped"]
    assert set_aside(lake) == {1: "held", 2: "held", 3: "held"}


def test_more_bad_rows_than_the_bound_stop_the_sink_before_any_of_them_is_set_aside(lake: Lake, out: Path) -> None:
    add(lake, out, quarantine_rows_max="2")
    lake.append("events", numbers(lake, 1, 64))
    with refusing(out, "bad 3 20 40"):
        assert tick(lake, "out").did == "stopped"
        assert set_aside(lake) == {}
        lake.delivery.update("out", {"quarantine_rows_max": "3"})  # for an intent that is open, too
        lake.delivery.resume("out")
        assert tick(lake, "out").did == "delivered"
    assert delivered(out) == without(64, 3, 20, 40)


def test_no_row_is_set_aside_where_the_bound_is_zero(lake: Lake, out: Path) -> None:
    add(lake, out, quarantine_rows_max="0")
    lake.append("events", numbers(lake, 1, 10))
    with refusing(out, "bad 5"):
        assert tick(lake, "out").did == "stopped"
    assert offered(out) == ["/1-10"] and set_aside(lake) == {}


def test_a_chunk_that_landed_and_was_then_refused_is_found_and_not_split(lake: Lake, out: Path) -> None:
    """The answer was lost, and a proxy refused the repeat."""
    add(lake, out)
    lake.append("events", numbers(lake, 1, 40))
    with refusing(out, "late 10"):
        assert tick(lake, "out").rows == 40
    assert names(out) == ["all/1-40"] and offered(out) == ["/1-40"]
    assert set_aside(lake) == {} and verdict(lake).ok


def test_trouble_with_one_chunk_does_not_keep_what_is_refused_from_being_dealt_with(lake: Lake, out: Path) -> None:
    add(lake, out, chunk_rows_max="16")
    lake.append("events", numbers(lake, 1, 48))
    (out.parent / TROUBLE).write_text("later 33")
    with refusing(out, "bad 7"):
        assert tick(lake, "out").did == "waiting"
    assert delivered(out) == without(32, 7) and set_aside(lake) == {7: "held"}
    assert mark(lake) is None
    (out.parent / TROUBLE).unlink()
    lake.append("events", numbers(lake, 49, 50))
    assert tick(lake, "out").did == "delivered"
    assert delivered(out) == without(50, 7)
    assert verdict(lake).ok


def test_rows_that_a_filter_leaves_out_are_counted_around_a_bad_one(lake: Lake, out: Path) -> None:
    add(lake, out, where="n % 5 = 0")
    lake.append("events", numbers(lake, 1, 50))
    with refusing(out, "bad 25"):
        report = tick(lake, "out")
    assert (report.rows, report.withheld) == (9, 40)
    assert delivered(out) == [n for n in range(5, 51, 5) if n != 25]
    assert set_aside(lake) == {25: "held"}
    proof = verdict(lake)
    assert proof.ok and (proof.withheld, proof.quarantined) == (40, 1), proof.findings


def test_columns_that_were_chosen_without_the_number_are_split_by_it_all_the_same(
    tmp_path: Path, make_home: MakeHome, out: Path
) -> None:
    with new_lake(tmp_path / "lake", make_home) as lake:
        create(lake, "events", {"n": "long", "text": "string"})
        add(lake, out, columns="n,text", format="jsonl")
        lake.append("events", numbers(lake, 1, 20).withColumn("text", F.concat(F.lit("t"), F.col("n"))))
        with refusing(out, "bad 9"):
            assert tick(lake, "out").rows == 19
        [found] = lake.delivery.quarantined("out", contents_max=1)
        assert (int(found.row.seq), found.content) == (9, {"n": 9, "text": "t9"})
        told: list[tuple[int, int]] = []
        replay = lake.delivery.replay("out", on_progress=lambda *how_far: told.append(how_far))
        assert replay.rows[0].outcome == "replayed" and told == [(0, 1)]
        [replayed] = (out / "default.events" / "~replay").glob("*.jsonl")
        assert json.loads(replayed.read_text()) == {"n": 9, "text": "t9"}


def test_partitions_that_have_no_bad_row_do_not_wait_for_one_that_has(
    tmp_path: Path, make_home: MakeHome, out: Path
) -> None:
    with new_lake(tmp_path / "lake", make_home) as lake:
        create(lake, "events", {"n": "long", "k": "string"}, deliver_by=["k"])
        add(lake, out)
        lake.append("events", numbers(lake, 1, 40).withColumn("k", F.concat(F.lit("k"), F.col("n") % 2)))
        with refusing(out, "bad 8"):
            assert tick(lake, "out").rows == 39
        [found] = lake.delivery.quarantined("out")
        assert found.row.partition == "k=k0"
        assert lake.delivery.replay("out", [8]).failed is False
        assert delivered(out) == without(40)
        proof = verdict(lake)
        assert proof.ok and proof.replayed == 1, proof.findings


def test_a_replay_delivers_the_row_once_and_without_spark(lake: Lake, out: Path) -> None:
    add(lake, out)
    lake.append("events", numbers(lake, 1, 20))
    with refusing(out, "bad 4 11"):
        tick(lake, "out")
        report = lake.delivery.replay("out", [11])
        assert [(r.outcome, r.why) for r in report.rows] == [("refused", "not to its taste (400)")]
    assert set_aside(lake) == {4: "held", 11: "held"}
    place = Path(lake.delivery.quarantined("out")[0].place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(lake), "work", property(lambda _: pytest.fail("Spark was asked for")))
        assert not lake.delivery.replay("out", [4]).failed
    assert delivered(out) == without(20, 11) and not place.exists()
    assert set_aside(lake, settled_too=True) == {4: "replayed", 11: "held"}
    with pytest.raises(UsageError, match="no row 4"):
        lake.delivery.replay("out", [4])
    assert lake.delivery.replay("out").rows[0].outcome == "replayed"
    assert delivered(out) == without(20)
    assert [n for n in names(out) if n.startswith("~replay/")] == ["~replay/4-4", "~replay/11-11"]
    proof = verdict(lake)
    assert proof.ok and (proof.replayed, proof.quarantined) == (2, 0), proof.findings


def test_a_replay_whose_outcome_is_not_known_is_asked_for_and_not_sent_again(lake: Lake, out: Path) -> None:
    add(lake, out)
    lake.append("events", numbers(lake, 1, 8))
    with refusing(out, "bad 3"):
        tick(lake, "out")
    (out.parent / TROUBLE).write_text("lost 1")
    assert lake.delivery.replay("out").rows[0].outcome == "unknown"
    assert set_aside(lake) == {3: "replaying"}
    with pytest.raises(RefusedError, match="whether it landed"):
        lake.delivery.discard("out", [3])
    before = offered(out)
    (out.parent / TROUBLE).unlink()
    assert lake.delivery.replay("out").rows[0].outcome == "replayed"
    assert offered(out) == before and before.count("~replay/3-3") == 1
    assert delivered(out) == without(8)


def test_a_row_that_is_discarded_is_counted_and_its_content_is_gone(lake: Lake, out: Path) -> None:
    add(lake, out)
    lake.append("events", numbers(lake, 1, 8))
    with refusing(out, "bad 3"):
        tick(lake, "out")
    [found] = lake.delivery.quarantined("out")
    assert [int(q.seq) for q in lake.delivery.discard("out", [3])] == [3]
    assert not Path(found.place).exists() and set_aside(lake) == {}
    proof = verdict(lake)
    assert proof.ok and (proof.discarded, proof.quarantined) == (1, 0), proof.findings
    with lake.ledger.read() as connection:
        [event] = [e for e in audit.latest(connection) if e.event == "quarantine.discarded"]
    assert event.detail["numbers"] == [3]


def test_a_replay_waits_for_whoever_delivers(lake: Lake, out: Path) -> None:
    add(lake, out)
    lake.append("events", numbers(lake, 1, 8))
    with refusing(out, "bad 3"):
        tick(lake, "out")
    lease = sinks.leases.take(lake.ledger, lake.delivery.get("out").id, seconds=60)
    assert lease is not None
    with pytest.raises(RefusedError, match="right now") as refused:
        lake.delivery.replay("out")
    assert refused.value.hint and set_aside(lake) == {3: "held"}


def test_verify_finds_a_replayed_row_that_is_gone_from_the_sink(lake: Lake, out: Path) -> None:
    add(lake, out)
    lake.append("events", numbers(lake, 1, 8))
    with refusing(out, "bad 3"):
        tick(lake, "out")
    lake.delivery.replay("out")
    [path] = (out / "default.events" / "~replay").glob("*.parquet")
    path.unlink()
    proof = verdict(lake)
    assert not proof.ok and [(f.kind, str(f.range)) for f in proof.findings] == [("missing", "3..3")]


def test_verify_does_not_take_a_hole_for_quarantine(lake: Lake, out: Path) -> None:
    add(lake, out)
    lake.append("events", numbers(lake, 1, 8))
    with refusing(out, "bad 3"):
        tick(lake, "out")
    with lake.ledger.write() as connection:  # as nothing of ours can: the ledger itself refuses it
        guards = connection.exec_driver_sql(
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'quarantined'"
        )
        for guard in guards.scalars().all():
            connection.exec_driver_sql(f"DROP TRIGGER {guard}")
        connection.exec_driver_sql("DELETE FROM quarantined")
    proof = verdict(lake)
    assert [(f.kind, str(f.range)) for f in proof.findings] == [("unexplained", "3..3")]


def test_a_sink_that_is_planned_anew_does_not_send_what_was_set_aside_or_replayed(lake: Lake, out: Path) -> None:
    """The intent was open when its row was replayed; then `sink recover` takes the intent back."""
    add(lake, out, chunk_rows_max="8")
    lake.append("events", numbers(lake, 1, 24))
    (out.parent / TROUBLE).write_text("later 17")
    with refusing(out, "bad 3 5 6"):
        assert tick(lake, "out").did == "waiting"
    (out.parent / TROUBLE).unlink()
    assert not lake.delivery.replay("out", [3]).failed
    lake.delivery.discard("out", [6])
    lake.delivery.recover_sink("out")
    assert tick(lake, "out").did == "delivered"
    assert delivered(out) == without(24, 5, 6)
    assert set_aside(lake, settled_too=True) == {3: "replayed", 5: "held", 6: "discarded"}
    assert verdict(lake).ok


def test_a_row_of_an_older_generation_is_replayed_only_where_the_present_one_begins_behind_it(
    lake: Lake, out: Path
) -> None:
    add(lake, out)
    lake.append("events", numbers(lake, 1, 8))
    token = lake.read_since("events").continuation
    lake.append("events", numbers(lake, 9, 16))
    with refusing(out, "bad 3 12"):
        tick(lake, "out")
    lake.delivery.reset("out", to=token)
    for _ in range(2):  # before and after the present generation has delivered it
        with pytest.raises(RefusedError, match="older generation"):
            lake.delivery.replay("out", [12])
        tick(lake, "out")
    assert [(int(r.number), r.outcome) for r in lake.delivery.replay("out").rows] == [(3, "replayed")]
    assert delivered(out / "generation=2") == [3, *range(9, 17)]
    assert [int(q.seq) for q in lake.delivery.discard("out", [12])] == [12]


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


def table(lake: Lake, url: str, **options: str) -> None:
    lake.delivery.add("out", "events", "postgres", {"dsn": url, "table": "events", "create": "true", **options})


def ask(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(statement.encode())
        return found.fetchall() if found.description else []


def in_table(url: str) -> list[int]:
    return [n for (n,) in ask(url, "SELECT n FROM events ORDER BY n")]


def test_a_text_that_postgres_cannot_hold_is_set_aside(
    tmp_path: Path, make_home: MakeHome, postgres_database: str
) -> None:
    with new_lake(tmp_path / "lake", make_home) as lake:
        create(lake, "events", {"n": "long", "text": "string"})
        table(lake, postgres_database)
        bad = F.when(F.col("n").isin(13, 30), F.lit("a\0b")).otherwise("fine")
        lake.append("events", numbers(lake, 1, 50).withColumn("text", bad))
        report = tick(lake, "out")
        assert (report.did, report.rows) == ("delivered", 48), report
        assert in_table(postgres_database) == without(50, 13, 30)
        assert set_aside(lake) == {13: "held", 30: "held"}
        assert verdict(lake).ok


_RAISES = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no negative amounts'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON events FOR EACH ROW WHEN (NEW.n % 100 = 7) EXECUTE FUNCTION refuse()
"""
"""RAISE EXCEPTION gives P0001, which says nothing of whose fault it is."""


@pytest.mark.parametrize(
    ("total", "bad", "refuse", "accept"),
    [
        (20, [7], "ALTER TABLE events ADD CONSTRAINT odd CHECK (n <> 7)", "ALTER TABLE events DROP CONSTRAINT odd"),
        (2000, [*range(7, 2000, 100)], _RAISES, "DROP TRIGGER refuse ON events"),
    ],
    ids=["constraint", "trigger"],
)
def test_rows_that_a_table_refuses_are_set_aside_and_replayed_once_it_takes_them(
    lake: Lake, postgres_database: str, total: int, bad: list[int], refuse: str, accept: str
) -> None:
    url = postgres_database
    table(lake, url)
    ask(url, refuse)
    lake.append("events", numbers(lake, 1, total))
    report = tick(lake, "out")
    assert (report.did, report.rows, report.quarantined) == ("delivered", total - len(bad), len(bad)), report
    assert in_table(url) == without(total, *bad)
    assert set_aside(lake) == dict.fromkeys(bad, "held")
    assert {r.outcome for r in lake.delivery.replay("out").rows} == {"refused"}
    ask(url, accept)
    assert not lake.delivery.replay("out").failed
    assert in_table(url) == without(total)
    proof = verdict(lake)
    assert proof.ok and proof.replayed == len(bad), proof.findings
    ask(url, "DELETE FROM events WHERE n = 7")
    proof = verdict(lake)
    assert not proof.ok and "7" in str(proof.findings[0])


_TAKES_NOTHING_TWICE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.n IN (7, 20) OR EXISTS (SELECT FROM events e WHERE e.n = NEW.n) OR EXISTS (SELECT FROM closed) THEN
        RAISE EXCEPTION 'not this one';
    END IF;
    RETURN NEW;
END $$;
CREATE TABLE closed (since timestamp);
CREATE TRIGGER refuse BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION refuse()
"""


def test_a_bad_row_is_known_by_the_rows_behind_it_that_the_table_takes(lake: Lake, postgres_database: str) -> None:
    """Nothing that the table holds goes through again, so only rows that are not delivered yet can tell."""
    url = postgres_database
    table(lake, url)
    ask(url, _TAKES_NOTHING_TWICE)
    lake.append("events", numbers(lake, 1, 20))
    report = tick(lake, "out")
    assert set_aside(lake) == {7: "held"} and in_table(url) == without(19, 7), report
    assert report.did == "waiting" and "not this one" in str(report.reason), "no row is behind 20"
    lake.append("events", numbers(lake, 21, 30))
    ask(url, "INSERT INTO closed VALUES (now())")
    assert tick(lake, "out").did == "waiting" and set_aside(lake) == {7: "held"}, "it takes nothing at all"
    ask(url, "DELETE FROM closed")
    report = tick(lake, "out")
    assert report.did == "delivered" and in_table(url) == without(30, 7, 20), report
    assert set_aside(lake) == {7: "held", 20: "held"} and verdict(lake).ok


def test_a_restored_ledger_neither_sends_a_replayed_row_again_nor_forgets_the_others(
    lake: Lake, tmp_path: Path, postgres_database: str
) -> None:
    url = postgres_database
    table(lake, url, chunk_rows_max="8")
    ask(url, "ALTER TABLE events ADD CONSTRAINT odd CHECK (n NOT IN (7, 12))")
    lake.append("events", numbers(lake, 1, 5))
    tick(lake, "out")
    lake.ledger.backup(tmp_path / "copy.db")
    lake.append("events", numbers(lake, 6, 20))
    tick(lake, "out")
    ask(url, "ALTER TABLE events DROP CONSTRAINT odd")
    assert not lake.delivery.replay("out", [7]).failed
    restore(lake, tmp_path / "copy.db")
    lake.append("events", numbers(lake, 21, 22))
    assert tick(lake, "out").did == "delivered"
    assert in_table(url) == without(22)
    proof = verdict(lake)
    assert proof.ok, proof.findings


def restore(lake: Lake, copy: Path) -> None:
    shutil.copy(copy, lake.config.path("ledger.db"))


def test_a_ledger_restored_from_before_a_split_stops_and_is_recovered_without_loss(
    lake: Lake, tmp_path: Path, postgres_database: str
) -> None:
    """It knows the chunk as it was cut at first: neither new nor a repeat."""
    url = postgres_database
    table(lake, url)
    lake.append("events", numbers(lake, 1, 5))
    tick(lake, "out")
    ask(url, "ALTER TABLE events ADD CONSTRAINT odd CHECK (n <> 12)")
    lake.append("events", numbers(lake, 6, 20))
    with pytest.MonkeyPatch.context() as patch, armed(patch, "split.before_store=fail"), pytest.raises(RuntimeError):
        lake.tick()
    lake.ledger.backup(tmp_path / "copy.db")
    with lake.ledger.write() as connection:
        sinks.forget_leases(connection)
    assert tick(lake, "out").did == "delivered"
    restore(lake, tmp_path / "copy.db")
    with lake.ledger.write() as connection:
        sinks.forget_leases(connection)
    assert tick(lake, "out").did == "stopped"
    lake.delivery.recover_sink("out")
    assert tick(lake, "out").did == "delivered"
    assert in_table(url) == without(20, 12) and set_aside(lake) == {12: "held"}
    assert verdict(lake).ok
