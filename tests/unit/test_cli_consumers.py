"""What a person sees of consumers, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.cli.main import run
from strandline.core.types import Seq
from strandline.lake import open_lake
from strandline.ledger.engine import utc_now
from strandline.ledger.read import consumers
from strandline.ledger.read.consumers import Consumer, ConsumerTerms
from strandline.status import metrics
from tests.command_line import document, plain_error
from tests.unit.test_cli_followers import lake

__all__ = ["lake"]


def begin(lake: Path, name: str, dataset: str = "events", at: int | None = None) -> Consumer:
    with open_lake(lake) as opened:
        known = opened.dataset(dataset)
        return opened.ledger.change(consumers.begin, known, name, None if at is None else Seq(at), ConsumerTerms())


def test_consumers_are_listed_shown_and_removed(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["consumer", "list"]) == 0
    assert "No consumers yet" in capsys.readouterr().out
    assert run(["dataset", "create", "other", "--like", "sample.jsonl"]) == 0
    begin(lake, "report")
    begin(lake, "report", "other", 7)
    begin(lake, "audit")
    capsys.readouterr()
    found = document(capsys, "consumer", "list")["consumers"]
    assert [(c["name"], c["dataset"], c["watermark"], c["lag_rows"]) for c in found] == [
        ("audit", "default.events", None, 0),
        ("report", "default.events", None, 0),
        ("report", "default.other", 7, 0),
    ]
    assert len(document(capsys, "consumer", "show", "report")["consumers"]) == 2
    assert "reads 2 datasets" in plain_error(capsys, "consumer", "remove", "report", "--yes", code=2)
    gone = document(capsys, "consumer", "remove", "report", "--dataset", "other", "--yes")
    assert gone == {"removed": "report", "dataset": "default.other", "dry_run": False, "lag_rows": 0}
    assert [c["dataset"] for c in document(capsys, "consumer", "show", "report")["consumers"]] == ["default.events"]
    assert "Consumers: audit, report." in plain_error(capsys, "consumer", "show", "nobody", code=2)


def test_how_far_a_consumer_is_stands_in_status_and_metrics(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = begin(lake, "report", at=3)
    with open_lake(lake) as opened:
        opened.ledger.change(consumers.keep_holds, made.dataset, [made.id], utc_now())
        opened.ledger.change(consumers.drop_for, made.id, Seq(9))
        samples = metrics.load_samples(opened.config, opened.ledger, opened.id)
    [shown] = document(capsys, "status")["consumers"]
    assert (shown["name"], shown["watermark"], shown["lag_rows"], shown["dropped_upto"]) == ("report", 3, 0, 9)
    named = {s.name.removeprefix("strandline_consumer_"): s.value for s in samples if "_consumer_" in s.name}
    assert named.keys() == {"watermark", "lag_rows", "lag_seconds", "held_since_timestamp_seconds", "dropped_upto"}
    assert (named["watermark"], named["lag_rows"]) == (3, 0)
    assert run(["status"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "consumer report has held retention of default.events back" in out
    assert "will not get rows of default.events up to 9" in out
