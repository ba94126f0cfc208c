"""The command line with Spark behind it, in processes of its own."""

from __future__ import annotations

import gzip
import json
import shlex
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import strandline as sl
from strandline.cli.main import run
from tests.e2e.cli import TIMEOUT_SECONDS, Done, several, strandline
from tests.processes import python

SCHEMA = """
- {name: id, type: long, required: true}
- {name: who, type: string}
- {name: price, type: "decimal(10,2)"}
- {name: at, type: timestamptz}
- {name: score, type: double}
- {name: raw, type: binary}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lake in a folder whose name has every character that an address would take for its own."""
    monkeypatch.delenv("STRANDLINE_CONFIG", raising=False)
    home = tmp_path / "a lake #1?x=%41"
    config = ["--config", str(home)]
    assert run(["init", str(home)]) == 0
    (home / "schema.yaml").write_text(SCHEMA)
    schema = ["--schema", str(home / "schema.yaml")]
    assert run(["dataset", "create", "events", *schema, "--deliver-by", "who", *config]) == 0
    return home


def line(id: int, **values: Any) -> str:
    return json.dumps({"id": id, "who": "ada"} | values) + "\n"


def write_every_kind_of_file(home: Path) -> None:
    (home / "a.jsonl").write_text(
        line(1, price="1.50", at="2026-01-01T12:00:00+02:00", score="NaN", raw="AP8=") + line(2, who=None) + line(3)
    )
    (home / "b.csv").write_text("who,id\nbob,4\n,5\n")
    pq.write_table(pa.table({"id": pa.array([6, 7], pa.int64()), "who": ["ada", "bob"]}), home / "c.parquet")
    (home / "d.jsonl.gz").write_bytes(gzip.compress((line(8) + line(9)).encode()))
    (home / "e.csv.zst").write_bytes(zstandard.compress(b"id\n10\n"))
    (home / "f.jsonl").write_text(line(11) + "{not json\n" + line(0).replace("0", '"zero"', 1))
    (home / "utf8.jsonl").write_bytes(line(12).encode() + b'{"id": 0, "who": "\xff"}\n')
    (home / "empty.jsonl").write_text("")
    (home / "garbage.jsonl").write_text("this is\nno JSON\n")
    (home / "stamped.jsonl").write_text(line(0, _ingest_seq=1))
    (home / "zero.parquet").write_bytes(b"")
    (home / "torn.jsonl.gz").write_bytes(gzip.compress(line(0).encode() * 1000)[:60])


GOOD = ("a.jsonl", "b.csv", "c.parquet", "d.jsonl.gz", "e.csv.zst", "f.jsonl", "utf8.jsonl", "empty.jsonl")
BAD = ("garbage.jsonl", "stamped.jsonl", "zero.parquet", "torn.jsonl.gz", "missing.csv")


def test_files_of_every_kind_come_in_once_and_what_is_wrong_with_the_others_is_said(home: Path) -> None:
    write_every_kind_of_file(home)

    first, status, *reads = several(
        home,
        ["ingest", "events", *GOOD, *BAD, "--json"],
        ["status", "--json"],
        ["read", "events"],
        ["read", "events", "--limit", "5"],
        ["read", "events", "--json"],
        ["read", "events", "--columns", "id,who", "--internal"],
        ["read", "events", "--partition", "who=bob"],
        ["read", "events", "--partition", "who=~", "--columns", "id"],
        ["read", "events", "--until", "3", "--internal"],
        ["read", "events", "--since", "@3"],
        ["read", "events", "--since", "@2", "--json"],
    )
    assert first.err == ""
    assert first.code == 3
    found = {Path(f["path"]).name: f for f in first.document["files"]}
    assert [found[name]["rows"] for name in GOOD] == [3, 2, 2, 2, 1, 1, 1, 0]
    assert all(found[name]["error"] is None for name in GOOD)
    assert first.document["rows"] == 12
    _rejects_are_kept_with_file_line_and_reason(found)
    _bad_files_have_a_clear_error_each(found)
    [dataset] = status.document["datasets"]
    assert (dataset["rows"], dataset["open_blocks"], dataset["foreign"], dataset["unnumbered"]) == (12, 0, 0, 0)
    _reads_give_every_row_once_and_go_on_where_they_ended(reads)

    [again] = several(home, ["ingest", "events", *GOOD, "--json"])
    assert again.code == 0
    assert again.engine is False, "a repeat is found out in the ledger, without Spark"
    assert again.document["rows"] == 0
    assert all(f["duplicate"] for f in again.document["files"] if f["rows"])


def _rejects_are_kept_with_file_line_and_reason(found: dict[str, Any]) -> None:
    def kept(name: str) -> list[dict[str, Any]]:
        return [json.loads(text) for text in Path(found[name]["rejects_path"]).read_text("utf-8").splitlines()]

    assert found["f.jsonl"]["rejected"] == 2
    assert [(r["file"], r["line"]) for r in kept("f.jsonl")] == [("f.jsonl", 2), ("f.jsonl", 3)]
    assert "not JSON" in kept("f.jsonl")[0]["reason"]
    assert 'column "id"' in kept("f.jsonl")[1]["reason"]
    assert kept("f.jsonl")[0]["raw"] == "{not json"
    assert "UTF-8" in kept("utf8.jsonl")[0]["reason"]
    assert found["a.jsonl"]["rejects_path"] is None


def _bad_files_have_a_clear_error_each(found: dict[str, Any]) -> None:
    errors = {name: found[name]["error"] for name in BAD}
    assert errors["garbage.jsonl"]["type"] == errors["stamped.jsonl"]["type"] == "InputRefused"
    assert "not one row fits" in errors["garbage.jsonl"]["message"]
    assert "_ingest_seq" in errors["stamped.jsonl"]["message"]
    assert "Strandline's own" in errors["stamped.jsonl"]["message"]
    assert "zero.parquet" in errors["zero.parquet"]["message"]
    assert "torn.jsonl.gz" in errors["torn.jsonl.gz"]["message"]
    assert "there is no file" in errors["missing.csv"]["message"]
    assert all("Traceback" not in e["message"] and "org.apache" not in e["message"] for e in errors.values())


def _reads_give_every_row_once_and_go_on_where_they_ended(reads: Sequence[Done]) -> None:
    everything, part, document, chosen, partition, nulls, until, rest, nothing = reads
    assert sorted(r["id"] for r in everything.rows) == list(range(1, 13))
    [one] = [r for r in everything.rows if r["id"] == 1]
    assert one == {
        "id": 1, "who": "ada", "price": "1.50", "at": "2026-01-01T10:00:00.000000Z", "score": "NaN", "raw": "AP8=",
    }  # fmt: skip
    assert document.document == {"rows": everything.rows, "continuation": everything.token}
    assert part.rows == everything.rows[:5]
    assert all(set(r) == {"id", "who"} for r in chosen.rows)
    assert {r["id"] for r in partition.rows} == {4, 7}
    assert {r["id"] for r in nulls.rows} == {2, 5, 10}
    assert [r["_ingest_seq"] for r in until.rows] == [1, 2, 3]

    assert part.rows + rest.rows == everything.rows
    assert rest.token == everything.token
    assert nothing.document == {"rows": [], "continuation": everything.token}


def test_strict_batch_ids_again_and_alter_do_what_they_say(home: Path) -> None:
    (home / "a.jsonl").write_text(line(1) + "bad\n" + line(2))
    (home / "b.jsonl").write_text(line(3) + line(4) + "worse\n")
    (home / "c.jsonl").write_text(line(5))
    (home / "d.jsonl").write_text(line(6, level=3))
    strict, both, repeat, conflict, first, again, unknown, altered, known, elsewhere, status = several(
        home,
        ["ingest", "events", "a.jsonl", "--strict", "--json"],
        ["ingest", "events", "a.jsonl", "b.jsonl", "--batch-id", "both/1", "--json"],
        ["ingest", "events", "b.jsonl", "a.jsonl", "--batch-id", "both/1", "--json"],
        ["ingest", "events", "c.jsonl", "--batch-id", "both/1", "--json"],
        ["ingest", "events", "c.jsonl", "--json"],
        ["ingest", "events", "c.jsonl", "--again", "--json"],
        ["ingest", "events", "d.jsonl"],
        ["dataset", "alter", "events", "--add", "level:int", "--drop", "score"],
        ["ingest", "events", "d.jsonl"],
        ["ingest", "events", "a.jsonl", "--rejects", "elsewhere", "--json"],
        ["status", "--json"],
    )
    [refused] = strict.document["files"]
    assert strict.code == 3
    assert refused["error"]["type"] == "InputRefused"
    assert "1 row" in refused["error"]["message"]
    assert "line 2: not JSON" in refused["error"]["message"]
    assert (refused["rows"], refused["rejects_path"]) == (0, None)

    [batch] = both.document["files"]
    assert (both.code, batch["rows"], batch["batch_id"], batch["rejected"]) == (0, 4, "both/1", 2)
    kept = [json.loads(text) for text in Path(batch["rejects_path"]).read_text("utf-8").splitlines()]
    assert [(r["file"], r["line"]) for r in kept] == [("a.jsonl", 2), ("b.jsonl", 3)]
    assert Path(batch["rejects_path"]).parent == home / "rejects" / "default.events"
    assert repeat.document["files"][0]["duplicate"], "the order of the files does not make another batch"
    assert conflict.code == 3
    assert conflict.document["files"][0]["error"]["type"] == "BatchConflict"

    assert first.document["rows"] == again.document["rows"] == 1
    assert again.document["files"][0]["batch_id"].startswith(first.document["files"][0]["batch_id"] + "-again-")
    assert unknown.code == 3
    assert "level" in unknown.out
    assert (altered.code, known.code) == (0, 0)
    assert Path(elsewhere.document["files"][0]["rejects_path"]).parent == Path("elsewhere/default.events")
    assert (home / elsewhere.document["files"][0]["rejects_path"]).exists()
    assert status.document["datasets"][0]["rows"] == 4 + 1 + 1 + 1 + 2


def test_a_killed_ingest_is_settled_and_a_lost_ledger_made_again(home: Path) -> None:
    (home / "a.jsonl").write_text(line(1) + line(2))
    (home / "b.jsonl").write_text(line(3))
    short = {"STRANDLINE_INGEST__LEASE_SECONDS": "1"}
    killed = strandline(
        home, "ingest", "events", "a.jsonl", environ={**short, "STRANDLINE_FAILPOINT": "reserve.after_commit=kill"}
    )
    assert killed.code == -signal.SIGKILL
    [dataset] = strandline(home, "status", "--json").document["datasets"]
    assert (dataset["open_blocks"], dataset["rows"], dataset["sealed"]) == (1, 0, None)
    assert dataset["blocks"][0]["state"] == "reserved"
    assert "Open blocks" in strandline(home, "status").out

    recovered, retried, agreed, nothing, lost, rebuilt, known, rows, audit = several(
        home,
        ["recover", "--json"],
        ["ingest", "events", "a.jsonl", "b.jsonl"],
        ["ledger", "resync", "--json"],
        ["ledger", "rebuild"],
        ["rm", "ledger.db"],
        ["status"],
        ["ledger", "rebuild", "--json"],
        ["ingest", "events", "a.jsonl", "b.jsonl", "--json"],
        ["read", "events"],
        ["audit", "--json"],
        environ=short,
    )
    assert recovered.document["abandoned"] == ["1..2"]
    assert retried.code == 0
    assert "2 rows" in retried.out
    assert agreed.document["resynced"] is None
    assert nothing.code == 3

    assert lost.code == 3
    assert rebuilt.code == 0
    assert rebuilt.document["datasets_found"] == ["default.events"]
    assert all(f["duplicate"] for f in known.document["files"]), "the tables' history remembers the batches"
    assert sorted(r["id"] for r in rows.rows) == [1, 2, 3]
    assert "ledger.rebuilt" in [e["event"] for e in audit.document["events"]]


def test_a_table_with_rows_is_adopted_and_a_reader_may_leave_early(home: Path) -> None:
    rows = pa.table({"id": pa.array(range(20_000), pa.int64())})
    with sl.open(home) as lake:
        inner = lake.catalog._catalog
        inner.create_namespace_if_not_exists("old")
        inner.create_table("old.log", rows.schema).append(rows)
    before = strandline(home, "status", "--json").document
    assert [d["name"] for d in before["datasets"]] == ["default.events"]
    adopted, again, status = several(
        home,
        ["dataset", "adopt", "old.log", "--history", "skip", "--json"],
        ["dataset", "adopt", "old.log"],
        ["status", "--json"],
    )
    assert adopted.document == {"name": "old.log", "numbered": 20_000, "steps": 1}
    assert "every row has its sequence number" in again.out
    [found] = [d for d in status.document["datasets"] if d["name"] == "old.log"]
    assert (found["unnumbered"], found["adopted"], found["sealed"]) == (0, True, found["allocated"])

    command = f"{shlex.join(python('strandline.cli.main', 'read', 'old.log'))} | head -n 2; echo ${{PIPESTATUS[0]}}"
    left = subprocess.run(
        ["bash", "-c", command], cwd=home, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )  # fmt: skip
    assert left.stdout.splitlines() == ['{"id":0}', '{"id":1}', "141"]
    assert left.stderr == ""
