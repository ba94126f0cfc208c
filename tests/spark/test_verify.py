"""`verify` over real sinks: what is right is proved, and whatever is wrong is found and named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from strandline.cli.main import run as strandline
from strandline.core.types import SeqRange
from strandline.deliver.verify.ranges import Fault
from tests.spark.lakes import create, new_lake, numbers, sql
from tests.spark.sinks import objects, tick

if TYPE_CHECKING:
    from strandline.deliver.verify.verdict import SinkVerdict
    from strandline.lake import Lake
    from tests.conftest import MakeHome
    from tests.servers import S3


@pytest.fixture
def lake(tmp_path: Path, make_home: MakeHome) -> Iterator[Lake]:
    with new_lake(tmp_path / "lake", make_home) as lake:
        create(lake, "events", {"n": "long", "text": "string"})
        yield lake


def append(lake: Lake, lo: int, hi: int) -> None:
    lake.append("events", numbers(lake, lo, hi).selectExpr("n", "concat('row ', n) AS text"))


def deliver(lake: Lake, out: Path, *, to: int = 90, **options: str) -> None:
    """30 rows a chunk."""
    lake.delivery.add("out", "events", "files", {"path": str(out), "chunk_rows_max": "30", **options})
    append(lake, 1, to)
    assert tick(lake, "out").reason is None


def verdict(lake: Lake, name: str = "out", **options: Any) -> SinkVerdict:
    return lake.delivery.verify(name, **options).sinks[0]


def found(lake: Lake, name: str = "out", **options: Any) -> list[tuple[Fault, str]]:
    return [(f.kind, f.what) for f in verdict(lake, name, **options).findings]


def ranges(out: Path) -> dict[str, Path]:
    return {name.rpartition("/")[2]: path for name, path in objects(out).items()}


def object_name(path: Path, out: Path) -> str:
    return str(path.relative_to(out))


# Files.


FORMS: dict[str, dict[str, str]] = {
    "parquet": {},
    "jsonl": {"format": "jsonl", "compression": "zst", "where": "n % 3 = 0"},
    "csv": {"format": "csv", "columns": "text"},
    "columns": {"compression": "snappy", "columns": "text"},
}


def test_what_was_delivered_is_proved_in_every_form(lake: Lake, out: Path) -> None:
    for name, options in FORMS.items():
        place = {"path": str(out / name), "chunk_rows_max": "30"}
        lake.delivery.add(name, "events", "files", place | options)
    append(lake, 1, 90)
    lake.tick()
    append(lake, 91, 100)
    lake.tick()
    report = lake.delivery.verify()
    assert [s.name for s in report.sinks if s.findings] == []
    assert (report.ok, report.exit_code, len(report.sinks)) == (True, 0, len(FORMS))
    for proved in report.sinks:
        there = objects(out / proved.name)
        kept = 33 if proved.name == "jsonl" else 100
        assert (proved.watermark, proved.lanes, proved.ranges) == (100, 1, len(there))
        assert (proved.rows, proved.withheld) == (kept, 100 - kept)
        assert proved.checked_bytes == sum(p.stat().st_size for p in there.values())
    first = next(iter(objects(out / "csv").values()))
    assert first.read_text().splitlines()[:2] == ["text", "row 1"]


def test_everything_that_happens_to_an_object_is_found_and_named(lake: Lake, out: Path) -> None:
    deliver(lake, out, to=150)
    there = list(ranges(out).values())
    assert len(there) == 5
    gone, flipped, exchanged, doubled, _ = there
    names = {path: object_name(path, out) for path in there}
    gone.unlink()
    body = bytearray(flipped.read_bytes())
    body[len(body) // 3] ^= 1
    flipped.write_bytes(body)
    exchanged.write_bytes(there[4].read_bytes())
    lo, hi = (int(n) for n in doubled.stem.split("-"))
    beyond = doubled.with_name(f"{hi + 1000:019d}-{hi + 1010:019d}.parquet")
    beyond.write_bytes(doubled.read_bytes())
    findings = {f.what: f for f in verdict(lake).findings}
    assert findings.pop(names[flipped]).kind in (Fault.CORRUPT, Fault.DIGEST)
    assert {what: f.kind for what, f in findings.items()} == {
        names[gone]: Fault.MISSING,
        names[exchanged]: Fault.CORRUPT,
        object_name(beyond, out): Fault.EXTRA,
    }
    inside = doubled.with_name(f"{lo + 1:019d}-{hi:019d}.parquet")
    shutil.copy(doubled, inside)
    overlap = next(f for f in verdict(lake).findings if f.kind is Fault.OVERLAP)
    assert doubled.name in overlap.detail and inside.name in overlap.detail


def test_rows_deleted_and_changed_in_the_lake_are_noted_and_no_fault(lake: Lake, out: Path) -> None:
    deliver(lake, out, format="jsonl")
    sql(lake, "CALL lake.system.rewrite_data_files(table => 'default.events', options => map('rewrite-all', 'true'))")
    assert verdict(lake).findings == ()
    path = next(iter(ranges(out).values()))
    text = path.read_text()
    path.write_text(text.replace("row 7", "row 6", 1))  # it can still be read
    assert found(lake) == [(Fault.DIGEST, object_name(path, out))]
    path.write_text(text)
    sql(lake, "DELETE FROM lake.default.events WHERE n IN (3, 4, 5)")
    sql(lake, "UPDATE lake.default.events SET text = 'other' WHERE n = 77")
    proved = verdict(lake)
    assert proved.ok
    assert [f.kind for f in proved.findings] == [Fault.NOTE, Fault.NOTE]
    assert "3 rows fewer" in proved.findings[0].detail
    assert "another content" in proved.findings[1].detail
    path.write_text(text.replace("row 7", "row 6", 1))
    assert (Fault.DIGEST, object_name(path, out)) in found(lake)


def test_columns_that_came_and_went_since_do_not_disturb_the_proof(lake: Lake, out: Path) -> None:
    deliver(lake, out)
    sql(lake, "ALTER TABLE lake.default.events ADD COLUMN more long")
    lake.append("events", numbers(lake, 91, 100).selectExpr("n", "'x' AS text", "n AS more"))
    tick(lake, "out")
    assert verdict(lake).findings == ()
    sql(lake, "ALTER TABLE lake.default.events DROP COLUMN text")
    lake.append("events", numbers(lake, 101, 110).selectExpr("n", "n AS more"))
    tick(lake, "out")
    assert verdict(lake).findings == ()


def test_partitions_are_proved_each_and_rows_that_were_never_sent_are_found(
    tmp_path: Path, make_home: MakeHome, out: Path
) -> None:
    with new_lake(tmp_path / "other", make_home) as lake:
        create(lake, "events", {"n": "long", "k": "string"}, deliver_by=["k"])
        lake.append("events", numbers(lake, 1, 60).selectExpr("n", "concat('k', n % 3) AS k"))
        lake.delivery.add("out", "events", "files", {"path": str(out)})
        tick(lake, "out")
        lake.append("events", numbers(lake, 61, 70).selectExpr("n", "'k1' AS k"))
        tick(lake, "out")
        proved = verdict(lake)
        assert (proved.findings, proved.lanes, proved.ranges, proved.rows) == ((), 3, 4, 70)
        assert proved.watermark == 70
        # The ledger forgets that it ever sent the second batch: its rows are then in no chunk.
        with lake.ledger.write() as connection:
            connection.exec_driver_sql("DELETE FROM chunk WHERE lo > 60")
            connection.exec_driver_sql('DELETE FROM intent WHERE "after" >= 60')
        next(p for name, p in objects(out).items() if name.endswith("61-70")).unlink()
        stray = verdict(lake).findings
        assert [(f.kind, f.partition) for f in stray] == [(Fault.UNEXPLAINED, "k=k1")]
        assert "numbers 61 to 70" in stray[0].what and "10 rows" in stray[0].what
        with lake.ledger.write() as connection:
            connection.exec_driver_sql(
                "DELETE FROM chunk WHERE lane_id = (SELECT id FROM lane WHERE partition = 'k=k2')"
            )
            connection.exec_driver_sql(
                "DELETE FROM intent WHERE lane_id = (SELECT id FROM lane WHERE partition = 'k=k2')"
            )
            connection.exec_driver_sql("DELETE FROM lane WHERE partition = 'k=k2'")
        assert (Fault.UNEXPLAINED, "20 rows up to 70") in found(lake)


def test_a_sink_that_started_later_answers_for_what_came_after(lake: Lake, out: Path) -> None:
    append(lake, 1, 40)
    lake.delivery.add("out", "events", "files", {"path": str(out)}, from_now=True)
    append(lake, 41, 60)
    tick(lake, "out")
    proved = verdict(lake)
    assert (proved.findings, proved.rows, proved.start, proved.watermark) == ((), 20, 40, 60)


def test_a_restored_ledger_proves_what_it_learned_from_the_sink(lake: Lake, out: Path, tmp_path: Path) -> None:
    deliver(lake, out, to=30)
    lake.ledger.backup(tmp_path / "copy.db")
    append(lake, 31, 75)
    tick(lake, "out")
    later = [object_name(p, out) for name, p in ranges(out).items() if name != "1-30"]
    shutil.copy(tmp_path / "copy.db", lake.config.path("ledger.db"))
    assert found(lake) == [(Fault.EXTRA, name) for name in later]
    with lake.ledger.write() as connection:
        connection.exec_driver_sql("UPDATE lane SET continuation = 'nonsense', version = version + 1")
    assert [kind for kind, _ in found(lake)] == [Fault.UNREADABLE]
    lake.delivery.recover_sink("out")
    taken_over = verdict(lake)
    assert (taken_over.findings, taken_over.taken_over, taken_over.rows) == ((), len(later), 75)
    shutil.copy(tmp_path / "copy.db", lake.config.path("ledger.db"))
    append(lake, 76, 80)
    tick(lake, "out")
    learned = verdict(lake)
    assert (learned.findings, learned.taken_over, learned.rows) == ((), 0, 80)


def test_rows_that_were_withheld_before_a_restore_stay_withheld(lake: Lake, out: Path, tmp_path: Path) -> None:
    """Nothing of them lies at the sink: its mark alone says that they were dealt with."""
    deliver(lake, out, to=50, where="n % 10 = 0")
    lake.ledger.backup(tmp_path / "copy.db")
    append(lake, 51, 55)
    tick(lake, "out")
    shutil.copy(tmp_path / "copy.db", lake.config.path("ledger.db"))
    append(lake, 56, 60)
    tick(lake, "out")
    proved = verdict(lake)
    assert (proved.findings, proved.rows, proved.withheld) == ((), 6, 54)


def test_a_mark_that_was_read_from_the_sink_is_gone_on_from(lake: Lake, out: Path, tmp_path: Path) -> None:
    deliver(lake, out, to=30)
    lake.ledger.backup(tmp_path / "copy.db")
    append(lake, 31, 75)
    tick(lake, "out")
    shutil.copy(tmp_path / "copy.db", lake.config.path("ledger.db"))
    lake.recover()
    lake.delivery.recover_sink("out")
    assert tick(lake, "out").did in ("idle", "delivered"), "what is planned stands below the mark"
    append(lake, 76, 80)
    tick(lake, "out")
    proved = verdict(lake)
    assert (proved.findings, proved.rows) == ((), 80)


def test_what_was_lost_and_sent_again_is_proved_in_its_new_generation(lake: Lake, out: Path) -> None:
    deliver(lake, out)
    last = list(ranges(out).values())[-1]
    shutil.rmtree(last.parent / "_marks")
    last.unlink()
    append(lake, 91, 100)
    assert tick(lake, "out").did == "stopped"
    assert (Fault.MISSING, object_name(last, out)) in found(lake)
    lake.delivery.recover_sink("out", resend=True)
    tick(lake, "out")
    proved = verdict(lake)
    [older] = proved.findings
    assert older.kind is Fault.NOTE and older.range == SeqRange(1, 60), "what the first generation delivered is noted"
    assert (proved.rows, proved.start, proved.watermark) == (40, 60, 100)


# On the terminal.


def test_the_command_says_it_in_words_and_by_its_exit_code(
    lake: Lake, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deliver(lake, out)
    config = ["--config", str(lake.config.home)]
    assert strandline(["verify", "out", *config]) == 0
    assert "3 ranges tile 1..90 without gap or overlap; 90 rows agree with the lake" in capsys.readouterr().out
    assert strandline(["verify", "nobody", *config]) == 2
    capsys.readouterr()
    path = next(iter(ranges(out).values()))
    path.rename(out / "taken")
    assert strandline(["verify", *config]) == 1
    said = capsys.readouterr().out
    assert "1 thing is wrong" in said and f"missing: {object_name(path, out)}" in said
    assert strandline(["verify", "--json", *config]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["ok"], document["sinks"][0]["rows"]) == (False, 90)
    assert [f["kind"] for f in document["sinks"][0]["findings"]] == ["missing"]
    assert strandline(["verify", "--taken-is-fine", *config]) == 0
    said = capsys.readouterr().out
    assert "3 ranges tile 1..90" in said and "(1 taken away)" in said
    path.symlink_to(path)  # nobody can open it: neither right nor wrong
    assert strandline(["verify", *config]) == 3
    assert f"unreadable: {object_name(path, out)}" in capsys.readouterr().out


# PostgreSQL.


@pytest.fixture
def table(lake: Lake, postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection]:
    monkeypatch.setenv("SINK_DSN", postgres_database)
    options = {"dsn": "env:SINK_DSN", "table": "events", "create": "true", "chunk_rows_max": "30"}
    lake.delivery.add("out", "events", "postgres", options)
    append(lake, 1, 90)
    assert tick(lake, "out").reason is None
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        yield connection


def test_a_dropped_and_a_doubled_row_are_found_and_their_numbers_named(lake: Lake, table: psycopg.Connection) -> None:
    proved = verdict(lake)
    assert (proved.findings, proved.ranges, proved.rows) == ((), 3, 90)
    table.execute("DELETE FROM events WHERE n IN (7, 9)")
    table.execute("INSERT INTO events SELECT * FROM events WHERE n = 42")
    table.execute("INSERT INTO events SELECT * FROM events WHERE n = 85")
    table.execute("DELETE FROM events WHERE n = 84")
    assert found(lake) == [
        (Fault.MISSING_ROW, "numbers 7, 9"),
        (Fault.DUPLICATE_ROW, "number 42"),
        (Fault.MISSING_ROW, "number 84"),
        (Fault.DUPLICATE_ROW, "number 85"),
    ]


def test_a_table_is_held_against_its_record_and_the_record_against_the_ledger(
    lake: Lake, table: psycopg.Connection
) -> None:
    sql(lake, "DELETE FROM lake.default.events WHERE n = 50")
    table.execute("DELETE FROM events WHERE n = 50")  # in neither: the sink still lacks what was delivered
    table.execute("UPDATE strandline_range SET digest = 'sha256:00' WHERE lo > 60")
    table.execute("DELETE FROM strandline_range WHERE lo = 1")
    faults = [f for f in verdict(lake, taken_is_fine=True).findings if f.is_fault]
    assert [(f.kind, f.what) for f in faults] == [
        (Fault.MISSING, "public.events 1..30"),
        (Fault.CORRUPT, "public.events 31..60"),
        (Fault.DIGEST, "public.events 61..90"),
    ]
    assert "1 of 30 rows is missing: 50" in faults[1].detail


# S3.


def test_objects_in_a_bucket_are_proved_and_one_that_is_gone_is_named(
    lake: Lake, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SINK_KEY", s3.access_key)
    monkeypatch.setenv("SINK_SECRET", s3.secret_key)
    bucket = s3.make_bucket()
    options = {
        "url": f"s3://{bucket}/there",
        "endpoint": s3.endpoint,
        "access_key": "env:SINK_KEY",
        "secret_key": "env:SINK_SECRET",
        "chunk_rows_max": "30",
    }
    lake.delivery.add("out", "events", "s3", options)
    append(lake, 1, 90)
    assert tick(lake, "out").reason is None
    proved = verdict(lake)
    assert (proved.findings, proved.ranges, proved.rows) == ((), 3, 90)
    keys = sorted(p for p in (s3.server.folder / "data" / bucket).rglob("*.parquet"))
    keys[1].unlink()
    assert found(lake) == [(Fault.MISSING, f"default.events/all/{keys[1].name}")]
