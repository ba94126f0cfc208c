"""What a person sees of maintenance, without Spark: commands, stored runs, status, and the daemon's lines."""

from __future__ import annotations

import io
import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from strandline.cli.daemon_log import DaemonLog
from strandline.cli.render import maintain
from strandline.core.errors import Skipped, StorageError, UsageError
from strandline.core.types import Seq
from strandline.lake import open_lake
from strandline.ledger.deliver import losses, sinks
from strandline.ledger.deliver.losses import NewLoss, Reason
from strandline.ledger.engine import utc_now
from strandline.ledger.maintain import floors, retention_holds
from strandline.ledger.maintain.runs import MaintenanceKind, MaintenanceOutcome, MaintenanceRun, MaintenanceRunId
from strandline.maintain.compact import Compacted
from strandline.maintain.compact_plan import SkippedFiles as LeftAlone
from strandline.maintain.expire import Expired
from strandline.maintain.purge.plan import PurgeResult
from strandline.maintain.retain_result import HeldRows, LostRows, Retained
from strandline.maintain.runs import StillAlive, perform, plain
from strandline.status.metrics import MetricSample, exposition
from tests.command_line import (
    add_files_sink_here,
    create_dataset_here,
    document,
    error,
    init_lake_here,
    plain_error,
    said,
)

COMPACTED = Compacted(
    files_before=12,
    files_after=3,
    files_rewritten=10,
    files_written=1,
    bytes_rewritten=3 << 20,
    bytes_written=1 << 20,
    rows_written=4000,
    delete_files_before=2,
    delete_files_after=0,
    manifests_before=120,
    manifests_after=1,
    commits=1,
    lost=1,
    left=2,
    skipped=(LeftAlone("day=1", 2, "too few to gain anything"),),
    skipped_files=2,
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    init_lake_here(tmp_path, monkeypatch)
    monkeypatch.setenv("COLUMNS", "250")
    create_dataset_here()
    add_files_sink_here("partner", "out")
    return tmp_path


def told(kind: MaintenanceKind, result: Any, *, dry_run: bool = False) -> str:
    now = utc_now()
    run = MaintenanceRun(
        MaintenanceRunId(7),
        "default.events",
        kind,
        "here:1",
        dry_run,
        False,
        now,
        now,
        now,
        MaintenanceOutcome.DONE,
        None,
        plain(result),
    )
    out = Console(file=io.StringIO(), width=250)
    for line in maintain.render_run(run):
        out.print(line)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


# Commands that end before Spark starts.


def test_what_cannot_be_is_told_before_spark_starts_and_is_no_run(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("compact", "retain", "expire"):
        assert error(capsys, command, "nothing", code=2)["type"] == "NoSuchDataset"
    assert "--older-than 30d" in plain_error(capsys, "retain", "events", code=2)
    assert "90s" in plain_error(capsys, "retain", "events", "--older-than", "soon", code=2)
    assert "drop_after" in plain_error(capsys, "retain", "events", "--older-than", "1d", "--on-lag", "drop", code=2)
    assert error(capsys, "expire", "events", "--keep-min", "0", code=2)["type"] == "UsageError"
    assert "--where" in plain_error(capsys, "purge", "events", code=2)
    assert "--yes" in plain_error(capsys, "purge", "events", "--where", "who = 'ada'", code=3)
    assert document(capsys, "maintenance", "runs") == {"runs": []}


def test_settings_that_cannot_be_are_told_with_their_name(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (home / "strandline.toml").open("a") as file:
        file.write('\n[maintain]\ncompact_schedule = "at night"\n')
    refused = error(capsys, "status", code=2)
    assert "maintain.compact_schedule: `at night` is not a schedule" in refused["message"]


# Stored runs.


def test_a_stored_run_is_listed_and_shown_with_everything_it_stored(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_lake(home) as lake:
        done = perform(lake.maintenance.context, lake.dataset("events"), MaintenanceKind.COMPACT, lambda _: COMPACTED)
    [listed] = document(capsys, "maintenance", "runs")["runs"]
    assert document(capsys, "maintenance", "show", str(done.run.id)) == listed
    assert (listed["kind"], listed["outcome"], listed["dry_run"]) == ("compact", "done", False)
    assert listed["result"]["files_rewritten"] == 10 and listed["result"]["skipped"][0]["partition"] == "day=1"
    assert document(capsys, "maintenance", "runs", "events", "--kind", "expire") == {"runs": []}
    assert "compact" in said(capsys, "maintenance", "runs", "--limit", "1")
    shown = said(capsys, "maintenance", "show", str(done.run.id))
    assert "10 files became 1" in shown and '"bytes_rewritten": 3145728' in shown
    assert error(capsys, "maintenance", "show", "99", code=2)["type"] == "NoSuchRun"


def test_what_went_wrong_with_a_purge_is_stored_without_the_words_that_may_name_a_person(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(alive: StillAlive) -> PurgeResult:
        raise UsageError("the condition `who = 'ada lovelace'` does not fit")

    with open_lake(home) as lake, pytest.raises(UsageError):
        perform(lake.maintenance.context, lake.dataset("events"), MaintenanceKind.PURGE, fail)
    [listed] = document(capsys, "maintenance", "runs")["runs"]
    assert listed["outcome"] == "failed" and "UsageError" in listed["reason"]
    assert "lovelace" not in json.dumps(document(capsys, "audit")) + json.dumps(listed)
    assert b"lovelace" not in (home / "ledger.db").read_bytes()


# Status.


def test_status_tells_what_is_held_and_lost_and_for_whom(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [sink] = document(capsys, "status")["sinks"]
    assert (sink["held_rows"], sink["held_since"], sink["lost_rows"]) == (0, None, 0)
    with open_lake(home) as lake, lake.ledger.write() as connection:
        record, target = sinks.get(connection, "partner"), lake.dataset("events")
        since = utc_now() - timedelta(hours=5)
        retention_holds.keep(connection, target.id, record.id, rows=300, up_to=Seq(900), now=since)
        losses.add(connection, record, Reason.DROPPED, [NewLoss("", None, Seq(20), 20)])
        losses.add(connection, record, Reason.FORGOTTEN, [NewLoss("", Seq(20), Seq(40), None)])
    found = document(capsys, "status")
    [sink] = found["sinks"]
    assert (sink["held_rows"], sink["lost_rows"]) == (300, 20) and sink["held_since"] is not None
    assert sink["unknown_losses"] == 1
    [kept] = found["maintenance"]["datasets"]
    assert [(h["sink"], h["rows"]) for h in kept["held_by"]] == [("partner", 300)]
    text = said(capsys, "status")
    assert "sink partner has held retention back for 5 h: 300 rows are due for deletion and wait for it" in text
    assert "sink partner will not get 20 rows" in text and "sink partner may lack rows that were deleted" in text
    shown = said(capsys, "sink", "show", "partner")
    assert "300 rows that are due for deletion, for 5 h" in shown and "20 rows" in shown


def test_a_sink_that_holds_rows_back_which_it_is_not_owed_is_named_all_the_same(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_lake(home) as lake, lake.ledger.write() as connection:
        record, target = sinks.get(connection, "partner"), lake.dataset("events")
        retention_holds.keep(
            connection, target.id, record.id, rows=0, up_to=Seq(900), now=utc_now() - timedelta(hours=5)
        )
    assert "rows are due for deletion, none of them for this sink" in said(capsys, "status")
    now = utc_now()
    result = Retained(now, None, 9, 8, None, 0, None, None, (HeldRows("partner", 0, now),), (), ())
    assert "held: rows that partner will not get, but has not passed yet" in told(MaintenanceKind.RETAIN, result)


# Metrics.


def test_metrics_tell_what_is_held_since_when_and_by_which_sink(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    since = utc_now() - timedelta(hours=5)
    with open_lake(home) as lake:
        perform(lake.maintenance.context, lake.dataset("events"), MaintenanceKind.COMPACT, lambda _: COMPACTED)
        quiet = said(capsys, "metrics")
        with lake.ledger.write() as connection:
            record, target = sinks.get(connection, "partner"), lake.dataset("events")
            retention_holds.keep(connection, target.id, record.id, rows=300, up_to=Seq(900), now=since)
            losses.add(connection, record, Reason.DROPPED, [NewLoss("", None, Seq(20), 20)])
            floors.raise_to(connection, target.id, Seq(20))
    of = '{dataset="default.events",sink="partner"}'
    assert f"strandline_sink_held_rows{of} 0.0\n" in quiet and "held_since" not in quiet and "floor" not in quiet
    lines = said(capsys, "metrics").splitlines()
    for line in (
        f"strandline_sink_held_rows{of} 300.0",
        f"strandline_sink_lost_rows{of} 20.0",
        f"strandline_sink_lag_rows{of} 0.0",
        'strandline_sink_state{dataset="default.events",sink="partner",state="active"} 1.0',
        'strandline_dataset_floor{dataset="default.events"} 20.0',
        'strandline_dataset_held_rows{dataset="default.events"} 300.0',
        'strandline_maintenance_last_run_ok{dataset="default.events",kind="compact"} 1.0',
    ):
        assert line in lines
    [held_since] = [x for x in lines if x.startswith("strandline_sink_held_since_timestamp_seconds")]
    assert abs(float(held_since.split()[-1]) - since.timestamp()) < 1
    samples = [x for x in lines if not x.startswith("#")]
    assert all(re.fullmatch(r'strandline_[a-z_]+(\{([a-z]+="[^"]*",?)+\})? [0-9.e+-]+', x) for x in samples)
    typed = [x.split()[2] for x in lines if x.startswith("# TYPE")]
    assert list(dict.fromkeys(re.split("[{ ]", x)[0] for x in samples)) == typed, "together, each under its type"
    told_as_json = document(capsys, "metrics")["metrics"]
    assert {"name": "strandline_sink_held_rows", "labels": {"sink": "partner", "dataset": "default.events"},
            "value": 300.0} in told_as_json  # fmt: skip


def test_names_in_metrics_are_escaped() -> None:
    assert exposition([MetricSample("strandline_dataset_floor", {"dataset": 'a"b\\c\nd'}, 1)]).splitlines()[-1] == (
        'strandline_dataset_floor{dataset="a\\"b\\\\c\\nd"} 1.0'
    )


def test_status_tells_the_last_run_of_each_kind_and_what_needs_attention(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def skip(alive: StillAlive) -> Compacted:
        raise Skipped("the clock was set 24.0 hours ahead")

    with open_lake(home) as lake:
        perform(lake.maintenance.context, lake.dataset("events"), MaintenanceKind.COMPACT, lambda _: COMPACTED)
        with pytest.raises(Skipped):
            perform(lake.maintenance.context, lake.dataset("events"), MaintenanceKind.RETAIN, skip)
    with (home / "strandline.toml").open("a") as file:
        file.write('\n[maintain]\nretain_schedule = "0 3 * * *"\n[maintain.retain.evnts]\nolder_than = "30d"\n')
    found = document(capsys, "status")["maintenance"]
    assert found["schedules"] == {"retain": "0 3 * * *", "compact": None, "expire": None, "number": None}
    assert found["rules_without_dataset"] == ["default.evnts"]
    assert {r["kind"]: r["outcome"] for r in found["datasets"][0]["last"]} == {"compact": "done", "retain": "skipped"}
    text = said(capsys, "status")
    assert "last compact" in text
    assert "default.events: retain skipped a run: the clock was set 24.0 hours ahead" in text
    assert "for default.evnts has no effect" in text


# What each kind says.


def test_compaction_says_what_became_of_the_files_and_what_it_left_alone() -> None:
    text = told(MaintenanceKind.COMPACT, COMPACTED)
    for part in (
        "10 files became 1, with 4,000 rows and 3.0 MiB",
        "manifests: 120, now 1",
        "delete files: 2, now 0",
        "1 commit failed because others committed first, and 2 files are left for the next run",
        "left alone: 2 files of day=1: too few to gain anything",
    ):
        assert part in text
    assert "would become 1" in told(MaintenanceKind.COMPACT, COMPACTED, dry_run=True)
    assert "nothing was changed" in told(MaintenanceKind.COMPACT, COMPACTED, dry_run=True)
    nothing = Compacted(3, 3, *[0] * 12, skipped=(), skipped_files=0)
    assert "nothing to gain in 3 files" in told(MaintenanceKind.COMPACT, nothing)


def test_retention_says_what_went_what_is_held_and_what_is_lost() -> None:
    now = utc_now()
    result = Retained(
        now, "day", 900, 800, 600, 600, None, 600, (HeldRows("partner", 200, now),), (LostRows("slow", 9, 1),), ("x",)
    )
    text = told(MaintenanceKind.RETAIN, result)
    for part in ("600 rows with day before", "are deleted", "held: 200 rows that partner does not have yet"):
        assert part in text
    assert "lost: slow will not get 9 rows" in text and "held any more for x" in text and "the floor is at 600" in text
    assert "would be deleted" in told(MaintenanceKind.RETAIN, result, dry_run=True)
    assert "can be deleted" in told(
        MaintenanceKind.RETAIN, Retained(now, None, None, None, None, 0, None, None, (), (), ())
    )


def test_expiry_says_what_went_and_what_stays() -> None:
    result = Expired(utc_now(), 9, 8, None, 1, 2, 4, 0, 5, 8, ())
    text = told(MaintenanceKind.EXPIRE, result)
    assert "8 snapshots are gone, 1 stays" in text and "4 data files" in text
    assert "kept: 1 other branch and 2 tags" in text
    assert "no snapshot is old enough; 9 stay" in told(
        MaintenanceKind.EXPIRE, Expired(utc_now(), 9, 0, None, 0, 0, 0, 0, 0, 0, ())
    )


# The daemon.


def test_the_daemon_tells_of_every_run_and_of_trouble(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (home / "strandline.toml").open("a") as file:
        file.write('\n[maintain]\nretain_schedule = "0 3 * * *"\n[maintain.retain.evnts]\nolder_than = "30d"\n')
    capsys.readouterr()
    journal = DaemonLog(as_json=True)
    with open_lake(home) as lake:
        target = lake.dataset("events")
        journal.scheduled({"retain": "0 3 * * *"}, lake.maintenance.rules_without_dataset())
        journal.begun(target, MaintenanceKind.COMPACT)
        journal.ended(perform(lake.maintenance.context, target, MaintenanceKind.COMPACT, lambda _: COMPACTED).run)
    journal.failed("maintenance_failed", StorageError("the ledger did not answer"))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == [
        "scheduled",
        "rule_without_dataset",
        "maintaining",
        "maintained",
        "maintenance_failed",
    ]
    assert (lines[3]["kind"], lines[3]["dataset"], lines[3]["outcome"]) == ("compact", "default.events", "done")
