"""`strandline reconcile`: reports unless it is asked to act, asks before it acts, says everything as JSON, too."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from strandline.cli.main import run as cli
from strandline.cli.render import reconcile
from strandline.core.errors import StorageError
from strandline.core.records.reconcile_records import AbortReason, ReconcileRunId
from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog
from strandline.reconcile.quarantine import PurgedFiles, Restored
from tests.command_line import document
from tests.reconcile.whole_lakes import ACT, WholeLake, there


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WholeLake]:
    made = WholeLake(tmp_path / "lake", enabled=False, dry_run=True)
    made.append()
    made.append()
    monkeypatch.chdir(made.home)
    yield made
    made.lake.close()


def test_it_reports_as_json_and_writes_every_finding(lake: WholeLake, capsys: pytest.CaptureFixture[str]) -> None:
    orphans = lake.puts(12)
    young = lake.put("young.parquet", days_old=-1)
    found = document(capsys, "reconcile", "--findings", "found.jsonl")
    assert found["dry_run"] is True and found["partial"] is False and found["aborted"] is None
    assert found["planned"]["missing"] == 0 and found["planned"]["orphans"] == 12
    assert found["done"]["missing"] == 0 and found["done"]["orphans"] == 0
    assert found["protected"] == {"future_time": 1} and len(found["samples"]) == 10
    lines = [json.loads(line) for line in (lake.home / "found.jsonl").read_text("utf-8").splitlines()]
    assert {line["path"] for line in lines if line["kind"] == "orphan"} == {*orphans, young}
    assert {"kind", "path", "table", "size", "modified", "protected"} <= set(lines[0])
    assert [line["protected"] for line in lines if line["path"] == young] == ["future_time"]
    assert all(there(orphans))
    os.unlink(lake.data_files()[0])
    found = document(capsys, "reconcile")
    assert found["planned"]["missing"] == 1 and found["planned"]["orphans"] == 0
    assert found["protected"] == {"entries_missing": 13}


def test_neither_reporting_nor_acting_loads_spark(lake: WholeLake) -> None:
    orphans = lake.puts(2)
    gone = lake.data_files()[0]
    script = (
        f"import os, sys\nsys.path.append({str(Path(__file__).parents[2])!r})\n"
        "from tests.reconcile import no_grace\nfrom strandline.cli.main import run\n"
        "codes = [run(['reconcile']), run(['reconcile', '--act', '--yes'])]\n"
        f"os.unlink({gone!r})\n"
        "codes += [run(['reconcile', '--act', '--yes'])]\n"
        "sys.exit(any(codes) or 'pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=lake.home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not any(there(orphans)) and len(lake.data_files()) == 1


def test_without_a_terminal_acting_needs_yes(lake: WholeLake, capsys: pytest.CaptureFixture[str]) -> None:
    orphans = lake.puts(2)
    assert cli(["reconcile", "--act"]) == 3 and all(there(orphans))
    assert "--yes" in capsys.readouterr().err
    assert not lake.lake.reconciler.runs()


@pytest.mark.parametrize(("answer", "code"), [("n", 3), ("y", 0)])
def test_on_a_terminal_acting_asks_and_does_as_it_is_told(lake: WholeLake, answer: str, code: int) -> None:
    orphans = lake.puts(2)
    ours, theirs = pty.openpty()
    asked = subprocess.Popen(
        [sys.executable, "-m", "strandline.cli.main", "reconcile", "--act"],
        cwd=lake.home, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | {"COLUMNS": "200"},
    )  # fmt: skip
    os.close(theirs)
    said = b""
    try:
        while b"[y/N]" not in said:
            said += os.read(ours, 1 << 16)
        assert all(there(orphans)) and not lake.lake.reconciler.runs(), "it did not wait for the answer"
        os.write(ours, f"{answer}\n".encode())
        with suppress(OSError):  # the other end is closed
            while os.read(ours, 1 << 16):
                pass
        assert asked.wait(timeout=60) == code
    finally:
        asked.kill()
        os.close(ours)
    assert b"Drop entries of missing files? Files that nothing references are moved to quarantine" in said
    assert there(orphans) == [code != 0] * 2


def test_ctrl_c_ends_a_run_as_cancelled(lake: WholeLake) -> None:
    orphans = lake.puts(2)
    run = subprocess.Popen(
        [sys.executable, "-m", "strandline.cli.main", "reconcile", "--act", "--yes"],
        cwd=lake.home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"STRANDLINE_FAILPOINT": "reconcile.before_files=stop"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a suite in the background ignores it
    )  # fmt: skip
    try:
        _, state = os.waitpid(run.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(state), "it did not come to acting"
        run.send_signal(signal.SIGINT)
        run.send_signal(signal.SIGCONT)
        _, said = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 130 and "Traceback" not in said, said
    (ended,) = lake.lake.reconciler.runs()
    assert ended.aborted is AbortReason.CANCELLED and ended.ended_at is not None
    assert all(there(orphans)) and lake.run(ACT).outcome.done.orphans == 2


def test_act_is_honoured_whatever_dry_run_says_and_can_be_undone(
    lake: WholeLake, capsys: pytest.CaptureFixture[str]
) -> None:
    orphans = lake.puts(2)
    acted = document(capsys, "reconcile", "--act", "--yes")
    assert acted["dry_run"] is False and acted["done"]["orphans"] == 2 and not any(there(orphans))
    run = str(acted["run"])
    shown = document(capsys, "reconcile", "show", run)
    assert [file["state"] for file in shown["files"]] == ["held", "held"] and shown["held"] == 2
    assert document(capsys, "reconcile", "runs")["runs"][0]["run"] == acted["run"]
    assert document(capsys, "reconcile", "restore", run)["restored"] == 2 and all(there(orphans))
    assert document(capsys, "reconcile", "purge", "--yes")["purged"] == 0


def test_people_read_what_was_found_and_why_the_rest_is_protected(
    lake: WholeLake, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.put("a\nline.parquet")
    lake.put("../../notes.txt")
    lake.puts(12)
    assert cli(["reconcile"]) == 0
    told = capsys.readouterr().out
    assert "a\\nline.parquet" in told and "outside every table's layout" in told
    assert "Nothing was touched" in told and " more: `--findings FILE` writes all of them" in told
    assert cli(["reconcile", "runs"]) == 0 and "report" in capsys.readouterr().out


def test_a_guard_ends_with_3_and_says_why(lake: WholeLake, capsys: pytest.CaptureFixture[str]) -> None:
    lake.puts(150)
    refused = document(capsys, "reconcile", "--act", "--yes", code=3)
    assert refused["aborted"] == "guard" and "deletes_max_share" in refused["why"] and refused["done"]["orphans"] == 0


@pytest.mark.parametrize("arguments", [["--delete"], ["--accept-loss"]])
def test_how_to_act_without_acting_is_wrong_usage(lake: WholeLake, arguments: list[str]) -> None:
    assert cli(["reconcile", *arguments]) == 2


def test_status_tells_what_the_last_run_left(lake: WholeLake, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = document(capsys, "status")["reconcile"]
    assert {"last_run", "orphans", "missing", "partial"} <= set(nothing) and set(nothing.values()) == {None}
    assert "reconcile" not in told_metrics(capsys)
    lake.puts(2)
    first = document(capsys, "reconcile")
    told = document(capsys, "status")["reconcile"]
    assert (told["last_run"], told["orphans"], told["missing"], told["partial"]) == (first["run"], 2, 0, False)
    assert cli(["status"]) == 0 and "2 orphan files" in capsys.readouterr().out
    document(capsys, "reconcile", "--act", "--yes")
    assert document(capsys, "status")["reconcile"]["orphans"] == 0


def test_a_run_that_ended_before_it_compared_knows_nothing_and_hides_nothing(
    lake: WholeLake, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.puts(2)
    whole = document(capsys, "reconcile")
    off = threading.Event()
    off.set()
    early = lake.run(cancelled=off)
    assert early.aborted is AbortReason.CANCELLED
    told = document(capsys, "status")["reconcile"]
    assert (told["last_run"], told["aborted"]) == (early.id, "cancelled")
    assert [told[key] for key in ("orphans", "missing", "partial")] == [None, None, None]
    assert (told["compared"]["run"], told["compared"]["orphans"]) == (whole["run"], 2)
    assert cli(["status"]) == 0
    said = capsys.readouterr().out
    assert "ended early (cancelled), before it had compared" in said and "2 orphan files" in said
    metrics = told_metrics(capsys)
    assert f"strandline_reconcile_last_run {early.id}.0\n" in metrics
    assert 'strandline_reconcile_last_run_aborted{reason="cancelled"} 1.0\n' in metrics
    assert "strandline_reconcile_last_run_ok 0.0\n" in metrics and "strandline_reconcile_orphan_files 2.0\n" in metrics


def test_status_and_metrics_say_of_a_partial_run_that_it_is_partial(
    lake: WholeLake, capsys: pytest.CaptureFixture[str]
) -> None:
    (lake.warehouse / "default" / "events" / "data" / "loop").symlink_to("loop")
    assert document(capsys, "reconcile", code=4)["partial"] is True
    assert document(capsys, "status")["reconcile"]["partial"] is True
    assert cli(["status"]) == 0 and "could not check everything" in capsys.readouterr().out
    metrics = told_metrics(capsys)
    assert "strandline_reconcile_partial 1.0\n" in metrics and "strandline_reconcile_last_run_ok 1.0\n" in metrics
    assert "strandline_reconcile_missing_files 0.0\n" in metrics


def told_metrics(capsys: pytest.CaptureFixture[str]) -> str:
    assert cli(["metrics"]) == 0
    return capsys.readouterr().out


def test_findings_of_a_run_that_ended_early_do_not_replace_those_of_a_whole_one(
    lake: WholeLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(self: PyIcebergCatalog) -> list[str]:
        raise StorageError("the catalog does not answer")

    lake.puts(2)
    file = lake.home / "found.jsonl"
    document(capsys, "reconcile", "--findings", file.name)
    before = file.read_bytes()
    assert before.count(b"\n") == 2
    monkeypatch.setattr(PyIcebergCatalog, "table_names", no_answer)
    assert cli(["reconcile", "--findings", file.name]) == 1
    assert "is not written" in capsys.readouterr().err
    assert file.read_bytes() == before and not file.with_name("found.jsonl.part").exists()


def test_findings_are_written_where_a_guard_refuses_after_everything_was_told(
    lake: WholeLake, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.puts(150)
    document(capsys, "reconcile", "--act", "--yes", "--findings", "found.jsonl", code=3)
    assert len((lake.home / "found.jsonl").read_text("utf-8").splitlines()) == 150


def test_findings_that_cannot_be_written_are_wrong_usage(lake: WholeLake) -> None:
    assert cli(["reconcile", "--findings", "no/such/folder.jsonl"]) == 2


def test_a_run_that_is_not_known_is_wrong_usage(lake: WholeLake) -> None:
    assert cli(["reconcile", "show", "99"]) == 2 and cli(["reconcile", "restore", "99"]) == 2


def test_looking_at_the_record_loads_no_engine(lake: WholeLake) -> None:
    lake.run()
    code = (
        "import sys\nfrom strandline.cli.main import run\nassert run(['reconcile', 'runs']) == 0\n"
        "assert not {'pyspark', 'pyiceberg', 'pyarrow', 'alembic'} & set(sys.modules), sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=lake.home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_daemon_follows_the_schedule_beside_delivery_and_ends_on_a_signal(lake: WholeLake) -> None:
    lake.settings(enabled=True, dry_run=False, schedule="* * * * * *")
    (orphan,) = lake.puts(1)
    daemon = subprocess.Popen(
        [sys.executable, "-m", "strandline.cli.main", "run", "--json"],
        cwd=lake.home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    lines: list[dict[str, Any]] = []
    try:
        assert daemon.stdout is not None
        while not lines or lines[-1]["event"] != "reconciled":
            lines.append(json.loads(daemon.stdout.readline()))
        daemon.send_signal(signal.SIGTERM)
        rest, said = daemon.communicate(timeout=60)
    finally:
        daemon.kill()
    assert daemon.returncode == 0
    words = "run 1: files quarantined: 1; could not be moved: 0; referenced by now, and went back: 0"
    assert [json.loads(line)["message"] for line in said.splitlines()] == [words]
    assert [line["event"] for line in lines] == ["serving", "scheduled", "reconciling", "reconciled"]
    assert (lines[1]["reconcile"], lines[1]["act"], lines[2]["act"]) == ("* * * * * *", True, True)
    assert (lines[3]["outcome"], lines[3]["orphans"], lines[3]["set_aside"]) == ("done", 1, 1)
    assert not Path(orphan).exists()
    assert [json.loads(line)["event"] for line in rest.splitlines()][-1] == "stopped"


def test_it_lists_suspects_and_releases_those_that_a_person_says_are_orphans(
    lake: WholeLake, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = Path(lake.data_files()[0])
    suspect = entry.with_name("renamed.parquet")
    entry.rename(suspect)
    assert document(capsys, "reconcile", code=4)["suspects"] == 1
    assert document(capsys, "reconcile", "suspects")["suspects"] == [
        {"path": str(suspect), "table": "default.events", "entry": str(entry), "released": False}
    ]
    assert cli(["reconcile", "release", str(suspect)]) == 3 and "stays as it is" in capsys.readouterr().err
    assert document(capsys, "reconcile", "release", str(suspect), "--yes")["released"] is True
    assert cli(["reconcile", "release", "/nowhere", "--yes"]) == 2 and "not suspected" in capsys.readouterr().err
    assert cli(["reconcile", "suspects"]) == 0 and "was released" in capsys.readouterr().out
    assert document(capsys, "reconcile")["suspects"] == 0


def test_a_report_that_is_not_the_whole_truth_says_so_first_and_has_an_exit_code_of_its_own(
    lake: WholeLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """An emptied catalog, a table that cannot be read, a table that is not what it was."""
    assert document(capsys, "reconcile")["doubts"] == []
    catalog, damaged = lake.home / "catalog.db", Path(lake.table().metadata_location.removeprefix("file://"))
    content, whole = damaged.read_bytes(), catalog.read_bytes()
    damaged.write_bytes(content[:-9])
    found = document(capsys, "reconcile", code=4)
    assert found["doubts"] == ["partial"] and found["refusals"] == []
    damaged.write_bytes(content)
    with sqlite3.connect(catalog) as connection:
        connection.execute("DELETE FROM iceberg_tables")
    found = document(capsys, "reconcile", code=4)
    assert found["doubts"] == ["refused", "suspicious"] and "catalog of record" in found["refusals"][0]
    assert cli(["reconcile"]) == 4
    assert capsys.readouterr().out.startswith("! Run 4 (report, refused"), "the first line says it"
    assert document(capsys, "status")["reconcile"]["doubts"] == ["refused"]
    assert cli(["status"]) == 0 and "may be incomplete or wrong (refused)" in capsys.readouterr().out
    assert 'strandline_reconcile_last_run_doubts{doubt="refused"} 1.0\n' in told_metrics(capsys)
    assert cli(["reconcile", "runs"]) == 0 and "report, refused" in capsys.readouterr().out
    assert document(capsys, "reconcile", "--act", "--yes", code=3)["doubts"] == ["refused"]
    catalog.write_bytes(whole)
    for path in lake.data_files():
        Path(path).unlink()
    shutil.rmtree(lake.warehouse / "default" / "events" / "data")
    assert document(capsys, "reconcile", code=4)["doubts"] == ["suspicious"]


def test_a_new_lake_has_nothing_to_doubt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(tmp_path / "new" / "strandline.toml")
    assert cli(["init", str(tmp_path / "new")]) == 0 and capsys.readouterr()
    assert document(capsys, "reconcile", "--config", config)["doubts"] == []


def test_a_report_says_what_the_guard_by_share_would_refuse(
    lake: WholeLake, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.puts(40)
    lake.settings(share_floor_files=1)
    found = document(capsys, "reconcile", code=4)
    assert found["doubts"] == ["refused"] and "deletes_max_share" in found["refusals"][0]
    assert document(capsys, "reconcile", "--act", "--yes", code=3)["done"]["orphans"] == 0


@pytest.mark.parametrize("count", [1, 2])
def test_counts_are_followed_by_the_noun_and_the_verb_that_fit(count: int) -> None:
    purged, restored = PurgedFiles(count, 9, count, count), Restored(ReconcileRunId(7), 3, count)
    shown = [*reconcile.purged(purged), *reconcile.restored(restored)]
    said = "\n".join(str(line) for line in shown)
    files, was, stays = ("1 file", "was", "stays") if count == 1 else ("2 files", "were", "stay")
    for words in (f"{files} deleted", f"{files} brought back", f"{files} {stays}:", f"{files} {was} in place already"):
        assert words in said
