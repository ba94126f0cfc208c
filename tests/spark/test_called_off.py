"""Whatever work is called off, its Spark jobs are cancelled: that of tasks, of runs, of dry runs, and of settling."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from strandline.core.calling_off import called_off_by
from strandline.core.errors import CalledOff, RefusedError, UsageError
from strandline.core.records.reconcile_records import Asked
from strandline.core.roles import Role
from strandline.iceberg.session.job_watch import cancel_when_called_off, watched
from strandline.ingest.facade import Ingestion
from strandline.jobs.loop import LoopControl
from strandline.lake import Lake
from strandline.ledger.ingest import restored_blocks, table_states
from tests.conftest import MakeHome
from tests.serve.conftest import API, Served, serving
from tests.spark.lakes import create, new_lake, numbers
from tests.spark.stuck_job import StuckJob
from tests.waiting import eventually

VERIFY = "strandline.deliver.verify.run"
MAINTENANCE = "strandline.maintain.facade.Maintenance"
SEARCH = "strandline.maintain.purge.table_rows.RowSearch"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("called-off")
    with new_lake(folder / "lake", make_home) as lake:
        create(lake, "events", {"n": "long"})
        lake.append("events", numbers(lake, 1, 10))
        lake.delivery.add("out", "events", "files", {"path": str(folder / "out")})
        secrets = {Role.ADMIN: lake.receiver.create_token("admin", role=Role.ADMIN)[1]}
        with serving(lake) as url:
            yield Served(lake, url, secrets)


@pytest.fixture
def lake(served: Served) -> Lake:
    return served.lake


@pytest.fixture
def admin(served: Served) -> Iterator[httpx.Client]:
    with served.as_role() as client:
        yield client


@pytest.fixture
def stuck(lake: Lake) -> Iterator[StuckJob]:
    job = StuckJob(lake)
    yield job
    job.end()


def called_off(admin: httpx.Client, stuck: StuckJob, path: str, **body: Any) -> dict[str, Any]:
    """How work ended that was called off while its job was running."""
    begun = admin.post(f"{API}/{path}", json=body)
    assert begun.status_code == 202, begun.text
    place = begun.json()["place"]
    stuck.wait_until_it_runs()
    assert admin.get(place).json()["ended_at"] is None
    assert admin.post(f"{place}/cancel").status_code == 200
    eventually(lambda: admin.get(place).json()["ended_at"])
    stuck.wait_until_it_is_cancelled()
    found: dict[str, Any] = admin.get(place).json()
    return found


RETAIN = {"dataset": "events", "older_than": "30d"}
PURGE = {"dataset": "events", "where": "n = 1"}
TASKS: dict[str, tuple[str, dict[str, Any], str]] = {  # the path, its body, and the step that has the job
    "verify": ("sinks/out/verify", {}, f"{VERIFY}.foreign_rows"),
    "verify_late": ("sinks/out/verify", {}, f"{VERIFY}.unsent_rows"),
    "tick": ("sinks/out/tick", {"dry_run": True}, "strandline.deliver.plan.preview.load_position"),
    "compact": ("maintenance/compact", {"dataset": "events", "dry_run": True}, f"{MAINTENANCE}._compact"),
    "retain": ("maintenance/retain", RETAIN | {"dry_run": True}, f"{MAINTENANCE}._retain"),
    "expire": ("maintenance/expire", {"dataset": "events", "dry_run": True}, f"{MAINTENANCE}._expire"),
    "purge": ("maintenance/purge", PURGE | {"dry_run": True}, f"{SEARCH}.count_matching"),
}


@pytest.mark.parametrize("what", TASKS)
def test_a_task_ends_as_cancelled(
    lake: Lake, admin: httpx.Client, stuck: StuckJob, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    path, body, step = TASKS[what]
    if what == "verify_late":
        lake.tick()
    monkeypatch.setattr(step, stuck.instead_of)
    found = called_off(admin, stuck, path, **body)
    assert (found["outcome"], found["error"]["type"]) == ("cancelled", "CalledOff"), found


def unsettled(lake: Lake, monkeypatch: pytest.MonkeyPatch, step: str, stuck: StuckJob) -> None:
    """The lake has something to settle, with a job that is stuck in this step."""
    monkeypatch.setattr(lake.ingestion, "_settled", False)
    monkeypatch.setattr(Ingestion, "catch_up", lambda self: self.recover())
    monkeypatch.setattr(step, stuck.instead_of)


RECOVER = "strandline.ingest.recover._needs_no_recovery"
RESYNC = "strandline.ingest.resync.run.resync_ledger"


@pytest.mark.parametrize("step", [RECOVER, RESYNC])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("sinks/out/verify", {}),
        pytest.param("sinks/out/tick", {}, marks=pytest.mark.torture),
        ("maintenance/compact", {"dataset": "events"}),
        pytest.param("maintenance/expire", {"dataset": "events", "dry_run": True}, marks=pytest.mark.torture),
    ],
)
def test_settling_ends_with_the_work_that_it_is_for(
    lake: Lake,
    admin: httpx.Client,
    stuck: StuckJob,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    path: str,
    body: dict[str, Any],
) -> None:
    unsettled(lake, monkeypatch, step, stuck)
    found = called_off(admin, stuck, path, **body)
    assert found["outcome"] == ("skipped" if "run" in found else "cancelled"), found
    with lake.ledger.read() as connection:
        assert table_states.get(connection, lake.dataset("events").id).trouble is None, (
            "nothing is wrong with the table"
        )
        assert not restored_blocks.postponed(connection)
    monkeypatch.undo()
    assert lake.recover().troubled == [], "the next one need not wait, and settles everything"


@pytest.mark.parametrize("step", [RECOVER, RESYNC])
def test_settling_for_a_run_of_the_reconciler_ends_with_the_run(
    lake: Lake, stuck: StuckJob, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(lake.reconciler._loader, "behind", lambda: "the ledger is behind")
    monkeypatch.setattr(step, stuck.instead_of)
    stopping = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lake.reconciler.run, Asked(act=True), cancelled=stopping)
        stuck.wait_until_it_runs()
        stopping.set()
        run = running.result(60)
    assert run.aborted is not None and (run.aborted.value, run.why) == ("cancelled", "it was cancelled")
    stuck.wait_until_it_is_cancelled()


def test_a_daemon_that_stops_does_not_wait_for_what_it_settles(
    lake: Lake, stuck: StuckJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsettled(lake, monkeypatch, RECOVER, stuck)
    control = LoopControl(on_trouble=lambda error: pytest.fail(f"it was told: {error.message}"))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lake.delivery.run, control)
        stuck.wait_until_it_runs()
        control.stopping.set()
        running.result(60)
    stuck.wait_until_it_is_cancelled()


def test_whoever_waits_for_another_that_settles_can_be_called_off(
    lake: Lake, stuck: StuckJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake.ingestion, "_settled", False)
    monkeypatch.setattr(RECOVER, stuck.instead_of)
    first, second, asks = threading.Event(), threading.Event(), threading.Event()

    def use(event: threading.Event) -> None:
        with called_off_by(event):
            asks.set()
            lake.work.tables.names()

    with ThreadPoolExecutor(2) as pool:
        settling = pool.submit(use, first)
        stuck.wait_until_it_runs()
        asks.clear()
        waiting = pool.submit(use, second)
        assert asks.wait(60)
        second.set()
        with pytest.raises(CalledOff):
            waiting.result(60)
        assert stuck.is_running(), "the other one goes on"
        first.set()
        with pytest.raises(CalledOff):
            settling.result(60)


@pytest.mark.parametrize("error", [RefusedError("a guard"), UsageError("wrong")])
def test_what_a_guard_refuses_is_told_as_refused_also_after_a_call_off(lake: Lake, error: Exception) -> None:
    event = threading.Event()
    with pytest.raises(type(error)) as raised, called_off_by(event):
        assert lake.tables().spark is not None
        event.set()
        raise error
    assert raised.value is error


def test_of_two_watches_the_inner_one_tells_its_own_error_and_leaves_the_outer_one_as_it_was(
    lake: Lake, stuck: StuckJob
) -> None:
    context, event = lake.spark.sparkContext, threading.Event()
    interrupts = lambda: context.getLocalProperty("spark.job.interruptOnCancel")  # noqa: E731

    class Mine(Exception):
        pass

    def check() -> None:
        if event.is_set():
            raise Mine

    def use() -> tuple[Any, ...]:
        before = interrupts()
        with called_off_by(event):
            cancel_when_called_off(lake.spark)
            with watched(lake.spark, lambda: None):
                pass
            inside = interrupts()
            with pytest.raises(Mine), watched(lake.spark, check):
                stuck.run()
        return before, inside, interrupts()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(use)
        stuck.wait_until_it_runs()
        event.set()
        before, inside, after = running.result(60)
    assert inside == "true" and "true" not in (before, after)
