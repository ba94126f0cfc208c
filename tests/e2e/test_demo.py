"""The demo is the first thing that a newcomer runs: it must work, check its claims, and say so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest

from strandline.cli.demo import delivery, follower, forward, ingest_and_read, maintain, take_over
from strandline.cli.output import Output
from strandline.lake import open_lake
from tests.e2e import cli
from tests.e2e.cli import strandline
from tests.serve.conftest import serving


@pytest.mark.timeout(900)
def test_the_demo_shows_its_steps_and_every_claim_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "TIMEOUT_SECONDS", 500)  # three JVMs, one after another
    done = strandline(tmp_path, "demo", "--dir", "lake")
    assert done.code == 0, done.out + done.err
    assert done.err == ""
    assert "without gap or overlap" in done.out
    for number in range(1, len(ingest_and_read.STEPS) + 1):
        assert f"\n{number}  " in done.out
    assert done.out.count("✓") >= len(ingest_and_read.STEPS)
    assert "✗" not in done.out
    assert "\x1b" not in done.out, "no colour in a pipe"
    assert "claims were checked and hold" in done.out
    assert "http://127.0.0.1:8421 with the token sl_" in done.out
    status = strandline(tmp_path / "lake", "status", "--json").document
    good = (
        ingest_and_read.MONDAY_ROWS
        - ingest_and_read.BAD_ROWS
        + ingest_and_read.TUESDAY_ROWS
        + ingest_and_read.WEDNESDAY_ROWS
    )
    good += delivery.THURSDAY_ROWS + maintain.LATE_ROWS + maintain.SUNDAY_ROWS + forward.FRIDAY_ROWS
    [dataset] = status["datasets"]
    deleted = maintain.OLD_ROWS + maintain.LATE_ROWS
    assert (dataset["rows"], dataset["open_blocks"]) == (good + take_over.NEW_ROWS - deleted, 0)
    assert [s["name"] for s in status["sinks"]] == sorted([*delivery.SINKS, forward.SINK])
    for sink in status["sinks"]:  # as far as this site came while it led
        late = maintain.SUNDAY_ROWS + forward.FRIDAY_ROWS
        assert sink["exported"] == (late if sink["name"] == forward.SINK else good)
        assert (sink["held_rows"], sink["held_since"], sink["lost_rows"]) == (0, None, 0)
    leads = strandline(tmp_path / "lake" / follower.FOLLOWER, "status", "--json").document
    [there] = leads["datasets"]
    assert (there["rows"], there["sealed"], leads["site"]["term"]) == (dataset["rows"], dataset["sealed"], 17)
    for sink in leads["sinks"]:
        goes_on = sink["name"] in delivery.SINKS  # nobody receives for the other any more
        assert (sink["exported"], sink["lag_rows"]) == ((take_over.NEW_ROWS, 0) if goes_on else (0, take_over.NEW_ROWS))
        assert (sink["state"], sink["held_rows"], sink["lost_rows"]) == ("active", 0, 0)
    [shard] = leads["followers"]
    assert (shard["name"], shard["lag_rows"], shard["sealed"]) == (take_over.OLD_LEADER, 0, dataset["sealed"])
    seen = strandline(tmp_path / "lake", "replication", "status", "--json").document
    assert (seen["role"], seen["leader"]["error"]) == ("follower", None)
    assert [s["applied"] for s in seen["shards"]] == [dataset["sealed"]]
    assert [s["rows"] for s in seen["set_aside"]] == [take_over.LATE_ROWS]
    [kept] = status["maintenance"]["datasets"]
    assert kept["floor"] > 0 and {r["kind"]: r["outcome"] for r in kept["last"]} == dict.fromkeys(
        ("compact", "expire", "retain"), "done"
    )
    again = strandline(tmp_path, "demo", "--dir", "lake", "--json")
    assert again.code == 3
    assert "not empty" in again.document["error"]["message"]


def test_a_claim_that_does_not_hold_ends_the_demo_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(running: ingest_and_read.Demo) -> None:
        with running.step("Something untrue"):
            running.claim("black is white", False)

    monkeypatch.setattr(ingest_and_read, "STEPS", (ingest_and_read.make_dataset, wrong))
    assert not ingest_and_read.run_demo(Output(as_json=True), tmp_path / "lake", keep=True)
    document = json.loads(capsys.readouterr().out)
    assert not document["ok"]
    assert {"claim": "black is white", "holds": False} in document["claims"]
    assert not ingest_and_read.run_demo(Output(as_json=False), tmp_path / "lake2", keep=False)
    assert "✗ black is white" in capsys.readouterr().out
    assert not (tmp_path / "lake2").exists()


def test_the_demo_can_be_looked_at_before_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def look(home: Path) -> None:
        [secret] = re.findall(r"with the token (sl_\S+)", capsys.readouterr().out)
        with open_lake(home / "strandline.toml") as lake, serving(lake) as url:
            answer = httpx.get(url, headers={"Authorization": f"Bearer {secret}"}, timeout=60)
            seen.append(answer.raise_for_status().text)

    monkeypatch.setattr(ingest_and_read, "STEPS", (ingest_and_read.make_dataset,))
    assert ingest_and_read.run_demo(Output(as_json=False), tmp_path / "lake", keep=False, serve=look)
    assert len(seen) == 1 and f"default.{ingest_and_read.DATASET}" in seen[0]
    assert not (tmp_path / "lake").exists()
