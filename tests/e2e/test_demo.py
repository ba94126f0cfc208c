"""The demo is the first thing that a newcomer runs: it must work, check its claims, and say so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.cli import demo, demo_delivery, demo_forward, demo_maintain
from strandline.cli.output import Output
from tests.e2e import cli
from tests.e2e.cli import strandline


@pytest.mark.timeout(900)
def test_the_demo_shows_its_steps_and_every_claim_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "TIMEOUT_SECONDS", 500)  # three JVMs, one after another
    done = strandline(tmp_path, "demo", "--dir", "lake")
    assert done.code == 0, done.out + done.err
    assert done.err == ""
    assert "without gap or overlap" in done.out
    for number in range(1, len(demo.STEPS) + 1):
        assert f"\n{number}  " in done.out
    assert done.out.count("✓") >= len(demo.STEPS)
    assert "✗" not in done.out
    assert "\x1b" not in done.out, "no colour in a pipe"
    assert "claims were checked and hold" in done.out
    status = strandline(tmp_path / "lake", "status", "--json").document
    good = demo.MONDAY_ROWS - demo.BAD_ROWS + demo.TUESDAY_ROWS + demo.WEDNESDAY_ROWS
    good += demo_delivery.THURSDAY_ROWS + demo_maintain.LATE_ROWS + demo_maintain.SUNDAY_ROWS + demo_forward.FRIDAY_ROWS
    [dataset] = status["datasets"]
    deleted = demo_maintain.OLD_ROWS + demo_maintain.LATE_ROWS
    assert (dataset["rows"], dataset["open_blocks"]) == (good - deleted, 0)
    assert [s["name"] for s in status["sinks"]] == sorted([*demo_delivery.SINKS, demo_forward.SINK])
    for sink in status["sinks"]:
        late = demo_maintain.SUNDAY_ROWS + demo_forward.FRIDAY_ROWS
        exported = late if sink["name"] == demo_forward.SINK else good
        assert (sink["exported"], sink["lag_rows"], sink["state"]) == (exported, 0, "active")
        assert (sink["held_rows"], sink["held_since"], sink["lost_rows"]) == (0, None, 0)
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
    def wrong(running: demo.Demo) -> None:
        with running.step("Something untrue"):
            running.claim("black is white", False)

    monkeypatch.setattr(demo, "STEPS", (demo.make_dataset, wrong))
    assert not demo.run_demo(Output(as_json=True), tmp_path / "lake", keep=True)
    document = json.loads(capsys.readouterr().out)
    assert not document["ok"]
    assert {"claim": "black is white", "holds": False} in document["claims"]
    assert not demo.run_demo(Output(as_json=False), tmp_path / "lake2", keep=False)
    assert "✗ black is white" in capsys.readouterr().out
    assert not (tmp_path / "lake2").exists()
