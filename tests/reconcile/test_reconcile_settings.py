"""The reconciler's settings and schedule."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import AfterValidator, ValidationError

import strandline
from strandline.core.actor import SCHEDULE
from strandline.core.errors import LedgerBusy, StrandlineError
from strandline.core.records.reconcile_records import AbortReason, Asked, ReconcileRun
from strandline.core.settings.reconcile import AllowedNumbers, ReconcileSettings
from strandline.jobs.loop import LoopControl
from strandline.jobs.schedule import start_delay
from strandline.ledger.reconcile import reconcile_runs
from strandline.reconcile.facade import Reconciler
from strandline.status.reconciliation import load_reconciliation
from tests.reconcile.whole_lakes import WholeLake


def unheard(_: object) -> None: ...


@dataclass
class Listener:
    sweeping: Callable[[Asked], None] = unheard
    swept: Callable[[ReconcileRun], None] = unheard
    sweep_busy: Callable[[Asked], None] = unheard
    sweep_scheduled: Callable[[ReconcileSettings], None] = unheard


def test_the_defaults_report_only_and_are_off() -> None:
    s = ReconcileSettings()
    assert (s.enabled, s.dry_run, s.delete_foreign, s.schedule) == (False, True, False, "17 4 * * *")
    assert (s.grace_hours, s.clock_skew_seconds, s.deletes_max_per_run, s.deletes_max_share) == (24, 300, 10_000, 0.2)
    assert (s.references_max, s.batch_size, s.recheck_concurrency, s.run_seconds_max) == (2_000_000, 1_000, 8, 1_800)
    assert (s.prefix_timeout_seconds, s.unknown_roots_max, s.share_floor_files) == (300, 1_000, 100)
    assert (s.samples_max, s.errors_max, s.history_runs, s.quarantine_days) == (10, 32, 100, 7)


@pytest.mark.parametrize(
    ("name", "given", "taken"),
    [
        ("recheck_concurrency", 0, 1),
        ("recheck_concurrency", 65, 64),
        ("unknown_roots_max", -1, 1_000),
        ("unknown_roots_max", 0, 0),
        ("unknown_roots_max", 5_000_000, 1_000_000),
        ("batch_size", 5_000, 1_000),
        ("deletes_max_share", 7, 1),
        ("grace_hours", 0.5, 1),
        ("grace_hours", 1e9, 8_760),
        ("grace_hours", math.inf, 8_760),
        ("grace_hours", "48", 48),
        ("history_runs", 0, 1),
        ("deletes_max_share", "1e9", 1),
        ("references_shrink_max", "-0.5", 0),
        ("deletes_max_per_run", 1e9, 1_000_000),
    ],
)
def test_numbers_outside_their_bounds_are_taken_for_the_bound(name: str, given: object, taken: object) -> None:
    assert getattr(ReconcileSettings.model_validate({name: given}), name) == taken


@pytest.mark.parametrize("name", [n for n, f in ReconcileSettings.model_fields.items() if f.annotation in (int, float)])
def test_every_number_has_its_bounds(name: str) -> None:
    after = [v.func for v in ReconcileSettings.model_fields[name].metadata if isinstance(v, AfterValidator)]
    [(least, most)] = [(b.least, b.most) for b in after if isinstance(b, AllowedNumbers)]
    wide = [getattr(ReconcileSettings.model_validate({name: value}), name) for value in (most, most + 1, least)]
    assert wide == [most, most, least]
    below = getattr(ReconcileSettings.model_validate({name: least - 1}), name)
    assert below == {"unknown_roots_max": 1_000, "grace_hours": 24}.get(name, least)


@pytest.mark.parametrize("given", [0, -5, "0", "long", "", math.nan, None, True, [], -math.inf])
def test_a_grace_window_that_is_none_is_taken_for_the_default_and_warned_of(
    given: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert ReconcileSettings.model_validate({"grace_hours": given}).grace_hours == 24
    (warning,) = caplog.records
    assert "reconcile.grace_hours" in warning.getMessage() and "24" in warning.getMessage()


@pytest.mark.parametrize(
    "values",
    [
        {"schedule": "at night"},
        {"gracehours": 3},
        {"deletes_max_share": math.nan},
        {"deletes_max_share": "nan"},
        {"references_shrink_max": math.nan},
        {"references_shrink_max": "inf"},
    ],
)
def test_what_is_not_a_setting_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ReconcileSettings.model_validate(values)


@pytest.mark.parametrize(("dry_run", "acts"), [(True, False), (False, True)])
def test_a_run_by_schedule_acts_only_where_the_settings_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dry_run: bool, acts: bool
) -> None:
    lake = WholeLake(tmp_path / "lake", enabled=True, dry_run=dry_run)
    assert lake.lake.reconciler.run_if_due(Listener()) is None  # from now on it is watched
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    monkeypatch.setattr("strandline.reconcile.facade.utc_now", lambda: tomorrow)
    run = lake.lake.reconciler.run_if_due(Listener())
    assert run is not None and run.actor == SCHEDULE
    assert run is not None and run.asked == Asked(act=acts)
    lake.lake.close()


def test_a_run_by_schedule_begins_as_long_after_its_time_as_the_settings_let_this_process_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.jobs.schedule.node", lambda: "host:1")
    lake = WholeLake(tmp_path / "lake", {"run": {"jitter_seconds_max": 3600}}, enabled=True, schedule="0 3 * * *")
    due, second = datetime(2026, 3, 2, 3, tzinfo=UTC), timedelta(seconds=1)
    delay = start_delay("reconcile", "host:1", seconds_max=3600)
    assert delay > second
    for now, runs in ((due - second, 0), (due + delay - second, 0), (due + delay + second, 1)):
        monkeypatch.setattr("strandline.reconcile.facade.utc_now", lambda now=now: now)
        lake.lake.reconciler.run_if_due(Listener())
        assert len(lake.lake.reconciler.runs()) == runs, now
    lake.lake.close()


def test_a_daemon_that_is_restarted_across_its_moment_makes_the_run_up_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = WholeLake(tmp_path / "lake", enabled=True)
    start = datetime.now(UTC)
    monkeypatch.setattr("strandline.reconcile.facade.utc_now", lambda: start)
    assert lake.lake.reconciler.run_if_due(Listener()) is None
    for day in (1, 4):
        monkeypatch.setattr("strandline.reconcile.facade.utc_now", lambda day=day: start + timedelta(days=day))
        # The run itself is stamped by the real clock; this is when it was.
        with strandline.open(lake.home) as restarted:
            assert restarted.reconciler.run_if_due(Listener()) is not None
            assert restarted.reconciler.run_if_due(Listener()) is None
    lake.lake.close()


def test_the_next_run_that_is_shown_is_the_one_that_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = datetime.now(UTC)
    first = start.replace(minute=0, second=0, microsecond=0) + timedelta(hours=6)
    lake = WholeLake(tmp_path / "lake", enabled=True, dry_run=False, schedule=f"0 {first.hour} * * *")
    reconciler = lake.lake.reconciler

    def shown(now: datetime) -> datetime | None:
        monkeypatch.setattr("strandline.reconcile.facade.utc_now", lambda: now)
        return load_reconciliation(lake.lake.config, lake.lake.ledger, reconciler).next_run

    events = lake.lake.audit_events(events_max=10)
    assert shown(start) == first and lake.lake.audit_events(events_max=10) == events, "who reads follows no schedule"
    assert reconciler.run_if_due(Listener()) is None
    reconciler.run(Asked())  # a report is not what is due
    missed = first + timedelta(hours=20)
    with strandline.open(lake.home) as restarted:
        reconciler = restarted.reconciler
        assert shown(missed) == first, "what was missed is due now"
        assert reconciler.run_if_due(Listener()) is not None
    reconciler = lake.lake.reconciler
    assert shown(datetime.now(UTC)) == first, "the run that was made up for is stamped by the real clock"
    assert reconciler.run_if_due(Listener()) is None
    lake.lake.close()


def test_a_run_that_is_due_waits_for_another_that_is_under_way_and_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = WholeLake(tmp_path / "lake", enabled=True, dry_run=False)
    lake.append()
    (orphan,) = lake.puts(1)
    assert lake.lake.reconciler.run_if_due(Listener()) is None  # not yet
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    monkeypatch.setattr("strandline.reconcile.facade.utc_now", lambda: tomorrow)
    lease = reconcile_runs.take_lease(lake.lake.ledger, seconds=60)
    assert lease is not None
    begun, busy = list[Asked](), list[Asked]()

    def poll() -> ReconcileRun | None:
        return lake.lake.reconciler.run_if_due(Listener(sweeping=begun.append, sweep_busy=busy.append))

    assert poll() is None and poll() is None
    assert (begun, busy) == ([], [Asked(act=True)]), "it is said once"
    reconcile_runs.leases.release(lake.lake.ledger, lease)
    run = poll()
    assert run is not None and run.outcome.done.orphans == 1 and not Path(orphan).exists()
    assert begun == busy == [Asked(act=True)] and poll() is None, "once"
    lake.lake.close()


@pytest.fixture
def two_daemons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Reconciler, Reconciler]]:
    """Both watch the schedule of one lake since before a run was due."""
    now = datetime.now(UTC)
    hours_ago = f"0 {(now.hour - 6) % 24} * * *"
    lake = WholeLake(tmp_path / "lake", enabled=True, dry_run=False, schedule=hours_ago)
    lake.append()
    with closing(lake.lake), strandline.open(lake.home) as other:
        one, two = lake.lake.reconciler, other.reconciler
        monkeypatch.setattr("strandline.reconcile.facade.utc_now", lambda: now - timedelta(days=1, seconds=1))
        assert one.run_if_due(Listener()) is None and two.run_if_due(Listener()) is None
        monkeypatch.setattr("strandline.reconcile.facade.utc_now", lambda: datetime.now(UTC))
        yield one, two


def test_of_two_daemons_one_takes_the_turn(two_daemons: tuple[Reconciler, Reconciler]) -> None:
    one, two = two_daemons
    one.run(Asked())  # a report is not what is due
    assert one.run_if_due(Listener()) is not None and two.run_if_due(Listener()) is None
    assert len(one.runs()) == 2


def test_a_turn_that_another_daemon_has_taken_before_the_lease_is_free_is_not_taken_again(
    two_daemons: tuple[Reconciler, Reconciler], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = two_daemons
    context = two._context

    def slower(*arguments: Any) -> Any:  # it has seen that a run is due, and has no lease yet
        assert one.run_if_due(Listener()) is not None
        return context(*arguments)

    monkeypatch.setattr(two, "_context", slower)
    assert two.run_if_due(Listener()) is None
    monkeypatch.setattr(two, "_context", context)
    assert two.run_if_due(Listener()) is None and len(one.runs()) == 1


def test_the_daemons_loop_outlives_a_failure_and_calls_its_run_off_when_it_is_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.reconcile.facade._POLL_SECONDS", 0.05)
    lake = WholeLake(tmp_path / "lake", enabled=True, schedule="* * * * * *", dry_run=False)
    lake.append()
    (orphan,) = lake.puts(1)
    stopping, told, ended = threading.Event(), list[StrandlineError](), list[ReconcileRun]()
    context = lake.lake.reconciler._context

    def busy_once(*_: object) -> Any:
        monkeypatch.setattr(lake.lake.reconciler, "_context", context)
        raise LedgerBusy("the ledger is busy")

    def begin(asked: Asked) -> None:
        if told:
            stopping.set()  # a run has begun, and has not listed anything yet

    monkeypatch.setattr(lake.lake.reconciler, "_context", busy_once)
    with ThreadPoolExecutor(1) as pool:
        control = LoopControl(stopping, told.append)
        loop = pool.submit(lake.lake.reconciler.run_on_schedule, control, Listener(sweeping=begin, swept=ended.append))
        loop.result(120)
    assert [e.message for e in told] == ["the ledger is busy"]
    assert [run.aborted for run in ended] == [AbortReason.CANCELLED] and Path(orphan).exists()
    lake.lake.close()
