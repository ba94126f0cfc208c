"""What a person sees of delivery, without Spark: sinks, ticks, the daemon, and how status tells of them."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console, RenderableType
from rich.progress import Progress, TextColumn

from strandline.cli.daemon_log import DaemonLog
from strandline.cli.main import run
from strandline.cli.render import deliver
from strandline.cli.render.progress import DeliverBars
from strandline.core.delivery_types import Acknowledged, ChunkPlan, ChunkState, Intent, LanePlan
from strandline.core.errors import RefusedError, StorageError
from strandline.core.read_token import Continuation
from strandline.core.types import BlockKind, Reserved, Seq, SeqRange, SnapshotId, Staged
from strandline.deliver import sink_kinds
from strandline.deliver.plan.preview import LanePreview, SinkPreview
from strandline.deliver.tick import SinkReport, TickReport
from strandline.jobs.loop import LoopControl
from strandline.lake import Lake, open_lake
from strandline.ledger.deliver import intents, sinks
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import blocks, datasets
from strandline.status.documents import lake_documents
from tests.command_line import (
    WIDE,
    add_files_sink_here,
    create_dataset_here,
    document,
    error,
    init_lake_here,
    plain_error,
    said,
)

HEAVY = ("pyspark", "pyiceberg", "pyarrow", "alembic", "pandas", "py4j", "psycopg", "structlog")
ROW = '{"id": 1, "at": "2026-01-01T00:00:00Z", "who": "ada"}'


def make(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """A lake with `events`, which goes to the sink `out`, and `parts`, which has logical partitions."""
    init_lake_here(folder, patch)
    create_dataset_here("events", row=ROW)
    create_dataset_here("parts", "--deliver-by", "who", row=ROW)
    add_files_sink_here("out", "out")
    return folder


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", WIDE)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        return make(tmp_path_factory.mktemp("lake"), patch)


@pytest.fixture
def still_home(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """For those who change nothing."""
    monkeypatch.delenv("STRANDLINE_CONFIG", raising=False)
    monkeypatch.chdir(shared)
    return shared


def text(*renderables: RenderableType) -> str:
    out = Console(file=io.StringIO(), width=250)
    for r in renderables:
        out.print(r)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def publish(lake: Lake, dataset: str, rows: int) -> None:
    wanted = blocks.NewBlock(lake.dataset(dataset).id, rows, f"batch-{time.monotonic_ns()}", None)
    held, _ = blocks.reserve(lake.ledger, lake.witness, wanted, lease_seconds=60)
    assert isinstance(held, Reserved)
    assert blocks.mark_staged(lake.ledger, lake.witness, held, SnapshotId(1))
    staged = Staged(held.head, held.fence, SnapshotId(1), utc_now())
    assert blocks.mark_published(lake.ledger, staged, row_count=rows, snapshot=SnapshotId(1))


def promise(lake: Lake, name: str, until: int, *partitions: str, chunk_rows: int) -> list[Intent]:
    """An open intent for each partition, as a plan stores it."""
    record = lake.delivery.get(name)
    after = record.planned
    starts = range((after or 0) + 1, until + 1, chunk_rows)
    ranges = [SeqRange(Seq(lo), Seq(min(lo + chunk_rows - 1, until))) for lo in starts]
    plans = [LanePlan(p, after, Seq(until), tuple(ChunkPlan(r, len(r)) for r in ranges)) for p in partitions]
    token = _token(lake, name)
    with leased(lake, name) as lease:
        stored = intents.store_plan(
            lake.ledger, lease, record, until=Seq(until), lanes=plans, options=record.options, token=token
        )
    assert stored
    return stored


def _token(lake: Lake, name: str) -> Any:
    record = lake.delivery.get(name)
    dataset = next(d.uuid for d in lake.datasets() if d.id == record.dataset)
    return lambda mark: Continuation(lake.id, dataset, mark).encode()


@contextmanager
def leased(lake: Lake, name: str) -> Iterator[Any]:
    lease = sinks.leases.take(lake.ledger, lake.delivery.get(name).id, seconds=60)
    assert lease is not None
    yield lease
    assert sinks.leases.release(lake.ledger, lease)


def land(lake: Lake, name: str, intent: Intent, chunks: int, *, close: bool = False) -> None:
    acks = [Acknowledged(c.id, ChunkState.LANDED, c.expected, 0, "digest", 9) for c in intent.chunks[:chunks]]
    with leased(lake, name) as lease:
        assert intents.acknowledge(lake.ledger, lease, acks)
        if close:
            assert intents.close(lake.ledger, lease, lake.delivery.get(name), [intent], _token(lake, name))


# Sinks come and go.


def test_a_sink_that_was_added_is_shown_with_its_options_as_they_were_given(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    added = document(
        capsys, "sink", "add", "more", "--dataset", "parts", "--kind", "files",
        "--option", "path=more", "--option", "format=jsonl", "--option", "columns=id,who", "--from", "now",
    )  # fmt: skip
    assert (added["name"], added["kind"], added["dataset"]) == ("more", "files", "default.parts")
    assert added["options"] == {"path": "more", "format": "jsonl", "columns": "id,who"}
    assert [s["name"] for s in document(capsys, "sink", "list")["sinks"]] == ["more", "out"]
    shown = document(capsys, "sink", "show", "more")
    assert shown["options"] == added["options"]
    assert shown["destination"].endswith("/more/default.parts")
    assert (shown["state"], shown["lag_rows"], shown["open_intents"]) == ("active", 0, [])
    assert "strandline tick" in said(
        capsys, "sink", "add", "third", "--dataset", "events", "--kind", "files", "--option", "path=third"
    )
    assert "option format" in said(capsys, "sink", "show", "more")


def test_an_add_that_fails_says_what_to_do_and_nothing_of_ticks(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "taken").write_text("a file")
    add = ["sink", "add", "more", "--dataset", "events", "--kind", "files", "--option", "path=taken/out"]
    assert run(add) == 1
    told = capsys.readouterr().err
    assert "No sink was added" in told and "tick" not in told


def test_a_secret_is_shown_by_the_name_of_its_variable_and_never_as_it_is(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUT_DIR", str(home / "hidden"))
    added = ["sink", "add", "more", "--dataset", "events", "--kind", "files", "--option", "path=env:OUT_DIR"]
    assert document(capsys, *added)["options"] == {"path": "env:OUT_DIR"}
    assert document(capsys, "sink", "show", "more")["options"] == {"path": "env:OUT_DIR"}
    assert "env:OUT_DIR" in said(capsys, "sink", "show", "more")


def test_options_are_changed_and_taken_back(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = document(capsys, "sink", "update", "out", "--option", "format=csv", "--option", "chunk_rows_max=10")
    assert changed["options"] == {"path": "out", "format": "csv", "chunk_rows_max": "10"}
    changed = document(capsys, "sink", "update", "out", "--unset", "format", "--option", "columns=id")
    assert changed["options"] == {"path": "out", "chunk_rows_max": "10", "columns": "id"}
    assert document(capsys, "sink", "show", "out")["options"] == changed["options"]


def test_a_value_may_hold_an_equals_sign(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    added = ["sink", "add", "odd", "--dataset", "events", "--kind", "files", "--option", "path=a=b"]
    assert document(capsys, *added)["options"] == {"path": "a=b"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["sink", "show", "nope"],
        ["sink", "pause", "nope"],
        ["sink", "remove", "nope", "--yes"],
        ["sink", "recover", "nope"],
        ["sink", "recover", "out", "--resend", "--accept-loss"],
        ["sink", "reset", "nope", "--to", "beginning", "--yes"],
        ["sink", "reset", "out"],
        ["sink", "reset", "out", "--to", "nonsense", "--yes"],
        ["sink", "update", "out"],
        ["sink", "update", "out", "--option", "path"],
        ["sink", "update", "out", "--option", "=x"],
        ["sink", "update", "out", "--option", "format=csv", "--option", "format=jsonl"],
        ["sink", "update", "out", "--option", "format=csv", "--unset", "format"],
        ["sink", "update", "out", "--option", "no_such=1"],
        ["sink", "update", "out", "--unset", "format"],
        ["sink", "add", "x", "--dataset", "nope", "--kind", "files", "--option", "path=x"],
        ["sink", "add", "x", "--dataset", "events", "--kind", "nope"],
        ["sink", "add", "x", "--dataset", "events", "--kind", "files"],
        ["sink", "add", "x", "--dataset", "events", "--kind", "files", "--option", "path=x", "--from", "then"],
        ["tick", "--sink", "nope"],
        ["tick", "--sink", "nope", "--dry-run"],
    ],
)
def test_wrong_usage_ends_with_2_and_changes_nothing(
    still_home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    before = document(capsys, "sink", "show", "out")
    assert error(capsys, *arguments, code=2)["message"]
    plain_error(capsys, *arguments, code=2)
    assert document(capsys, "sink", "show", "out") == before
    assert len(document(capsys, "sink", "list")["sinks"]) == 1


def test_what_cannot_be_undone_is_asked_for(still_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["sink", "remove", "out"], ["sink", "reset", "out", "--to", "beginning"]):
        assert "--yes" in error(capsys, *arguments, code=3)["hint"]
    for choice in ("--resend", "--accept-loss"):
        assert "--yes" in error(capsys, "sink", "recover", "out", choice, code=3)["hint"]
    assert document(capsys, "sink", "show", "out")["generation"] == 1


def test_the_question_before_a_reset_says_what_it_means(
    still_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def no(call: Any, question: str, *, refusal: str) -> None:
        asked.append(question)
        raise RefusedError(refusal)

    monkeypatch.setattr("strandline.cli.command.Call.confirm", no)
    plain_error(capsys, "sink", "reset", "out", "--to", "beginning", code=3)
    [question] = asked
    assert "new generation" in question and "again" in question and "rows twice" in question


def test_a_reset_begins_a_new_generation_behind_a_token_or_at_the_beginning(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_lake(home) as lake:
        publish(lake, "events", 100)
        token = Continuation(lake.id, lake.dataset("events").uuid, Seq(60)).encode()
    fresh = document(capsys, "sink", "reset", "out", "--to", token, "--yes")
    assert (fresh["generation"], fresh["start"]) == (2, 60)
    [status] = document(capsys, "status")["sinks"]
    assert (status["generation"], status["watermark"], status["lag_rows"]) == (2, 60, 40)
    fresh = document(capsys, "sink", "reset", "out", "--to", "beginning", "--yes")
    assert (fresh["generation"], fresh["start"]) == (3, None)
    assert document(capsys, "audit")["events"][0]["event"] == "sink.reset"


def test_a_removed_sink_is_gone_and_its_place_stays(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = document(capsys, "sink", "remove", "out", "--yes")
    assert gone == {
        "removed": "out", "dry_run": False, "destination": gone["destination"],
        "lag_rows": 0, "open_intents": 0, "quarantined_rows": 0,
    }  # fmt: skip
    assert gone["destination"].startswith("file://")
    assert document(capsys, "sink", "list") == {"sinks": []}
    assert "sink add" in said(capsys, "sink", "list")
    assert (home / "out").exists()


def test_recover_reads_the_sinks_own_side_and_lets_it_go_on(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_lake(home) as lake, lake.ledger.write() as connection:
        sinks.stop(connection, sinks.get(connection, "out").id, "out: it is not as it was")
    assert document(capsys, "status")["sinks"][0]["state"] == "stopped"
    done = document(capsys, "sink", "recover", "out")
    assert (done["name"], done["generation"], done["lost"]) == ("out", 1, [])
    assert document(capsys, "sink", "show", "out")["state"] == "active"


def test_kinds_come_from_the_code_with_what_each_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = document(capsys, "sink", "kinds")
    by_name = {k["name"]: {o["name"]: o for o in k["options"]} for k in found["kinds"]}
    assert set(by_name) == set(sink_kinds.kind_names()) >= {"files", "s3", "postgres"}
    for name, options in by_name.items():
        assert list(options) == [o.name for o in sink_kinds.find_kind(name).options]
    assert by_name["files"]["path"]["required"] and by_name["s3"]["secret_key"]["secret"]
    assert "where" in {o["name"] for o in found["common"]}
    shown = said(capsys, "sink", "kinds")
    assert "default parquet" in shown and "chunk_rows_max" in shown


def test_a_kind_that_cannot_be_loaded_does_not_hide_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str, found: Any = sink_kinds.find_kind) -> Any:
        if name == "s3":
            raise ImportError("no such module")
        return found(name)

    monkeypatch.setattr(sink_kinds, "find_kind", load)
    found = {k["name"]: k for k in document(capsys, "sink", "kinds")["kinds"]}
    assert "no such module" in found["s3"]["problem"]
    assert found["files"]["problem"] is None and found["files"]["options"]
    assert "no such module" in said(capsys, "sink", "kinds")


# How they fare.


def test_status_has_what_is_promised_for_every_sink(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_lake(home) as lake:
        publish(lake, "events", 100)
        publish(lake, "events", 50)
        [first] = promise(lake, "out", 100, "", chunk_rows=40)
        land(lake, "out", first, 2)
    [status] = document(capsys, "status")["sinks"]
    assert {
        "name", "kind", "dataset", "partition", "generation", "watermark", "lag_rows", "lag_seconds", "state", "reason",
        "open_intent", "quarantined", "withheld", "held_rows", "trend", "last_batch", "retries", "exported",
    } <= set(status)  # fmt: skip
    assert status["open_intent"] == {"from": 1, "to": 100, "chunks": 3, "landed": 2}
    assert (status["watermark"], status["lag_rows"], status["unplanned_rows"]) == (None, 70, 50)
    assert status["lag_seconds"] >= 0 and status["partition"] is None and status["trend"] == "growing"
    line = next(s for s in said(capsys, "status").splitlines() if s.startswith("out "))
    assert "70 rows" in line and "active" in line and "growing" in line
    shown = document(capsys, "sink", "show", "out")
    [intent] = shown["open_intents"]
    assert [(c["from"], c["to"], c["state"]) for c in intent["chunks"]] == [
        (1, 40, "landed"), (41, 80, "landed"), (81, 100, "planned"),
    ]  # fmt: skip
    assert "2 of 3 chunks settled" in said(capsys, "sink", "show", "out")
    with open_lake(home) as lake, lake.ledger.read() as connection:
        [left] = intents.open_of(connection, sinks.get(connection, "out"))
    with open_lake(home) as lake:
        land(lake, "out", replace(left, chunks=left.chunks[2:]), 1, close=True)
    [status] = document(capsys, "status")["sinks"]
    assert (status["watermark"], status["exported"], status["open_intent"]) == (100, 100, None)
    assert {k: status["last_batch"][k] for k in ("from", "to", "rows")} == {"from": 1, "to": 100, "rows": 100}
    assert "100 rows, " in said(capsys, "status")


def test_partitions_are_folded_into_one_line_for_people_and_listed_in_the_document(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["sink", "add", "many", "--dataset", "parts", "--kind", "files", "--option", "path=many"])
    with open_lake(home) as lake:
        publish(lake, "parts", 100)
        found = promise(lake, "many", 100, *(f"who={n:02d}" for n in range(40)), chunk_rows=100)
        for intent in found[3:]:
            land(lake, "many", intent, 1, close=True)
    listed = [s for s in document(capsys, "status")["sinks"] if s["name"] == "many"]
    assert len(listed) == 40
    assert {s["partition"] for s in listed} == {f"who={n:02d}" for n in range(40)}
    assert [s["lag_rows"] for s in listed] == [100] * 3 + [0] * 37
    [line] = [s for s in said(capsys, "status").splitlines() if s.startswith("many ")]
    assert "40 partitions, 3 behind" in line
    shown = said(capsys, "sink", "show", "many")
    assert shown.index("who=02") < shown.index("who=03"), "those that are behind come first"
    assert "20 partitions more" in shown
    assert len(document(capsys, "sink", "show", "many")["lanes"]) == 40


def test_what_needs_a_person_is_said_once_per_sink_with_the_command_that_helps(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_lake(home) as lake:
        publish(lake, "events", 10)
    assert document(capsys, "sink", "pause", "out")["state"] == "paused"
    assert "`strandline sink resume out`" in said(capsys, "status")
    assert document(capsys, "sink", "resume", "out")["state"] == "active"
    assert "sink out" not in said(capsys, "status")
    with open_lake(home) as lake, lake.ledger.write() as connection:
        record = sinks.get(connection, "out")
        sinks.failed(connection, record.id, "out: nobody answers", utc_now() + timedelta(seconds=90))
        sinks.failed(connection, record.id, "out: nobody answers", utc_now() + timedelta(seconds=90))
    [status] = document(capsys, "status")["sinks"]
    assert (status["state"], status["retries"], status["reason"]) == ("waiting", 2, "out: nobody answers")
    shown = said(capsys, "status")
    assert "sink out: 2 tries failed: nobody answers; tried again in " in shown
    with open_lake(home) as lake, lake.ledger.write() as connection:
        sinks.stop(connection, record.id, "out: it lost what it had")
    assert "sink out is stopped: it lost what it had" in said(capsys, "status")
    assert "`strandline sink recover out`" in said(capsys, "sink", "list")
    assert document(capsys, "sink", "pause", "out")["state"] == "paused", "a person chooses that nobody waits for it"
    assert "it lost what it had" in said(capsys, "status")


@pytest.mark.parametrize(
    "arguments",
    [["sink", "list"], ["sink", "show", "out"], ["sink", "resume", "out"], ["status"], ["tick"], ["--help"]],
)
def test_looking_at_sinks_loads_no_engine_and_no_driver(still_home: Path, arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], cwd=still_home, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stderr.splitlines()[-1] == "[]"


PROBE = f"""
import sys
from strandline.cli.main import run
code = run(sys.argv[1:])
print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)
sys.exit(code)
"""

TELLS_TICKS = """
import sys
from strandline.deliver.tick import Deliverer
ticks, keep_delivering = [], Deliverer.keep_delivering
def told(self):
    report = keep_delivering(self)
    ticks.append(report)
    if len(ticks) == 3:
        print("it has looked three times", file=sys.stderr, flush=True)
    return report
Deliverer.keep_delivering = told
"""


# Ticks.


def test_a_tick_with_nothing_to_do_says_so_and_starts_nothing(
    still_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = document(capsys, "tick")
    assert done["rows"] == 0
    assert [(s["name"], s["did"], s["reason"]) for s in done["sinks"]] == [("out", "idle", None)]
    assert "nothing to do" in said(capsys, "tick", "--sink", "out")
    plan = document(capsys, "tick", "--dry-run")
    assert plan["dry_run"] and plan["sinks"] == [
        {"name": "out", "state": "active", "rows": 0, "lanes": [], "error": None}
    ]
    assert "Nothing was sent" in said(capsys, "tick", "--dry-run")


def test_a_tick_ends_with_3_where_a_sink_is_stopped_and_with_1_where_one_waits(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_lake(home) as lake, lake.ledger.write() as connection:
        record = sinks.get(connection, "out")
        sinks.failed(connection, record.id, "out: nobody answers", utc_now() + timedelta(hours=1))
    assert document(capsys, "tick", code=1)["sinks"][0]["did"] == "waiting"
    assert "nobody answers" in said(capsys, "tick", code=1)
    with open_lake(home) as lake, lake.ledger.write() as connection:
        sinks.stop(connection, record.id, "out: it lost what it had")
    assert document(capsys, "tick", code=3)["sinks"][0]["reason"] == "out: it lost what it had"
    assert "strandline sink show out" in said(capsys, "tick", code=3)
    run(["sink", "resume", "out"])
    run(["sink", "pause", "out"])
    assert document(capsys, "tick")["sinks"][0]["did"] == "paused"
    assert "a tick sends nothing" in said(capsys, "tick", "--dry-run")


REPORT = TickReport(
    (
        SinkReport("good", "delivered", rows=1_000, withheld=5, chunks=2),
        SinkReport("other", "busy"),
        SinkReport("part", "waiting", rows=10, chunks=1, reason="part: disk full", hint="Make room."),
    )
)


def test_a_tick_is_told_sink_by_sink_in_words() -> None:
    shown = text(*deliver.tick(REPORT, 2.0))
    assert "1,000 rows in 2 chunks, 5 withheld" in shown
    assert "another process delivers to it" in shown
    assert "10 rows in 1 chunk; waits to try again: disk full" in shown
    assert "Make room." in shown
    assert "1,010 rows delivered in 2.0 s, 505 rows/s" in shown
    assert deliver.exit_code(REPORT) == 1
    stopped = TickReport((*REPORT.sinks, SinkReport("bad", "stopped", reason="gone")))
    assert deliver.exit_code(stopped) == 3
    assert deliver.exit_code(TickReport(REPORT.sinks[:1])) == 0
    assert deliver.exit_code(TickReport(REPORT.sinks[:2])) == 1, "what the other is at may not be there yet"
    assert lake_documents.tick(REPORT, 2.0)["rows"] == 1_010


def test_a_preview_cuts_long_lists_for_people_and_never_in_the_document() -> None:
    chunks = tuple(ChunkPlan(SeqRange(Seq(n * 10 + 1), Seq(n * 10 + 10)), 10) for n in range(100))
    one = LanePreview("a", "", True, chunks[:1])
    found = [
        SinkPreview("a", "active", (one,), None),
        SinkPreview("b", "active", (LanePreview("b", "who=ada", False, chunks),), None),
        SinkPreview("c", "active", (), StorageError("c: nobody answers", hint="Start it.")),
    ]
    shown = text(*deliver.preview(found))
    assert "from an open intent" in shown and "1..10" in shown
    assert "would get 1,000 rows in 100 chunks to 1 partition" in shown
    assert "--json has all" in shown and "991..1000" not in shown
    assert "nobody answers" in shown and "Start it." in shown
    listed = lake_documents.tick_preview(found)
    assert [len(lane["chunks"]) for s in listed["sinks"] for lane in s["lanes"]] == [1, 100]
    assert listed["sinks"][2]["error"]["retryable"]
    assert listed["rows"] == 1_010


def test_a_preview_that_fails_at_one_sink_shows_the_others_and_ends_with_its_code(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from strandline.deliver.facade import Delivery

    run(["sink", "add", "bad", "--dataset", "events", "--kind", "files", "--option", "path=bad"])

    def preview(self: Delivery, only: str | None = None) -> list[LanePreview]:
        if only == "bad":
            raise StorageError("bad: nobody answers")
        return []

    monkeypatch.setattr(Delivery, "preview", preview)
    found = document(capsys, "tick", "--dry-run", code=1)
    assert [(s["name"], s["error"] is None) for s in found["sinks"]] == [("bad", False), ("out", True)]


def test_bars_go_on_over_the_plans_of_a_sink_that_is_far_behind() -> None:
    out = Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    with Progress(TextColumn("{task.fields[count]}"), console=out, auto_refresh=False) as progress:
        bars = DeliverBars(progress)
        bars.on_start("fetching")
        assert progress.tasks[0].description == "fetching"
        bars.on_rows("a", 0, 100)
        bars.on_rows("b", 0, 7)
        bars.on_rows("a", 60, 100)
        bars.on_rows("a", 100, 100)
        bars.on_rows("a", 0, 50)
        bars.on_rows("a", 50, 50)
        counts = {t.description: t.fields["count"] for t in progress.tasks}
        assert counts == {"a": "150/150 rows", "b": "0/7 rows"}
        bars.on_start("too late")


# The daemon.


def _journal(capsys: pytest.CaptureFixture[str], *reports: TickReport) -> list[dict[str, Any]]:
    capsys.readouterr()
    journal = DaemonLog(as_json=True)
    journal.serving(["a"])
    for report in reports:
        journal.tick(report)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_daemon_tells_what_happened_and_not_what_stays(capsys: pytest.CaptureFixture[str]) -> None:
    idle, waits = SinkReport("a", "idle"), SinkReport("a", "waiting", reason="no answer", hint="Look.")
    sent = SinkReport("a", "delivered", rows=7, chunks=1)
    lines = _journal(
        capsys, *(TickReport((s,)) for s in (idle, idle, sent, sent, idle, waits, waits, waits, idle)),
        TickReport((idle, SinkReport("b", "idle"))),
    )  # fmt: skip
    events = [(line["event"], line.get("sink")) for line in lines]
    assert events == [
        ("serving", None), ("delivered", "a"), ("delivered", "a"), ("waiting", "a"), ("well_again", "a"),
        ("serving", None),
    ]  # fmt: skip
    assert lines[0]["sinks"] == ["a"] and lines[-1]["sinks"] == ["a", "b"]
    assert (lines[1]["rows"], lines[3]["reason"], lines[3]["hint"]) == (7, "no answer", "Look.")
    assert all(re.match(r"\d{4}-\d\d-\d\dT.*Z$", line["at"]) for line in lines)


def test_a_tick_that_fails_is_told_and_that_it_is_well_again(capsys: pytest.CaptureFixture[str]) -> None:
    journal = DaemonLog(as_json=False)
    journal.failed("delivery_failed", StorageError("the ledger is away", hint="Bring it back."))
    journal.write("well_again", loop="delivery")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["event=delivery_failed", "event=well_again"]
    assert 'reason="the ledger is away"' in lines[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_daemon_ends_cleanly_on_a_signal_and_starts_no_jvm_while_nothing_is_to_do(
    still_home: Path, number: signal.Signals, form: list[str]
) -> None:
    environ = {**os.environ, "COLUMNS": "200", "STRANDLINE_DELIVER__POLL_SECONDS": "0.05"}
    daemon = subprocess.Popen(
        [sys.executable, "-c", TELLS_TICKS + PROBE, "run", *form],
        cwd=still_home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ,
    )  # fmt: skip
    try:
        assert daemon.stdout is not None and daemon.stderr is not None
        first = daemon.stdout.readline()
        assert daemon.stderr.readline() == "it has looked three times\n"
        assert daemon.poll() is None
        daemon.send_signal(number)
        rest, loaded = daemon.communicate(timeout=60)
    finally:
        daemon.kill()
    assert daemon.returncode == 0, loaded
    assert loaded.splitlines() == ["['structlog']"]
    lines = [first, *rest.splitlines()]
    assert [json.loads(line)["event"] for line in lines] == ["serving", "stopping", "stopped"], (
        "JSON: no terminal reads it"
    )
    assert json.loads(first)["sinks"] == ["out"]


def test_the_daemon_recovers_only_what_a_dead_writer_left_and_not_at_every_tick(home: Path) -> None:
    recovered: list[float] = []
    (home / "strandline.toml").write_text((home / "strandline.toml").read_text() + "\n[deliver]\npoll_seconds = 0.02\n")
    with open_lake(home) as lake:
        recovery = SimpleNamespace(catch_up=lambda: None, recover=lambda: recovered.append(time.monotonic()))
        delivery = replace(lake.delivery, recovery=recovery)

        def some_ticks() -> int:
            recovered.clear()
            stopping, ticks = threading.Event(), []

            def on_tick(report: TickReport) -> None:
                ticks.append(report)
                if len(ticks) == 5:
                    stopping.set()

            delivery.run(LoopControl(stopping, lambda e: pytest.fail(e.message)), on_tick)
            return len(recovered)

        assert some_ticks() == 0, "nothing is open"
        alive, _ = _reserve(lake, "alive", 60)
        assert some_ticks() == 0, "its writer shows signs of life"
        _reserve(lake, "adopting", -60, kind=BlockKind.ADOPTED)
        assert some_ticks() == 0, "only another pass of adopt settles that"
        assert blocks.mark_staged(lake.ledger, lake.witness, alive, SnapshotId(1))
        assert some_ticks() == 1, "once: what recovery could not settle waits a while"
        _reserve(lake, "dead", -60)
        assert some_ticks() == 1


def _reserve(
    lake: Lake, batch: str, lease_seconds: float, *, kind: BlockKind = BlockKind.BATCH
) -> tuple[Reserved, bool]:
    wanted = blocks.NewBlock(lake.dataset("events").id, 5, batch, None, kind)
    held, new = blocks.reserve(lake.ledger, lake.witness, wanted, lease_seconds=lease_seconds)
    assert isinstance(held, Reserved)
    return held, new


def test_the_daemon_goes_on_after_a_tick_that_failed(home: Path) -> None:
    (home / "strandline.toml").write_text((home / "strandline.toml").read_text() + "\n[deliver]\npoll_seconds = 0.02\n")
    heard: list[str] = []
    with open_lake(home) as lake:
        stopping, failures = threading.Event(), iter([StorageError("the warehouse is away")] * 3)

        def away() -> None:
            if (error := next(failures, None)) is not None:
                raise error

        control = LoopControl(stopping, lambda e: heard.append(e.message), lambda: heard.append("well again"))
        delivery = replace(lake.delivery, recovery=SimpleNamespace(catch_up=away))
        delivery.run(control, lambda report: stopping.set())
    assert heard == ["the warehouse is away", "well again"], "what stays wrong is told once"


def test_a_sink_whose_dataset_is_gone_stops_and_takes_no_look_of_the_daemon_with_it(home: Path) -> None:
    (home / "strandline.toml").write_text((home / "strandline.toml").read_text() + "\n[deliver]\npoll_seconds = 0.02\n")
    with open_lake(home) as lake:
        publish(lake, "events", 10)
        promise(lake, "out", 10, "", chunk_rows=5)
        publish(lake, "events", 10)
        events, later = lake.dataset("events"), utc_now() + timedelta(hours=1)
        with lake.ledger.write() as connection:
            sinks.failed(connection, lake.delivery.get("out").id, "away", later)  # open, waiting, and more to plan
            datasets.mark_dropped(connection, events.id)  # as when its table was made anew
        stopping, told = threading.Event(), []

        def on_tick(report: TickReport) -> None:
            told.extend(s for s in report.sinks if s.did == "stopped")
            if told:
                stopping.set()

        lake.delivery.run(LoopControl(stopping, lambda e: pytest.fail(e.message)), on_tick)
        assert [s.name for s in told] == ["out"] and "dropped" in (told[0].reason or "")
