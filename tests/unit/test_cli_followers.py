"""What a person sees of followers at their leader, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.cli.main import run
from strandline.core.records.audit_events import Event
from strandline.core.roles import Role
from strandline.core.types import Seq, ShardId
from strandline.lake import open_lake
from strandline.ledger.replicate import followers
from strandline.ledger.replicate.followers import Acknowledgement
from tests.command_line import create_dataset_here, document, init_lake_here, plain_error


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    init_lake_here(tmp_path, monkeypatch)
    create_dataset_here()
    return tmp_path


def test_a_follower_is_added_with_a_token_of_its_own_listed_shown_and_removed(
    lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = document(capsys, "follower", "add", "east")
    assert made["secret"].startswith("sl_") and made["datasets"] is None and made["on_lag"] == "hold"
    with open_lake(lake) as opened:
        [token] = [t for t in opened.receiver.list_tokens() if t.name == "follower-east"]
        assert (token.role, token.datasets) == (Role.REPLICATE, None)
    found = document(capsys, "follower", "list")
    assert [f["name"] for f in found["followers"]] == ["east"]
    [shard] = found["shards"]
    assert (shard["dataset"], shard["shard"]) == ("default.events", 0)
    unknown = ("high_water", "lag_segments", "lag_rows", "lag_seconds", "reported_at")
    assert [shard[name] for name in unknown] == [None] * len(unknown)
    assert run(["follower", "show", "east"]) == 0
    assert "follows every dataset" in capsys.readouterr().out
    gone = document(capsys, "follower", "remove", "east", "--yes")
    assert gone == {"removed": "east", "dry_run": False, "lag_rows": None, "holds_retention_of": []}
    with open_lake(lake) as opened:
        assert opened.followers.list() == []
        assert all(t.revoked_at is not None for t in opened.receiver.list_tokens())
        assert {e.event for e in opened.audit_events(10)} >= {Event.FOLLOWER_ADDED, Event.FOLLOWER_REMOVED}


def test_how_far_a_follower_is_stands_in_the_status(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["follower", "add", "east", "--dataset", "events"]) == 0
    with open_lake(lake) as opened:
        dataset, one = opened.dataset("events"), opened.followers.get("east")
        told = Acknowledgement(1, {dataset.uuid: Seq(0)}, {ShardId(0): Seq(0)}, "the site")
        opened.ledger.change(followers.acknowledge, one, told)
    [shown] = document(capsys, "status")["followers"]
    assert (shown["name"], shown["high_water"], shown["lag_segments"], shown["lag_rows"]) == ("east", 0, 0, 0)
    assert (shown["sealed"], shown["lag_seconds"]) == (None, 0.0)
    assert run(["status"]) == 0
    assert "east" in capsys.readouterr().out


@pytest.mark.parametrize("more", [["--on-lag", "drop"], ["--drop-after", "7d"]])
def test_dropping_rows_for_a_follower_needs_a_bound(
    lake: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    assert "belong together" in plain_error(capsys, "follower", "add", "east", *more, code=2)


def test_a_follower_that_rows_are_dropped_for_says_after_how_long(
    lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = document(capsys, "follower", "add", "east", "--on-lag", "drop", "--drop-after", "7d")
    assert (made["on_lag"], made["drop_after"]) == ("drop", 7 * 86_400)


def test_an_unknown_follower_or_dataset_is_named(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no follower west" in plain_error(capsys, "follower", "show", "west", code=2)
    unknown = ("follower", "add", "east", "--dataset", "nosuch")
    assert "there is no dataset default.nosuch" in plain_error(capsys, *unknown, code=2)
    with open_lake(lake) as opened:  # neither a follower nor its token is left
        assert opened.followers.list() == [] and opened.receiver.list_tokens() == []


def test_the_replication_status_of_a_leader_names_its_followers(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "replication", "status")
    assert (found["role"], found["term"], found["wait_for"], found["leader"], found["shards"]) == (
        "leader", 1, "none", None, [],
    )  # fmt: skip
    assert found["followers"] == []
    assert run(["follower", "add", "east"]) == 0
    [shard] = document(capsys, "replication", "status")["followers"]
    assert (shard["name"], shard["lag_rows"], shard["dropped_upto"]) == ("east", None, None)
    assert run(["replication", "status"]) == 0
    shown = capsys.readouterr().out
    assert "This site leads." in shown and "east" in shown and "never" in shown
    assert "for a terminal" in plain_error(capsys, "replication", "status", "--watch", code=2)


def test_a_site_that_leads_has_nobody_to_follow(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "this site follows no other site" in plain_error(capsys, "follow", "--once", code=3)
