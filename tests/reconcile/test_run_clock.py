"""A run whose clock is ahead acts on nothing, and takes nobody for dead."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from strandline.core.clock import Moment
from strandline.core.records.reconcile_records import AbortReason
from strandline.ledger.maintain import clocks, runs
from strandline.ledger.maintain.runs import MaintenanceKind, NewRun
from strandline.reconcile import run_clock
from strandline.reconcile.run_clock import RunClock
from tests.reconcile.whole_lakes import ACT, REPORT, MakeLake, WholeLake

DAY_NS = 86_400 * 1_000_000_000


@pytest.fixture
def lake(make_lake: MakeLake) -> WholeLake:
    return make_lake(grace_hours=24)


def ahead(monkeypatch: pytest.MonkeyPatch, by_ns: int) -> None:
    clock = SimpleNamespace(time_ns=lambda: time.time_ns() + by_ns)
    monkeypatch.setattr("strandline.reconcile.ledger_context.time", clock)


def test_a_clock_that_was_set_forward_makes_nothing_old_and_nobody_dead(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.run(REPORT)
    with lake.lake.ledger.write() as connection:
        job = runs.begin(connection, NewRun(lake.dataset.id, MaintenanceKind.EXPIRE, "elsewhere:1"), lease_seconds=600)
        assert job is not None
    with monkeypatch.context() as patch:
        ahead(patch, 3 * DAY_NS)
        later = datetime.now(UTC) + timedelta(days=3)
        patch.setattr("strandline.reconcile.ledger_context.utc_now", lambda: later)
        minutes_old = lake.put("just-written.parquet", days_old=0.01)
        assert lake.run(REPORT).aborted is None  # a report says so, and leaves the doubt to who is to act
        run = lake.run(ACT)
        assert run.aborted is AbortReason.GUARD and "the clock was set 3 d ahead" in (run.why or "")
        assert Path(minutes_old).exists()
    with lake.lake.ledger.read() as connection:
        assert runs.get(connection, job).outcome is None


def test_a_clock_that_is_right_is_believed_the_next_time(lake: WholeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    (orphan,) = lake.puts(1)
    lake.run(REPORT)
    ahead(monkeypatch, 3 * DAY_NS)
    assert lake.run(ACT).aborted is AbortReason.GUARD and Path(orphan).exists()
    assert lake.run(ACT).outcome.done.orphans == 1


def test_after_a_boot_a_long_silence_is_doubted_and_a_lake_at_work_is_not(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = run_clock.current_moment
    monkeypatch.setattr(run_clock, "current_moment", lambda wall: Moment(wall, str(wall), here(wall).up))
    for _ in range(2):
        lake.puts(1)
        assert lake.run(ACT).outcome.done.orphans == 1
    (orphan,) = lake.puts(1)
    ahead(monkeypatch, DAY_NS)
    run = lake.run(ACT)
    assert run.aborted is AbortReason.GUARD and "nothing was recorded" in (run.why or "") and Path(orphan).exists()


def test_a_clock_ahead_of_the_databases_is_never_believed(lake: WholeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    (orphan,) = lake.puts(1)
    theirs = timedelta(minutes=10)
    monkeypatch.setattr(clocks, "database_now", lambda connection: datetime.now(UTC) - theirs)
    for _ in range(4):
        run = lake.run(ACT)
        assert run.aborted is AbortReason.GUARD and "ahead of the ledger's database" in (run.why or "")
        assert run.outcome.clock is None and Path(orphan).exists()
    monkeypatch.setattr(clocks, "database_now", lambda connection: datetime.now(UTC) + theirs)
    assert lake.run(ACT).outcome.done.orphans == 1, "one that is behind takes old files for young"


def test_only_a_run_that_was_refused_passes_its_moment_on_with_its_doubt() -> None:
    moment = Moment(datetime(2026, 1, 1, tzinfo=UTC), "boot", timedelta(hours=1))
    for doubt, settled, act, jumped in (
        (None, False, False, False), (None, False, True, False), ("why", False, False, None),
        ("why", False, True, True), ("why", True, True, None),
    ):  # fmt: skip
        told = RunClock(moment, doubt, settled).remembered(act=act)
        assert (None if told is None else told["jumped"]) is jumped
        assert told is None or run_clock._moment(told) == moment
