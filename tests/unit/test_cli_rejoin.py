"""What a person sees of a rejoin, without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strandline.cli.main import run
from strandline.core import failpoints
from strandline.core.sites.arbiter import LeaderRecord
from strandline.core.sites.replication import SiteRole
from strandline.lake import open_lake
from strandline.ledger.ingest import datasets
from strandline.ledger.replicate import following, leader_sinks, sites
from strandline.replicate.arbiter.arbiter import PutLanded
from tests.command_line import create_dataset_here, document, init_lake_here, plain_error

TAKE_OVER = "UPDATE site SET role = 'leader', leader = NULL, leader_token = NULL, term = 17"


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a leader; beside it, `new` is the site that took over, and knows one of its two datasets."""
    folder = tmp_path / "old"
    folder.mkdir()
    init_lake_here(folder, monkeypatch)
    create_dataset_here()
    create_dataset_here("late")
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
    from strandline.core.settings.lake_config import load_config
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
        assert lake.ledger.query(leader_sinks.read) == "[]", "it was told of the new leader's sinks: there are none"
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


@pytest.mark.parametrize("leader", ["https://user:canary-1@new.example", "https://new.example/?token=canary-1"])
def test_a_leaders_address_that_holds_a_secret_is_refused_and_not_repeated(
    old: Path, capsys: pytest.CaptureFixture[str], leader: str
) -> None:
    for command in (("follow", "init", leader, "../another"), ("rejoin", leader, "--yes")):
        said = plain_error(capsys, *command, code=2)
        assert "has a user, a password or a query in it" in said and "canary-1" not in said
    assert not Path("../another").exists()


def test_follow_init_at_a_follower_checks_what_rejoin_checks(
    old: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    third, again = tmp_path / "third", ["follow", "init", "../new", "../third"]
    assert run(["follow", "init", str(tmp_path / "new"), str(third)]) == 0
    with open_lake(third) as lake, lake.ledger.write() as connection:
        connection.exec_driver_sql("UPDATE site SET promoting_term = 17, claimed_term = 18")
    assert "is being promoted (term 18)" in plain_error(capsys, *again, code=3)
    assert "is being promoted (term 18)" in plain_error(
        capsys, "rejoin", "../new", "--config", str(third / "strandline.toml"), code=3
    )
    with open_lake(third) as lake, lake.ledger.write() as connection:
        connection.exec_driver_sql("UPDATE site SET promoting_term = NULL, claimed_term = NULL")
        following.follow_dataset(connection, datasets.add(connection, name="default.more", table_uuid="t").id, term=33)
    assert "another one took over in term 33" in plain_error(capsys, *again, code=3)
    with open_lake(third) as lake:
        assert lake.replication.site.leader == str(tmp_path / "new" / "strandline.toml")


def test_follow_init_does_not_take_the_place_of_a_rejoin_that_died(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only `rejoin` says from which sequence number on the new leader's cut counts."""
    failpoints.arm("rejoin.after_witness=fail")
    assert run(["rejoin", "../new", "--yes"]) == 1
    failpoints.arm("")
    assert "strandline rejoin ../new" in plain_error(capsys, "follow", "init", "../new", ".", code=3)
    assert document(capsys, "rejoin", "../new", "--yes")["led_in_term"] == 1


def test_a_leader_that_was_replaced_is_not_promoted_and_does_not_say_that_it_leads(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert document(capsys, "promote", "--yes")["already"], "it has heard of nobody"
    with open_lake(old) as lake:
        lake.ledger.change(sites.supersede, term=17, by="https://new.example")
    for arguments in (("--yes",), ("--yes", "--force"), ("--dry-run",)):
        said = " ".join(plain_error(capsys, "promote", *arguments, code=3).split())
        assert "cannot be promoted" in said and "site https://new.example leads in term 17" in said
        assert "strandline rejoin https://new.example" in said


def test_a_leader_whose_term_another_site_has_claimed_does_not_say_that_it_leads(
    old: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "arbiter").mkdir()
    monkeypatch.setenv("STRANDLINE_REPLICATION__ARBITER", f"file:{tmp_path / 'arbiter'}")
    with open_lake(old) as lake:
        arbiter = lake.replication.arbiter
        assert arbiter is not None
        claimed = LeaderRecord(lake.id, 17, 1, "east", "https://east", False, 1, frozenset(), 10.0)
        landed = arbiter.put(claimed, over=None)
        assert isinstance(landed, PutLanded)
        said = " ".join(plain_error(capsys, "promote", "--yes", code=3).split())
        assert "site east has claimed term 17" in said and "`strandline promote` at that site" in said
        arbiter.put(replace(claimed, leads=True), over=landed.now)
        assert "site east leads in term 17" in " ".join(plain_error(capsys, "promote", "--yes", code=3).split())
