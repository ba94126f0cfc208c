"""What a person sees of a rejoin, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.cli.main import run
from strandline.core import failpoints
from strandline.core.replication import SiteRole
from strandline.lake import open_lake
from strandline.ledger.replicate import following, sites
from tests.unit.test_cli import document, plain_error

TAKE_OVER = "UPDATE site SET role = 'leader', leader = NULL, leader_token = NULL, term = 17"


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a leader; beside it, `new` is the site that took over, and knows one of its two datasets."""
    monkeypatch.delenv("STRANDLINE_CONFIG", raising=False)
    folder = tmp_path / "old"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "sample.jsonl").write_text('{"id": 1}\n')
    assert run(["init"]) == 0
    assert run(["dataset", "create", "events", "--like", "sample.jsonl"]) == 0
    assert run(["dataset", "create", "late", "--like", "sample.jsonl"]) == 0
    assert run(["follow", "init", str(folder), str(tmp_path / "new")]) == 0
    with open_lake(folder) as lake:
        uuid = lake.dataset("events").uuid
    with open_lake(tmp_path / "new") as lake, lake.ledger.write() as connection:
        connection.exec_driver_sql(
            "INSERT INTO dataset (name, table_uuid, deliver_by, adopted, history, created_at, uuid) "
            f"VALUES ('default.events', 't', '[]', FALSE, 'deliver', 0, '{uuid}')"
        )
        connection.exec_driver_sql(TAKE_OVER)
    replace_role(tmp_path / "new")
    return folder


def replace_role(folder: Path) -> None:
    """As a promotion does it: the witness says who leads."""
    from dataclasses import replace

    from strandline.core.settings import load_config
    from strandline.ledger.witness import open_witness

    witness = open_witness(load_config(folder / "strandline.toml"))
    witness.replace(replace(witness.read(), role=SiteRole.LEADER, term=17))


def test_an_old_leader_follows_the_new_one_and_what_it_leaves_behind_is_named(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, "rejoin", "../new", "--yes")
    assert (found["term"], found["led_in_term"]) == (17, 1) and found["leader"].endswith("new/strandline.toml")
    assert found["datasets"] == ["default.events"], "also if its table cannot be read at the leader just now"
    assert found["not_at_the_leader"] == ["default.late"] and found["bodies"] == []
    with open_lake(old) as lake:
        assert lake.replication.site.follows
        assert [f.dataset.name for f in lake.ledger.query(following.list_followed)] == ["default.events"]
    assert "follows" in plain_error(capsys, "dataset", "create", "more", "--like", "sample.jsonl", code=3)
    assert run(["rejoin", "../new"]) == 0, "again: there is nothing left to ask"
    said = capsys.readouterr().out
    assert "leads in term 17" in said and "strandline follow" in said


def test_nobody_stops_leading_by_accident(old: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "stays as it is" in plain_error(capsys, "rejoin", "../new", code=3)
    with open_lake(old) as lake:
        assert not lake.replication.site.follows
    assert "itself" in plain_error(capsys, "rejoin", str(old), "--yes", code=3)
    said = plain_error(capsys, "rejoin", str(old), "--yes", "--config", str(tmp_path / "new"), code=3)
    assert "has not been replaced" in said
    (tmp_path / "other").mkdir()
    assert run(["init", str(tmp_path / "other")]) == 0
    assert "this site is one of lake" in plain_error(capsys, "rejoin", "../other", "--yes", code=3)


def test_a_rejoin_that_died_at_its_witness_says_what_to_do_and_goes_on(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failpoints.arm("rejoin.after_witness=fail")
    assert run(["rejoin", "../new", "--yes"]) == 1
    failpoints.arm("")
    capsys.readouterr()
    assert "strandline rejoin" in plain_error(capsys, "status", code=3)
    assert document(capsys, "rejoin", "../new", "--yes")["led_in_term"] == 1
    assert run(["status"]) == 0


def test_a_leader_that_heard_of_a_later_one_refuses_writes_and_names_it(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_lake(old) as lake:
        lake.ledger.change(sites.supersede, term=17, by="https://new.example")
    said = plain_error(capsys, "dataset", "create", "more", "--like", "sample.jsonl", code=3)
    assert "this site led in term 1; site https://new.example leads in term 17" in said
    assert "strandline rejoin https://new.example" in said
    assert run(["status"]) == 0
    assert "leads in term 17" in " ".join(capsys.readouterr().out.split())
    assert document(capsys, "status")["problems"][0]["severity"] == "error"
    assert run(["replication", "status"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "This site leads" not in shown and "strandline rejoin https://new.example" in shown
    assert document(capsys, "replication", "status")["leadership"]["superseded_term"] == 17
