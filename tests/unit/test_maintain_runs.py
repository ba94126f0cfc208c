"""Runs of maintenance around the work itself: registered, stored, taken in turns. The work stands in for Spark's."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from strandline.core import failpoints
from strandline.core.actor import SCHEDULE
from strandline.core.calling_off import CALLED_OFF
from strandline.core.errors import AlreadyRunning, CalledOff, RefusedError, Skipped, StorageError, UsageError
from strandline.core.failpoints import FailpointError
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.settings.run import RunSettings
from strandline.core.types import Dataset
from strandline.jobs.loop import LoopControl
from strandline.jobs.schedule import FollowedSchedules, start_delay
from strandline.lake import Lake, open_lake
from strandline.lake_admin import init_lake
from strandline.ledger import audit
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import datasets
from strandline.ledger.maintain import runs
from strandline.ledger.maintain.runs import MaintenanceKind, MaintenanceRun, NewRun
from strandline.maintain.facade import Maintenance
from strandline.maintain.runs import RunControl, StillAlive, perform, plain, rehearse
from strandline.status.maintenance import read_maintenance
from strandline.status.metrics import samples
from strandline.status.reconcile import ReconcileStatus

EVERY_SECOND = "* * * * * *"


@dataclass(frozen=True)
class Worked:
    rows: int
    at: datetime
    kept_for: timedelta = timedelta(days=1)
    why: tuple[str, ...] = ()


def worked(alive: StillAlive = lambda: None) -> Worked:
    return Worked(7, datetime(2026, 3, 2, tzinfo=UTC), why=("so",))


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with init_lake(tmp_path) as made:
        with made.ledger.write() as connection:
            for name in ("default.a", "default.b"):
                datasets.add(connection, name=name, table_uuid=f"uuid-of-{name}")
        yield made


def scheduled(lake: Lake, **settings: Any) -> LakeConfig:
    values = lake.config.settings.model_dump() | {"maintain": settings}
    return LakeConfig(type(lake.config.settings)(**values), lake.config.home)


@dataclass(frozen=True)
class Pretended(Maintenance):
    """Does everything but the work on tables."""

    work: Callable[[Dataset, MaintenanceKind], Any] = lambda dataset, kind: worked()
    done: list[tuple[str, str]] = field(default_factory=list)

    def _do(self, target: Dataset, kind: MaintenanceKind) -> Any:
        self.done.append((target.name, kind.value))
        return self.work(target, kind)

    def _compact(self, target: Dataset, *rest: Any) -> Any:
        return self._do(target, MaintenanceKind.COMPACT)

    def _expire(self, target: Dataset, *rest: Any) -> Any:
        return self._do(target, MaintenanceKind.EXPIRE)

    def _retain(self, target: Dataset, *rest: Any) -> Any:
        return self._do(target, MaintenanceKind.RETAIN)


def pretended(lake: Lake, work: Callable[[Dataset, MaintenanceKind], Any] | None = None, **settings: Any) -> Pretended:
    context = type(lake.maintenance.context)(
        **{
            name: getattr(lake.maintenance.context, name)
            for name in lake.maintenance.context.__dataclass_fields__
            if name != "config"
        },
        config=scheduled(lake, **settings),
    )
    return Pretended(context, work or (lambda dataset, kind: worked()))


@dataclass
class Listener:
    told: list[MaintenanceRun] = field(default_factory=list)

    def scheduled(self, crons: Mapping[str, str], unused_rules: Sequence[str]) -> None: ...

    def begun(self, dataset: Dataset, kind: MaintenanceKind) -> None: ...

    def ended(self, run: MaintenanceRun) -> None:
        self.told.append(run)


def turns(keeper: Maintenance, since: datetime | None = None) -> list[MaintenanceRun]:
    told: list[MaintenanceRun] = []
    long_ago = utc_now() - timedelta(hours=1)
    followed = FollowedSchedules(keeper.context.ledger, {}, since or long_ago)
    keeper.run_what_is_due(threading.Event(), followed, Listener(told))
    return told


def events(lake: Lake) -> list[str]:
    with lake.ledger.read() as connection:
        return [e.event for e in audit.latest(connection)]


# By hand.


def test_what_a_run_found_is_stored_as_it_is_told(lake: Lake) -> None:
    done = perform(lake.maintenance.context, lake.dataset("a"), MaintenanceKind.COMPACT, worked)
    assert done.result == worked()
    assert done.run == lake.maintenance.get(done.run.id)
    assert (
        done.run.result
        == plain(worked())
        == {
            "rows": 7,
            "at": "2026-03-02T00:00:00.000000Z",
            "kept_for": 86_400.0,
            "why": ["so"],
        }
    )
    assert done.run.node.endswith(f":{os.getpid()}")
    assert [r.id for r in lake.maintenance.runs("a")] == [done.run.id]
    assert lake.maintenance.runs("b") == lake.maintenance.runs("a", "expire") == []


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Skipped("the clock jumped"), "skipped"),
        (RefusedError("the table is not fit"), "refused"),
        (UsageError("no such column"), "failed"),
        (ZeroDivisionError("division"), "failed"),
        (KeyboardInterrupt(), "failed"),
    ],
)
def test_how_a_run_ended_is_stored_with_the_reason_and_the_error_goes_on(
    lake: Lake, error: BaseException, outcome: str
) -> None:
    def fail(alive: StillAlive) -> Worked:
        raise error

    with pytest.raises(type(error)):
        perform(lake.maintenance.context, lake.dataset("a"), MaintenanceKind.RETAIN, fail)
    [run] = lake.maintenance.runs()
    assert run.outcome == outcome and run.reason and run.result is None
    assert ("maintain.run_skipped" in events(lake)) == (outcome == "skipped")
    if not isinstance(error, KeyboardInterrupt):
        with pytest.raises(type(error)):
            rehearse(lake.maintenance.context, lake.dataset("a"), MaintenanceKind.RETAIN, fail)
        assert (lake.maintenance.runs()[0].outcome, lake.maintenance.runs()[0].dry_run) == (outcome, True)


@pytest.mark.parametrize("error", [None, RefusedError("the table is not fit")])
def test_how_a_run_ended_is_stored_also_where_the_ledger_is_away_at_that_moment(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    real, failures = runs.end, iter([StorageError("the ledger did not answer"), None, None])

    def end(*given: Any, **values: Any) -> bool:
        stored = real(*given, **values)
        if (away := next(failures)) is not None:
            raise away
        return stored

    def work(alive: StillAlive) -> Worked:
        if error is not None:
            raise error
        return worked()

    monkeypatch.setattr(runs, "end", end)
    with nullcontext() if error is None else pytest.raises(RefusedError):
        perform(lake.maintenance.context, lake.dataset("a"), MaintenanceKind.COMPACT, work)
    [run] = lake.maintenance.runs()
    assert run.outcome == ("done" if error is None else "refused")


def test_a_process_that_stops_does_not_wait_for_a_ledger_that_is_away(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Any] = []

    def away(connection: Any, run: int, *given: Any, **values: Any) -> bool:
        tries.append(run)
        raise StorageError("the ledger did not answer")

    def interrupted(alive: StillAlive) -> Worked:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "end", away)
    stopped = RunControl()
    stopped.stopping.set()
    with pytest.raises(StorageError):
        perform(lake.maintenance.context, lake.dataset("a"), MaintenanceKind.COMPACT, worked, stopped)
    with pytest.raises(KeyboardInterrupt):
        perform(lake.maintenance.context, lake.dataset("b"), MaintenanceKind.COMPACT, interrupted)
    assert len(tries) == len(set(tries)) == 2, "one try each"


def test_a_run_that_was_called_off_is_no_failure_in_the_metrics(lake: Lake) -> None:
    def ok_after(error: Exception) -> list[float]:
        def work(alive: StillAlive) -> Worked:
            raise error

        with pytest.raises(Skipped):
            perform(lake.maintenance.context, lake.dataset("a"), MaintenanceKind.PURGE, work)
        with lake.ledger.read_consistent() as connection:
            care = read_maintenance(lake.config, connection)
        return [s.value for s in samples((), care, ReconcileStatus()) if s.name.endswith("maintenance_last_run_ok")]

    assert ok_after(CalledOff(CALLED_OFF)) == [] and ok_after(Skipped("the clock jumped")) == [0]


def test_a_second_run_is_refused_with_who_is_at_it_and_a_dry_run_is_not(lake: Lake) -> None:
    target, context = lake.dataset("a"), lake.maintenance.context

    def meanwhile(alive: StillAlive) -> Worked:
        with pytest.raises(AlreadyRunning, match=r"compact of default\.a is under way already"):
            perform(context, target, MaintenanceKind.COMPACT, worked)
        assert rehearse(context, target, MaintenanceKind.COMPACT, worked).run.dry_run
        return worked()

    assert perform(context, target, MaintenanceKind.COMPACT, meanwhile).run.outcome == "done"
    assert [r.dry_run for r in lake.maintenance.runs()] == [True, False], "the refused one was never begun"


def test_a_run_shows_signs_of_life_for_as_long_as_it_takes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = pretended(lake)
    monkeypatch.setattr("strandline.maintain.runs._lease_seconds", lambda context: 0.1)
    beaten = threading.Event()

    def work(alive: StillAlive) -> Worked:
        began = lake.maintenance.runs()[0].heartbeat_at
        for _ in range(3000):
            if lake.maintenance.runs()[0].heartbeat_at > began:
                beaten.set()
                break
            threading.Event().wait(0.02)
        return worked()

    perform(keeper.context, lake.dataset("a"), MaintenanceKind.COMPACT, work)
    assert beaten.is_set()


@pytest.mark.parametrize("point", ["maintain.after_begin", "maintain.before_end"])
def test_a_run_that_is_cut_off_stays_registered_until_the_next_takes_it_for_dead(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    failpoints.arm(f"{point}=fail")
    try:
        with pytest.raises(FailpointError):
            perform(lake.maintenance.context, lake.dataset("a"), MaintenanceKind.COMPACT, worked)
    finally:
        failpoints.arm("")
    assert lake.maintenance.runs()[0].outcome is None
    with pytest.raises(AlreadyRunning):
        perform(lake.maintenance.context, lake.dataset("a"), MaintenanceKind.COMPACT, worked)
    monkeypatch.setattr("strandline.maintain.runs._lease_seconds", lambda context: -1)
    with monkeypatch.context() as patched:
        patched.setattr("strandline.maintain.runs.beating", lambda beat, lease_seconds: nullcontext())
        perform(lake.maintenance.context, lake.dataset("a"), MaintenanceKind.COMPACT, worked)
    assert [r.outcome for r in lake.maintenance.runs()] == ["done", "died"]


def test_only_so_many_results_of_a_kind_are_kept(lake: Lake) -> None:
    keeper = pretended(lake, runs_kept=3)
    for _ in range(5):
        perform(keeper.context, lake.dataset("a"), MaintenanceKind.COMPACT, worked)
    perform(keeper.context, lake.dataset("a"), MaintenanceKind.EXPIRE, worked)
    assert [r.kind for r in lake.maintenance.runs()] == ["expire", "compact", "compact", "compact"]


# The rule of a dataset.


def test_what_is_said_by_hand_goes_before_the_rule_and_the_rule_before_the_defaults(lake: Lake) -> None:
    keeper = pretended(lake, retain={"a": {"older_than": "30d", "on_lag": "drop", "drop_after": "7d"}})
    rule = keeper._rule(lake.dataset("a"))
    assert (rule.older_than, rule.on_lag, rule.drop_after, rule.paused_sinks) == (
        timedelta(days=30),
        "drop",
        timedelta(days=7),
        "count",
    )
    changed = keeper._rule(lake.dataset("a"), older_than=timedelta(days=1), on_lag="hold", column="at")
    assert (changed.older_than, changed.column, changed.on_lag, changed.drop_after) == (
        timedelta(days=1),
        "at",
        "hold",
        None,
    )
    with pytest.raises(UsageError, match=r"no retention rule for default\.b") as refused:
        keeper.retain("b")
    assert "--older-than" in str(refused.value.hint)
    with pytest.raises(UsageError, match="drop_after"):
        keeper.retain("b", older_than=timedelta(days=1), on_lag="drop")
    assert keeper.done == [] and keeper.runs() == [], "what cannot be is no run"


def test_a_rule_for_a_dataset_that_is_not_there_is_told(lake: Lake) -> None:
    keeper = pretended(lake, retain={"a": {"older_than": "1d"}, "typo": {"older_than": "1d"}})
    assert keeper.rules_without_dataset() == ["default.typo"]


# By schedule.


def test_what_is_due_is_done_once_in_order_for_every_dataset(lake: Lake) -> None:
    keeper = pretended(
        lake,
        compact_schedule="0 3 * * *",
        retain_schedule="0 3 * * *",
        expire_schedule="0 3 * * *",
        retain={"b": {"older_than": "30d"}},
    )
    yesterday = utc_now() - timedelta(days=1, minutes=1)
    told = turns(keeper, yesterday)
    assert {run.actor for run in told} == {SCHEDULE}
    assert keeper.done == [
        ("default.a", "compact"),
        ("default.a", "expire"),
        ("default.b", "retain"),
        ("default.b", "compact"),
        ("default.b", "expire"),
    ]
    assert all(r.by_schedule and r.outcome == "done" for r in told) and len(told) == 5
    assert turns(keeper, yesterday) == []


def test_nothing_runs_without_a_schedule(lake: Lake) -> None:
    keeper = pretended(lake, retain={"a": {"older_than": "1d"}})
    assert turns(keeper) == [] and keeper.done == []


def test_one_that_fails_is_stored_and_told_and_keeps_no_other_from_its_turn(lake: Lake) -> None:
    def work(dataset: Dataset, kind: MaintenanceKind) -> Worked:
        if dataset.name == "default.a":
            raise ZeroDivisionError("division") if kind is MaintenanceKind.COMPACT else Skipped("the clock jumped")
        return worked()

    keeper = pretended(
        lake,
        work,
        compact_schedule=EVERY_SECOND,
        retain_schedule=EVERY_SECOND,
        retain={"a": {"older_than": "1d"}, "b": {"older_than": "1d"}},
    )
    told = turns(keeper)
    assert [(r.dataset, r.kind.value, r.outcome) for r in told] == [
        ("default.a", "retain", "skipped"),
        ("default.a", "compact", "failed"),
        ("default.b", "retain", "done"),
        ("default.b", "compact", "done"),
    ]
    assert told[0].reason == "the clock jumped" and "ZeroDivisionError" in str(told[1].reason)


def test_two_daemons_share_the_turns(lake: Lake) -> None:
    keeper = pretended(lake, compact_schedule="0 3 * * *")
    yesterday = utc_now() - timedelta(days=1, minutes=1)
    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(turns, keeper, yesterday) for _ in range(2)]:
            each.result()
    assert sorted(keeper.done) == [("default.a", "compact"), ("default.b", "compact")]


def test_a_turn_waits_while_the_same_is_under_way_by_hand(lake: Lake) -> None:
    keeper = pretended(lake, compact_schedule=EVERY_SECOND)
    with lake.ledger.write() as connection:
        new = NewRun(lake.dataset("a").id, MaintenanceKind.COMPACT, "elsewhere:1")
        held = runs.begin(connection, new, lease_seconds=60)
    assert [r.dataset for r in turns(keeper)] == ["default.b"]
    assert held is not None
    with lake.ledger.write() as connection:
        runs.end(connection, held, runs.MaintenanceOutcome.DONE, reason=None, result={})
    assert "default.a" in [r.dataset for r in turns(keeper)]


def test_the_daemon_begins_a_job_as_long_after_its_time_as_the_settings_let_this_process_wait(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.jobs.schedule.node", lambda: "host:1")
    monkeypatch.setattr("strandline.maintain.facade._POLL_SECONDS", 0.001)
    due, second = datetime(2026, 3, 2, 3, tzinfo=UTC), timedelta(seconds=1)
    delays = [start_delay(f"compact default.{name}", "host:1", seconds_max=3600) for name in ("a", "b")]
    assert min(delays) > second
    times, seen = [due - second, due + min(delays) - second, due + max(delays) + second], list[int]()

    @dataclass(frozen=True)
    class Timed(Pretended):
        def run_what_is_due(self, stopping: threading.Event, *rest: Any) -> None:
            now = times.pop(0)
            monkeypatch.setattr("strandline.maintain.facade.utc_now", lambda: now)
            super().run_what_is_due(stopping, *rest)
            seen.append(len(self.done))
            if not times:
                stopping.set()

    context = pretended(lake, compact_schedule="0 3 * * *").context
    late = context.config.settings.model_copy(update={"run": RunSettings(jitter_seconds_max=3600)})
    told: list[str] = []
    Timed(replace(context, config=LakeConfig(late, context.config.home))).run(
        LoopControl(on_trouble=lambda error: told.append(error.message)), Listener()
    )
    assert (seen, told) == ([0, 0, 2], [])


def test_a_job_never_overlaps_itself_even_if_it_takes_longer_than_its_schedule_allows(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile = list[list[str]]()

    def work(dataset: Dataset, kind: MaintenanceKind) -> Worked:
        if dataset.name == "default.a" and not meanwhile:
            with monkeypatch.context() as later:  # an hour later, in another daemon
                later.setattr("strandline.maintain.facade.utc_now", lambda: utc_now() + timedelta(hours=1))
                meanwhile.append([r.dataset for r in turns(keeper)])
        return worked()

    keeper = pretended(lake, work, compact_schedule=EVERY_SECOND)
    assert turns(keeper)[0].dataset == "default.a"
    assert meanwhile == [["default.b"]], "the first run is under way"


def test_the_daemon_goes_on_after_trouble_and_ends_when_it_is_asked_to(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.maintain.facade._POLL_SECONDS", 0.05)
    stopping, failures = threading.Event(), iter([RefusedError("the ledger is away"), ZeroDivisionError("zero")])
    told: list[str] = []

    @dataclass(frozen=True)
    class Troubled(Pretended):
        def run_what_is_due(self, *rest: Any) -> None:
            if (error := next(failures, None)) is not None:
                raise error
            stopping.set()

    keeper = pretended(lake, compact_schedule=EVERY_SECOND)
    Troubled(keeper.context).run(LoopControl(stopping, lambda error: told.append(error.message)), Listener())
    assert told == ["the ledger is away", "unexpected ZeroDivisionError: zero"]


def test_the_id_of_a_run_is_told_as_soon_as_it_is_on_record_and_before_its_work(lake: Lake) -> None:
    context, told = lake.maintenance.context, list[int]()

    def work(alive: StillAlive) -> Worked:
        assert [run.id for run in lake.maintenance.runs("a")] == told
        return worked()

    assert [
        perform(context, lake.dataset("a"), MaintenanceKind.COMPACT, work, RunControl(on_begun=told.append)).run.id
    ] == told


def test_a_run_that_is_called_off_ends_before_it_commits_and_says_so(lake: Lake) -> None:
    control, committed = RunControl(), list[str]()

    def work(alive: StillAlive) -> Worked:
        control.stopping.set()
        alive()
        committed.append("files")
        return worked()

    with pytest.raises(CalledOff):
        perform(lake.maintenance.context, lake.dataset("a"), MaintenanceKind.COMPACT, work, control)
    run = lake.maintenance.runs("a")[0]
    assert (run.outcome, run.reason, committed) == ("skipped", "it was called off", [])


def test_a_run_that_another_process_calls_off_ends_before_it_commits(lake: Lake) -> None:
    committed = list[int]()

    def work(alive: StillAlive) -> Worked:
        for step in range(2):
            alive()
            committed.append(step)
            with open_lake(lake.config.home) as other:  # which did not begin the run
                other.maintenance.cancel(lake.maintenance.runs("a")[0].id)
        return worked()

    with pytest.raises(CalledOff):
        perform(lake.maintenance.context, lake.dataset("a"), MaintenanceKind.COMPACT, work)
    run = lake.maintenance.runs("a")[0]
    assert (run.outcome, run.reason, committed) == ("skipped", "it was called off", [0])
    assert run.stop_asked_at is not None and "maintain.run_called_off" in events(lake)


@pytest.mark.parametrize("by", ["the ledger", "the daemon that stops"])
def test_a_turn_that_is_called_off_ends_and_the_daemon_knows_which_of_both_it_was(lake: Lake, by: str) -> None:
    stopping = threading.Event()

    def work(dataset: Dataset, kind: MaintenanceKind) -> Worked:
        if by == "the ledger":
            lake.maintenance.cancel(lake.maintenance.runs()[0].id)
        else:
            stopping.set()
        return worked()

    @dataclass(frozen=True)
    class Committing(Pretended):
        def _compact(self, target: Dataset, dry_run: bool, progress: Any, alive: StillAlive) -> Any:
            found = self._do(target, MaintenanceKind.COMPACT)
            if target.name == "default.a":
                alive()
            return found

    keeper = pretended(lake, work, compact_schedule=EVERY_SECOND)
    told: list[MaintenanceRun] = []
    followed = FollowedSchedules(lake.ledger, {}, utc_now() - timedelta(hours=1))
    Committing(keeper.context, work, keeper.done).run_what_is_due(stopping, followed, Listener(told))
    assert (told[0].dataset, told[0].outcome) == ("default.a", "skipped")
    assert told[0].reason == "it was called off" and stopping.is_set() == (by != "the ledger")
    assert len(told) == (2 if by == "the ledger" else 1), "only the daemon's end keeps the next job from its turn"


def test_a_dead_run_that_is_called_off_is_closed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    with lake.ledger.write() as connection:
        dead = runs.begin(connection, NewRun(lake.dataset("a").id, MaintenanceKind.COMPACT, "gone:1"), lease_seconds=60)
        connection.exec_driver_sql("UPDATE maintenance_run SET heartbeat_at = heartbeat_at - 3600000000")
    assert dead is not None and lake.maintenance.cancel(dead).outcome == "died"
    assert "maintain.run_called_off" not in events(lake)


def test_a_step_that_is_done_is_told_even_when_the_run_is_called_off() -> None:
    control, told = RunControl(), list[tuple[str, int, int | None]]()
    progress = control.checking(lambda step, done, total: told.append((step, done, total)))
    control.stopping.set()
    progress("deleting rows", 7, 7)
    for done, total in ((0, None), (0, 7)):
        with pytest.raises(CalledOff):
            progress("deleting rows", done, total)
    assert told == [("deleting rows", 7, 7)]
