"""`sink quarantine` as a person and a script see it, without Spark: rows that were set aside in a ledger of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.cli.main import run
from strandline.core.types import Seq
from strandline.deliver.quarantine.content import object_name, open_objects, packed
from strandline.deliver.sink import Address
from strandline.lake import Lake, open_lake
from strandline.ledger.deliver import intents, quarantine, sinks
from strandline.ledger.deliver.quarantine import StoredRefusedRow
from strandline.status.documents.lake_documents import bounded
from tests.command_line import document
from tests.unit.test_cli_sinks import leased, make, promise, publish


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """Rows 2 and 5 of `events` were refused by `out`, each in a chunk of its own."""
    make(tmp_path, monkeypatch)
    with open_lake(None) as lake:
        publish(lake, "events", 5)
        [intent] = promise(lake, "out", 5, "", chunk_rows=1)
        record, objects = lake.delivery.get("out"), open_objects(lake.config)
        rows = []
        for n in (2, 5):
            address = Address(lake.id, record.instance, record.generation, "default.events", "")
            table = pa.table({"_ingest_seq": pa.array([n], pa.int64()), "id": pa.array([n], pa.int64()), "who": ["x"]})
            body = packed(table, ["_ingest_seq", "id", "who"])
            objects.put(object_name(address, n), body)
            row = StoredRefusedRow(
                intent.lane, Seq(n), f"no {n}", object_name(address, n), len(body), record.options, "rows"
            )
            rows.append((intent.chunks[n - 1].id, row))
        with leased(lake, "out") as lease:
            assert quarantine.quarantine_rows(lake.ledger, lease, rows)
        yield lake


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    return document(capsys, "sink", "quarantine", *arguments, code=code)


@pytest.mark.usefixtures("lake")
def test_the_list_shows_number_reason_and_the_row_itself(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "list", "out")["rows"]
    assert [(r["sink"], r["number"], r["reason"], r["state"], r["row"]) for r in found] == [
        ("out", n, f"no {n}", "held", {"_ingest_seq": n, "id": n, "who": "x"}) for n in (2, 5)
    ]
    assert all(r["size"] > 0 and r["at"] and Path(r["object"]).is_file() for r in found)
    assert run(["sink", "quarantine", "list"]) == 0
    text = capsys.readouterr().out
    assert "row 2" in text and "no 5" in text and '"who": "x"' in text


def test_a_row_is_replayed_and_another_discarded_and_both_are_counted(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    said = answer(capsys, "replay", "out", "2")
    assert (said["replayed"], said["rows"]) == (1, [{"number": 2, "outcome": "replayed", "why": None}])
    [path] = Path("out/default.events/~replay").glob("*.parquet")
    assert path.name.startswith(f"{2:019d}-{2:019d}")
    assert answer(capsys, "discard", "out", "5", "--yes")["numbers"] == [5]
    assert answer(capsys, "list")["rows"] == []
    settled = answer(capsys, "list", "out", "--settled")["rows"]
    assert [(r["number"], r["state"]) for r in settled] == [(2, "replayed"), (5, "discarded")]
    assert answer(capsys, "replay", "out", "--all")["rows"] == []
    with lake.ledger.read() as connection:
        assert len(intents.open_of(connection, sinks.get(connection, "out"))) == 1  # nothing else was touched


@pytest.mark.usefixtures("lake")
def test_nothing_is_chosen_or_given_up_by_accident(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["replay", "out"], ["discard", "out", "--yes"], ["replay", "out", "2", "--all"]):
        assert run(["sink", "quarantine", *wrong]) == 2
    assert run(["sink", "quarantine", "discard", "out", "2"]) == 3  # nobody is there to ask
    assert run(["sink", "quarantine", "replay", "out", "3"]) == 2
    assert len(answer(capsys, "list", "out")["rows"]) == 2


def test_a_replay_of_content_that_is_gone_or_damaged_says_so(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    places = [Path(q.place) for q in lake.delivery.quarantined("out")]
    places[0].unlink()
    [first] = answer(capsys, "replay", "out", "2", code=1)["rows"]
    places[1].write_bytes(b"nonsense")
    [second] = answer(capsys, "replay", "out", "5", code=1)["rows"]
    assert "gone" in first["why"] and "damaged" in second["why"]
    found = answer(capsys, "list", "out")["rows"]
    assert [r["state"] for r in found] == ["held", "held"]
    assert all(r["row"] is None and r["problem"] for r in found)


def test_a_value_of_any_size_or_type_fits_into_the_list() -> None:
    assert len(bounded("x" * 1_000_000)) < 11_000
    assert bounded({"a": ["x", None, 1.5]}) == {"a": ["x", None, 1.5]}
