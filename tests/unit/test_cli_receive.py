"""What a person sees of receiving, without Spark: tokens, the receiver's command, and how status tells of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from strandline.cli.daemon_log import DaemonLog
from strandline.cli.main import run
from strandline.core.actor import system_user
from strandline.core.errors import StorageError
from strandline.core.forward_protocol import KeyIdentity
from strandline.core.types import Seq, SeqRange
from strandline.lake import open_lake
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import datasets
from strandline.ledger.receive import batches, ended_batches, receive_holds, received, senders, tokens
from strandline.ledger.receive.receipts import Note
from strandline.ledger.receive.received import UnrecordedBody
from strandline.ledger.receive.senders import SourceRecord
from strandline.receive.intake import BatchReport
from tests.command_line import create_dataset_here, document, error, init_lake_here, plain_error
from tests.ledger.receiving import in_table

ROW = '{"id": 1, "who": "ada"}'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    init_lake_here(tmp_path, monkeypatch)
    create_dataset_here(row=ROW)
    return tmp_path


# Tokens.


def test_a_tokens_secret_is_told_once_and_never_stored(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = document(capsys, "token", "create", "collector", "--dataset", "events")
    assert made["datasets"] == ["default.events"] and made["secret"].startswith("sl_")
    [listed] = document(capsys, "token", "list")["tokens"]
    assert {"name", "role", "datasets", "created_at", "expires_at", "revoked_at"} == set(listed)
    assert made["secret"].encode() not in (home / "ledger.db").read_bytes()
    capsys.readouterr()
    assert run(["token", "create", "other"]) == 0
    said = capsys.readouterr().out
    assert "every dataset" in said and "sl_" in said
    assert run(["token", "list"]) == 0
    said = capsys.readouterr().out
    assert "collector" in said and "default.events" in said and "sl_" not in said


def test_a_revoked_token_is_shown_as_such_and_its_name_is_free_again(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = document(capsys, "token", "create", "collector")["secret"]
    assert error(capsys, "token", "create", "collector", code=3)["message"].startswith("a token named collector exists")
    assert "to replace" in error(capsys, "token", "create", "next", "--replaces", "nobody", code=3)["message"]
    assert document(capsys, "token", "create", "next", "--dataset", "events", "--replaces", "collector")["secret"]
    assert document(capsys, "token", "revoke", "collector") == {"name": "collector", "revoked": True}
    with open_lake(home) as lake, lake.ledger.read() as connection:
        assert tokens.find(connection, secret) is None
    assert document(capsys, "token", "list")["tokens"][0]["revoked_at"] is not None
    assert "no token collector" in plain_error(capsys, "token", "revoke", "collector", code=3)
    document(capsys, "token", "create", "collector")


def test_lanes_that_a_wrong_token_claimed_are_shown_and_freed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["token", "create", "wrong"]) == 0
    with open_lake(home) as lake, lake.ledger.write() as connection:
        own = {
            "instance": "sink-1",
            "table_uuid": "u",
            "generation": 1,
            "owner": tokens.list_tokens(connection)[0].owner,
        }
        senders.claim(
            connection, datasets.get(connection, "default.events").id, SourceRecord("lake-a", "default.there", **own)
        )
    capsys.readouterr()
    assert run(["token", "claims"]) == 0 and "sink-1" in capsys.readouterr().out
    [claim] = document(capsys, "token", "claims")["claims"]
    assert (claim["dataset"], claim["token"], claim["generation"]) == ("default.events", "wrong", 1)
    named = ("token", "release", "events", "lake-a", "default.there", "--yes")
    assert document(capsys, *named)["forgotten"] is True
    assert "no sender of lake lake-a" in plain_error(capsys, *named, code=3)
    assert document(capsys, "token", "claims")["claims"] == []


def test_a_receiver_that_holds_is_shown_and_goes_on_when_a_person_says_so(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_lake(home) as lake, lake.ledger.write() as connection:
        receive_holds.put(connection, datasets.get(connection, "default.events").id, "nobody knows")
    [told] = document(capsys, "status")["datasets"]
    assert told["problem"] == "the receiver is on hold: nobody knows"
    named = ("dataset", "accept-received", "events", "--reason", "the senders are empty", "--yes")
    assert document(capsys, *named) == {"accepted": "default.events", "files_set_aside": []}
    assert document(capsys, "status")["datasets"][0]["problem"] is None
    assert "is not on hold" in plain_error(capsys, *named, code=3)


def test_a_token_gets_the_role_and_the_end_that_are_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = document(capsys, "token", "create", "page", "--role", "read", "--expires", "30d")
    assert made["role"] == "read"
    length = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(made["created_at"])
    assert length == timedelta(days=30)
    assert document(capsys, "token", "create", "boss", "--role", "admin")["expires_at"] is None
    assert document(capsys, "token", "create", "sender")["role"] == "write"
    assert "is not a duration" in error(capsys, "token", "create", "x", "--expires", "soon", code=2)["message"]
    assert "in the past" in error(capsys, "token", "create", "x", "--expires", "0d", code=2)["message"]
    assert error(capsys, "token", "create", "x", "--role", "king", code=2)
    with open_lake(home) as lake, lake.ledger.write() as connection:
        tokens.create(connection, "gone", None, expires_in=timedelta(microseconds=1))
    assert run(["token", "list"]) == 0
    said = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "read" in said["page"] and "in use until" in said["page"]
    assert "admin" in said["boss"] and "expired" in said["gone"] and "in use" in said["sender"]


def test_a_token_for_a_dataset_that_is_not_there_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert error(capsys, "token", "create", "x", "--dataset", "evnts", code=2)["type"] == "NoSuchDataset"
    assert document(capsys, "token", "list")["tokens"] == []


def test_what_was_done_with_tokens_is_audited_without_the_secret(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = document(capsys, "token", "create", "collector")["secret"]
    document(capsys, "token", "revoke", "collector")
    told = document(capsys, "audit")
    assert [e["event"] for e in told["events"]] == ["token.revoked", "token.created", "dataset.created"]
    assert {(e["actor"], e["trigger"]) for e in told["events"]} == {(system_user(), "command")}
    assert secret not in json.dumps(told)


# Status.


def receive(home: Path, *sizes: int) -> None:
    with open_lake(home) as lake:
        target = lake.dataset("events")
        with lake.ledger.write() as connection:
            token, _ = tokens.create(connection, f"t{utc_now().timestamp()}", None)
        names = [f"{target.table_uuid}/{n}.arrow" for n in range(len(sizes))]
        bodies = [
            UnrecordedBody(target.id, KeyIdentity(name), token.id, rows, "d", 10, name, 100)
            for rows, name in zip(sizes, names, strict=True)
        ]
        received.record(lake.ledger, bodies)


def test_status_tells_what_was_received_and_waits_and_why(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert document(capsys, "status")["receive"] is None
    receive(home, 5, 7)
    [told] = document(capsys, "status")["receive"]
    assert (told["dataset"], told["bodies"], told["rows"], told["bytes"]) == ("default.events", 2, 12, 200)
    assert told["oldest"] is not None and told["batches"] == []
    with open_lake(home) as lake:
        later = utc_now() + timedelta(hours=1)
        batches.form(lake.ledger, lake.dataset("events").id, rows_max=100, older_than=later)
        [batch] = batches.take(lake.ledger, 60)
        assert batches.failed(lake.ledger, batch, "the table has no column 'who' any more", later)
    [told] = document(capsys, "status")["receive"]
    assert [(b["rows"], b["tries"], b["reason"]) for b in told["batches"]] == [
        (12, 1, "the table has no column 'who' any more")
    ]
    capsys.readouterr()
    assert run(["status"]) == 0
    said = capsys.readouterr().out
    assert "Received, not ingested yet" in said and "1 batch failed" in said
    assert "12 rows that were received cannot be ingested: the table has no column 'who' any more" in said
    with open_lake(home) as lake:
        in_table(lake.ledger, batch, SeqRange(Seq(1), Seq(12)))
        batches.settle(lake.ledger, batch, SeqRange(Seq(1), Seq(12)))
    assert document(capsys, "status")["receive"] == [], "it was received, and nothing waits"


# The receiver.


PROBE = """
import sys
from strandline.cli.main import run
code = run(sys.argv[1:])
engine = sys.modules.get("pyspark")
print("a JVM" if engine is not None and engine.SparkContext._gateway is not None else "no JVM", file=sys.stderr)
sys.exit(code)
"""


@contextmanager
def started(home: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROBE, "receive", *arguments],
        cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_receiver_says_where_it_listens_starts_no_jvm_and_ends_cleanly(home: Path, number: signal.Signals) -> None:
    with started(home, "--port", "0", "--json") as (process, first):
        told = json.loads(first)
        assert (told["event"], told["datasets"]) == ("listening", ["default.events"])
        answer = httpx.get(f"{told['url']}/v1/health", timeout=60)
        assert (answer.status_code, answer.json()) == (200, {"ok": True})
        assert answer.headers["Strandline-Receiver"] == "1"
        process.send_signal(number)
        rest, loaded = process.communicate(timeout=60)
    assert process.returncode == 0, loaded
    assert [json.loads(line)["event"] for line in rest.splitlines()] == ["stopping", "stopped"]
    assert loaded.splitlines()[-1] == "no JVM"


def test_a_body_that_is_answered_is_in_the_spool_and_in_status(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = document(capsys, "token", "create", "curl")["secret"]
    with started(home, "--port", "0", "--no-ingest", "--host", "127.0.0.1") as (process, first):
        url = json.loads(first)["url"]  # JSON, since this is no terminal
        headers = {"Authorization": f"Bearer {secret}", "Idempotency-Key": "k", "Content-Type": "application/x-ndjson"}
        answer = httpx.post(f"{url}/v1/datasets/events/rows", content=ROW, headers=headers, timeout=60)
        assert answer.status_code == 202, answer.text
        process.terminate()
        assert process.wait(60) == 0
    [told] = document(capsys, "status")["receive"]
    assert (told["bodies"], told["rows"]) == (1, 1)


def test_an_address_in_use_is_told_before_anything_is_started(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port} is in use" in plain_error(capsys, "receive", "--port", str(port), code=1)


def test_half_of_what_tls_needs_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = home / "strandline.toml"
    before = settings.read_text()
    settings.write_text(before + '\n[receive]\ntls_certificate = "cert.pem"\n')
    assert "belong together" in plain_error(capsys, "receive", "--port", "0", code=2)
    settings.write_text(before + '\n[receive]\ntls_certificate = "cert.pem"\ntls_key = "key.pem"\n')
    assert "there is no file" in plain_error(capsys, "receive", "--port", "0", code=2)
    for name in ("cert.pem", "key.pem"):
        (home / name).write_text("not a certificate")
    assert "cannot be used" in plain_error(capsys, "receive", "--port", "0", code=2)


def test_the_journal_tells_each_batch_and_what_stays_wrong_once(capsys: pytest.CaptureFixture[str]) -> None:
    journal = DaemonLog(as_json=True)
    numbers = SeqRange(Seq(5), Seq(9))
    waiting = BatchReport("default.a", "b1", "waiting", 1, 5, reason="no column 'x'", hint="add it")
    journal.batch(waiting)
    journal.batch(waiting)
    journal.batch(BatchReport("default.b", "b2", "ingested", 2, 7, numbers))
    journal.failed("intake_failed", StorageError("away"))
    journal.write("well_again", loop="intake")
    journal.batch(BatchReport("default.a", "b1", "ingested", 1, 5, numbers))
    lines: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(e["event"], e.get("dataset")) for e in lines] == [
        ("waiting", "default.a"),
        ("ingested", "default.b"),
        ("intake_failed", None),
        ("well_again", None),
        ("well_again", "default.a"),
        ("ingested", "default.a"),
    ]
    assert lines[0]["reason"] == "no column 'x'" and lines[0]["hint"] == "add it"
    assert (lines[1]["rows"], lines[1]["bodies"], lines[1]["numbers"]) == (7, 2, "5..9")


# Bodies that could not be ingested.


def set_aside(home: Path, reason: str) -> list[int]:
    """Every body that waits, each for this reason."""
    done = []
    with open_lake(home) as lake:
        dataset = lake.dataset("events").id
        while (batch := batches.form(lake.ledger, dataset, rows_max=1, older_than=utc_now())) is not None:
            done += [body.id for body in batch.bodies]
        for taken in batches.take(lake.ledger, 60):
            assert ended_batches.set_body_aside(lake.ledger, lake.witness, taken, reason)
    return done


def test_bodies_that_were_set_aside_are_listed_replayed_and_discarded(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert document(capsys, "spool", "list")["bodies"] == []
    receive(home, 5, 7)
    first, second = set_aside(home, "File name too long")
    listed = document(capsys, "spool", "list", "events")["bodies"]
    assert [(b["body"], b["rows"], b["reason"]) for b in listed] == [
        (first, 5, "File name too long"),
        (second, 7, "File name too long"),
    ]
    [told] = document(capsys, "status")["receive"]
    assert (told["bodies"], told["set_aside"], told["dropped"]) == (0, {"bodies": 2, "rows": 12, "bytes": 200}, False)
    assert {m["name"]: m["value"] for m in document(capsys, "metrics")["metrics"]}[
        "strandline_received_set_aside_bodies"
    ] == 2
    capsys.readouterr()
    assert run(["status"]) == 0
    said = capsys.readouterr().out
    assert "2 bodies of 12 rows could not be ingested" in said and "Received, not ingested yet" not in said
    assert run(["spool", "list"]) == 0
    assert f"body {first}  5 rows" in capsys.readouterr().out
    assert "which bodies" in error(capsys, "spool", "replay", code=2)["message"]
    assert "99" in error(capsys, "spool", "replay", "99", code=2)["message"]
    assert error(capsys, "dataset", "drop", "events", "--yes", code=3)["message"].endswith(
        "12 received rows are set aside"
    )
    assert error(capsys, "spool", "discard", str(second), code=3)["message"] == "nothing is discarded"
    assert document(capsys, "spool", "replay", str(first)) == {"replayed": [first]}
    assert document(capsys, "spool", "discard", "--all", "--yes") == {"discarded": [second], "rows": 7}
    [told] = document(capsys, "status")["receive"]
    assert (told["bodies"], told["rows"], told["set_aside"]["bodies"]) == (1, 5, 0)
    events = [e["event"] for e in document(capsys, "audit")["events"]]
    assert {"receive.bodies_replayed", "receive.bodies_discarded"} <= set(events)


def test_a_body_that_the_ledger_does_not_know_keeps_its_dataset_and_is_told_and_given_up(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a restore: whoever sent it was told that it is safe."""
    with open_lake(home) as lake:
        note = Note(KeyIdentity("k"), None, 1, "d", 1)
        name, _ = lake.receiver.context.spool.write(lake.dataset("events").table_uuid, pa.table({"n": [1]}), note)
        lake.receiver.adopt()
    refused = error(capsys, "dataset", "drop", "events", "--yes", code=3)["message"]
    assert "1 body is in the spool and not in the ledger" in refused
    [told] = document(capsys, "status")["receive"]
    assert (told["dataset"], told["unrecorded"]["files"]) == ("default.events", 1)
    assert run(["status"]) == 0 and "1 body lies in the spool and cannot be recorded" in capsys.readouterr().out
    left = document(capsys, "spool", "list")["unrecorded"]
    assert (left["files"], left["first"][0]["name"]) == (1, name)
    assert run(["spool", "list", "events"]) == 0 and "another token" in capsys.readouterr().out
    metrics = {m["name"]: m["value"] for m in document(capsys, "metrics")["metrics"]}
    assert metrics["strandline_received_unrecorded_bodies"] == 1
    assert document(capsys, "spool", "discard", "--unrecorded", "--yes") == {"files_set_aside": [name]}
    assert document(capsys, "spool", "list")["unrecorded"] == {"files": 0, "first": []}
    document(capsys, "dataset", "drop", "events", "--yes")


def test_what_the_spool_holds_for_a_dropped_dataset_is_told_and_cleared(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    receive(home, 5, 7)
    assert "not dropped" in error(capsys, "spool", "clear", "events", "--yes", code=3)["message"]
    with open_lake(home) as lake, lake.ledger.write() as connection:
        datasets.mark_dropped(connection, lake.dataset("events").id)  # as when its table was made anew
    [told] = document(capsys, "status")["receive"]
    assert (told["dataset"], told["bodies"], told["bytes"], told["dropped"]) == ("default.events", 2, 200, True)
    capsys.readouterr()
    assert run(["status"]) == 0
    said = capsys.readouterr().out
    assert "default.events was dropped, and the spool still holds 2 bodies of 200 bytes" in said
    metrics = {m["name"]: m["value"] for m in document(capsys, "metrics")["metrics"]}
    assert metrics["strandline_received_dropped_bytes"] == 200
    assert error(capsys, "spool", "clear", "events", code=3)["message"] == "nothing is cleared"
    assert document(capsys, "spool", "clear", "events", "--yes") == {
        "dataset": "events", "bodies": 2, "rows": 12, "bytes": 200
    }  # fmt: skip
    assert document(capsys, "status")["receive"] == []
    [event] = [e for e in document(capsys, "audit")["events"] if e["event"] == "receive.spool_cleared"]
    assert event["detail"]["rows"] == 12
