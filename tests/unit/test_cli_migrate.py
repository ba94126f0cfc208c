"""What a person sees of a lake that moves, without Spark: from one SQLite file to another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from strandline.cli.main import run
from strandline.core import failpoints
from strandline.lake import open_lake
from tests.command_line import add_files_sink_here, create_dataset_here, document, error, init_lake_here, plain_error

NEW = '[ledger]\nurl = "ledger-2.db"\n'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    init_lake_here(tmp_path, monkeypatch)
    create_dataset_here()
    add_files_sink_here("out", f"{tmp_path}/out")
    (tmp_path / "new.toml").write_text(NEW)
    return tmp_path


def test_a_dry_run_shows_the_steps_and_changes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in home.iterdir() if path.is_file()}
    found = document(capsys, "migrate", "--to", "new.toml", "--dry-run")
    assert found["dry_run"] and not found["obstacles"]
    assert found["ledger"] == {"from": f"{home}/ledger.db", "to": f"{home}/ledger-2.db"}
    assert (found["catalog"], found["warehouse"], found["files"]) == (None, None, 0)
    assert found["steps"] == [
        "close the old ledger", "copy the ledger", "leave the old ledger", "open the new ledger", "write the settings",
    ]  # fmt: skip
    assert run(["migrate", "--to", "new.toml", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "This would move:" in shown and "3. leave the old ledger" in shown
    assert {path: path.read_bytes() for path in home.iterdir() if path.is_file()} == before


def test_what_is_in_the_way_is_shown_and_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_lake(home) as lake, lake.ledger.write() as connection:
        connection.exec_driver_sql("UPDATE sink SET lease_token = 't', lease_until = 9999999999000000")
    assert run(["migrate", "--to", "new.toml", "--dry-run"]) == 3
    assert 'a process delivers to sink "out"' in capsys.readouterr().out
    found = error(capsys, "migrate", "--to", "new.toml", "--yes", code=3)
    assert 'a process delivers to sink "out"' in found["message"] and "strandline run" in found["hint"]
    assert document(capsys, "status")["sinks"][0]["name"] == "out"  # it is open


def test_a_lake_moves_and_says_what_to_do_next(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "not a terminal" in error(capsys, "migrate", "--to", "new.toml", code=3)["hint"]
    shutil.copy(home / "strandline.toml", home / "old.toml")
    assert run(["migrate", "--to", "new.toml", "--yes"]) == 0
    shown = capsys.readouterr().out
    assert "The lake has moved" in shown and f"{home}/strandline.toml.before-migration" in shown
    assert (home / "strandline.toml").read_text() == NEW
    assert [s["name"] for s in document(capsys, "status")["sinks"]] == ["out"]
    refused = error(capsys, "status", "--config", "old.toml", code=3)
    assert refused["type"] == "LedgerMoved" and refused["message"] == f"the lake was moved to {home}/ledger-2.db"
    assert error(capsys, "ledger", "rebuild", "--force", "--config", "old.toml", code=3)["type"] == "LedgerMoved"
    assert error(capsys, "migrate", "--abort", "--config", "old.toml", code=3)["type"] == "LedgerMoved"
    assert document(capsys, "migrate", "--to", "new.toml", "--yes")["steps"] == []
    assert run(["migrate", "--to", "new.toml"]) == 0  # nothing to ask
    assert "already" in capsys.readouterr().out


def test_an_interrupted_move_is_called_off_or_goes_on(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRANDLINE_FAILPOINT", "move.after_copy=fail")
    assert run(["migrate", "--to", "new.toml", "--yes"]) == 1
    monkeypatch.delenv("STRANDLINE_FAILPOINT")
    failpoints.arm("")
    capsys.readouterr()
    refused = error(capsys, "status", code=3)
    assert refused["message"] == f"the lake is being moved to {home}/ledger-2.db" and "--abort" in refused["hint"]
    (home / "other.toml").write_text('[ledger]\nurl = "ledger-3.db"\n')
    assert "is being moved to" in error(capsys, "migrate", "--to", "other.toml", "--yes", code=3)["message"]
    assert document(capsys, "migrate", "--abort") == {"called_off": True, "tables": []}
    assert document(capsys, "status")["datasets"]
    assert error(capsys, "migrate", "--abort", code=3)["message"] == "no migration is under way"
    assert document(capsys, "migrate", "--to", "new.toml", "--yes")["resumed"] is False


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--to", "missing.toml", "--yes"], 2, "there is no settings file"),
        (["--to", "strandline.toml", "--abort"], 2, "--abort goes with no other option"),
        (["--dry-run"], 2, "--dry-run needs --to"),
        (["--to", "same.toml", "--yes"], 3, "name the same ledger"),
        (["--to", "below/new.toml", "--yes"], 2, "is not in the folder of"),
        (["--to", "used.toml", "--yes"], 3, "name a ledger that is in use already"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_hint(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    (home / "same.toml").write_text("# nothing new\n" + (home / "strandline.toml").read_text())
    (home / "below").mkdir()
    (home / "below" / "new.toml").write_text(NEW)
    assert run(["init", "other"]) == 0
    (home / "used.toml").write_text('[ledger]\nurl = "other/ledger.db"\n')
    capsys.readouterr()
    found = error(capsys, "migrate", *arguments, code=code)
    assert said in found["message"] and found["hint"]
    assert json.dumps(found)


@pytest.mark.parametrize("place", ["folder", "sample.jsonl/ledger.db"])
def test_a_place_where_no_ledger_can_be_is_refused_while_the_lake_is_open(
    home: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    (home / "folder").mkdir()
    (home / "new.toml").write_text(f'[ledger]\nurl = "{place}"\n')
    assert str(home / place) in plain_error(capsys, "migrate", "--to", "new.toml", "--yes", code=1)
    assert document(capsys, "status")["datasets"]
