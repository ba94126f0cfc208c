"""`strandline audit` and `strandline task`, and what schedules and threads are recorded as."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from strandline.cli.main import run
from strandline.core.actor import SCHEDULE, Actor, Trigger, acting_as, current_actor, system_user
from strandline.core.errors import CalledOff, StorageError
from strandline.core.records.audit_events import Event
from strandline.ingest import ingest_files
from strandline.lake import open_lake
from strandline.ledger import audit
from strandline.ledger.tasks import TaskOutcome
from tests.command_line import document, error, init_lake_here, plain_error

ANN = Actor("ann", Trigger.API)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    init_lake_here(tmp_path, monkeypatch)
    capsys.readouterr()
    return tmp_path


def test_the_log_is_filtered_by_who_how_and_what_and_paged(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document(capsys, "token", "create", "one")
    with open_lake(home) as lake, lake.ledger.write() as connection:
        for actor in (ANN, SCHEDULE):
            with acting_as(actor):
                audit.record(connection, Event.SINK_PAUSED, sink="partner")
                audit.record(connection, Event.RUN_STARTED, run=7)

    def told(*arguments: str) -> list[tuple[str, str]]:
        return [(e["event"], e["actor"]) for e in document(capsys, "audit", *arguments)["events"]]

    newest = [("reconcile.run_started", "schedule"), ("sink.paused", "schedule")]
    of_ann = [("reconcile.run_started", "ann"), ("sink.paused", "ann")]
    assert told() == [*newest, *of_ann, ("token.created", system_user())]
    assert told("--actor", "ann") == told("--trigger", "api") == of_ann
    assert told("--event", "sink", "--trigger", "schedule") == [("sink.paused", "schedule")]
    assert told("--event", "reconcile.run_", "--actor", "ann") == of_ann[:1]
    first = document(capsys, "audit", "--limit", "2")
    assert {"id", "at", "event", "actor", "trigger", "detail"} == set(first["events"][0])
    second = document(capsys, "audit", "--limit", "2", "--before", str(first["next"]))
    third = document(capsys, "audit", "--limit", "2", "--before", str(second["next"]))
    assert [len(page["events"]) for page in (first, second, third)] == [2, 2, 1] and third["next"] is None
    assert run(["audit", "--limit", "1"]) == 0
    said = capsys.readouterr().out
    assert "reconcile.run_started" in said and "schedule" in said and f"--before {first['events'][0]['id']}" in said
    assert run(["audit", "--actor", "nobody"]) == 0 and "Nothing" in capsys.readouterr().out
    assert "no event's name begins" in error(capsys, "audit", "--event", "paused", code=2)["message"]
    assert error(capsys, "audit", "--trigger", "magic", code=2)


def test_a_task_is_listed_shown_and_called_off_from_the_command_line(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert document(capsys, "task", "list") == {"tasks": [], "next": None}
    assert run(["task", "list"]) == 0 and "No tasks yet" in capsys.readouterr().out

    def until_called_off(stopping: threading.Event) -> Mapping[str, Any]:
        assert stopping.wait(60)
        raise CalledOff("called off at the next step", hint="Begin again.")

    def fails(stopping: threading.Event) -> Mapping[str, Any]:
        raise StorageError("the bucket is away", hint="Look at it.")

    with open_lake(home) as lake, acting_as(ANN):
        done, failed = lake.tasks.start("tick", "", lambda s: {"rows": 7}), lake.tasks.start("verify", "out", fails)
        lasting = lake.tasks.start("recover", "out", until_called_off)
        while any(lake.tasks.get(t.id).outcome is None for t in (done, failed)):
            threading.Event().wait(0.01)
        shown = document(capsys, "task", "show", str(lasting.id))
        assert (shown["outcome"], shown["actor"], shown["trigger"]) == (None, "ann", "api")
        assert run(["task", "list"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert any("under way" in line and "ann (api)" in line for line in lines)
        assert any("the lake" in line and "done" in line for line in lines)
        assert any("the bucket is away" in line for line in lines)
        assert document(capsys, "task", "cancel", str(lasting.id))["stop_asked_at"] is not None
        assert run(["task", "show", str(lasting.id)]) == 0
        assert "called off, not yet ended" in capsys.readouterr().out
        lake.tasks.cancel(lasting.id)  # the command's process cannot reach the thread; this one can
    assert document(capsys, "task", "show", str(lasting.id))["outcome"] == TaskOutcome.CANCELLED
    page = document(capsys, "task", "list", "--limit", "2")
    assert [t["task"] for t in page["tasks"]] == [lasting.id, failed.id] and page["next"] == failed.id
    [rest] = document(capsys, "task", "list", "--before", str(page["next"]))["tasks"]
    assert rest["result"] == {"rows": 7} and "lease_until" not in rest
    assert run(["task", "show", str(failed.id)]) == 0 and "Look at it." in capsys.readouterr().out
    assert run(["task", "show", str(done.id)]) == 0 and '"rows": 7' in capsys.readouterr().out
    assert "there is no run 99" in plain_error(capsys, "task", "show", "99", code=2)


def test_threads_that_a_stage_starts_act_for_whoever_started_it() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool, acting_as(ANN):
        assert ingest_files._in_parallel(pool, [1, 2], lambda n: current_actor()) == [ANN, ANN]
