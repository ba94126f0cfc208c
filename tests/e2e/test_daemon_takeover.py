"""Daemons over one PostgreSQL ledger share the work by lease: when one is killed, another goes on. One that is told to
stop calls its work off, and leaves it as somebody else can take it up."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import strandline
from strandline.lake import Lake
from strandline.ledger.engine import utc_now
from strandline.ledger.receive.batches import UNFINISHED
from strandline.ledger.schema.core import sink
from strandline.ledger.schema.maintain import maintenance_run
from strandline.ledger.schema.receive import receive_batch
from strandline.ledger.schema.reconcile import sweep_lease
from tests.campaign import in_torture
from tests.conftest import MakeHome
from tests.fork_server import Forked
from tests.servers import Postgres
from tests.spark.bodies import Sender
from tests.spark.lakes import create, numbers, values
from tests.spark.upkeep import data_files

pytestmark = pytest.mark.timeout(900)

WAIT_SECONDS_MAX = 300
# As long as a machine may stand still: a daemon that cannot renew its lease is taken for dead, although it lives.
LEASE = {"lease_seconds": 8}
LEASE_TIME = timedelta(seconds=8)
EVERY_SECOND = "* * * * * *"


@pytest.fixture(scope="module")
def lake(
    tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome, postgres_server: Postgres, spark_started: object
) -> Iterator[Lake]:
    home = tmp_path_factory.mktemp("site")
    settings: dict[str, dict[str, Any]] = {
        "ledger": {"url": postgres_server.create_database()},
        "ingest": LEASE,
        "deliver": LEASE | {"poll_seconds": 0.2},
        "receive": {"batch_wait_seconds_max": 0},
        "reconcile": LEASE | {"enabled": True, "schedule": EVERY_SECOND},
        "maintain": {"expire_schedule": EVERY_SECOND},
        "run": {"stop_seconds_max": WAIT_SECONDS_MAX},
    }
    make_home(home, settings)
    with strandline.init_lake(home) as made:
        create(made, "events", {"n": "long"})
        made.delivery.add("out", "events", "files", {"path": str(home / "out"), "format": "jsonl"})
        yield made


@pytest.fixture(scope="module")
def sender(lake: Lake) -> Sender:
    return Sender(lake, "events")


@dataclass
class Daemon:
    process: Forked
    log: Path
    notes: Path

    def events(self) -> list[dict[str, Any]]:
        return _lines(self.log)

    def looks(self, work: str) -> list[Look]:
        told = [line for line in _lines(self.notes) if line.get("work") == work]
        return [
            Look(line["taken"], *(datetime.fromisoformat(line[at]) for at in ("asked_at", "answered_at")))
            for line in told
        ]

    def until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not holds():
            assert time.monotonic() < deadline and self.process.poll() is None, self.log.read_text("utf-8")
            time.sleep(0.05)

    def hangs(self) -> bool:
        return any("hangs" in line for line in _lines(self.notes))


@dataclass(frozen=True)
class Look:
    """Whether a daemon got the work that it asked for, and when."""

    taken: bool
    asked_at: datetime
    answered_at: datetime


def _lines(file: Path) -> list[dict[str, Any]]:
    text = file.read_text("utf-8") if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


@contextmanager
def daemon(lake: Lake, folder: Path, name: str, **environ: str) -> Iterator[Daemon]:
    log, notes = folder / f"{name}.log", folder / f"{name}.notes"
    with log.open("w") as out:
        process = Forked(
            ["tests.e2e.noting_daemon", "run"],
            cwd=lake.config.home, env=os.environ | {"NOTES": str(notes)} | environ, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        yield Daemon(process, log, notes)
    finally:
        process.kill()
        process.wait()


def ends_of_leases(lake: Lake) -> dict[str, datetime | None]:
    """By the kind of work, when whoever holds it is taken for dead unless it gives another sign of life."""
    beat_at = sa.select(maintenance_run.c.heartbeat_at).where(maintenance_run.c.ended_at.is_(None))
    with lake.ledger.read() as connection:
        beaten = connection.scalar(beat_at)
        return {
            "delivery": connection.scalar(sa.select(sink.c.lease_until)),
            "intake": connection.scalar(sa.select(receive_batch.c.lease_until).where(*UNFINISHED)),
            "maintenance": None if beaten is None else beaten + LEASE_TIME,
            "reconcile": connection.scalar(sa.select(sweep_lease.c.until)),
        }


def is_gone(lake: Lake, process: int) -> bool:
    """Whether the ledger has seen the last of a process that was killed: what it had sent may be committed later."""
    named = sa.text("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE :name")
    with lake.ledger.read() as connection:
        return connection.scalar(named, {"name": f"strandline, process {process} on %"}) == 0


@pytest.mark.parametrize(
    ("work", "point", "event"),
    [
        ("delivery", "deliver.after_plan", "delivered"),
        # Their leases and their kills have tests of their own.
        in_torture("intake", "receive.after_receipt", "ingested"),
        in_torture("maintenance", "expire.after_settle", "maintained"),
        ("reconcile", "reconcile.after_start", "reconciled"),
    ],
)
def test_when_one_daemon_is_killed_another_takes_over_at_its_first_look_after_the_lease(
    lake: Lake, sender: Sender, tmp_path: Path, work: str, point: str, event: str
) -> None:
    before = len(values(lake, "events"))
    lake.append("events", numbers(lake, before + 1, before + 5))
    sender.bring([before + 6, before + 7])
    with (
        daemon(lake, tmp_path, "first", HANGS_AT=point) as first,
        daemon_beside(first, lake, tmp_path) as other,
    ):
        other.until(lambda: [look for look in other.looks(work) if not look.taken])
        other.process.send_signal(signal.SIGSTOP)  # so that the lease can be read before it is taken over
        first.process.kill()
        assert first.process.wait(WAIT_SECONDS_MAX) == -signal.SIGKILL
        killed_at = utc_now()
        other.until(lambda: is_gone(lake, first.process.pid))
        ends_at = ends_of_leases(lake)[work]
        assert ends_at is not None and ends_at <= killed_at + LEASE_TIME
        other.process.send_signal(signal.SIGCONT)
        other.until(lambda: _is_done(lake, other, event, before + 7))
        other.process.send_signal(signal.SIGTERM)
        assert other.process.wait(WAIT_SECONDS_MAX) == 0
    taken = next(look for look in other.looks(work) if look.answered_at > ends_at and look.taken)
    assert [look for look in other.looks(work) if ends_at < look.asked_at and look.answered_at < taken.asked_at] == []
    delivered = [json.loads(line)["n"] for file in (lake.config.home / "out").rglob("*.jsonl") for line in file.open()]
    assert sorted(delivered) == list(range(1, before + 8)) and lake.delivery.verify().ok


@contextmanager
def daemon_beside(first: Daemon, lake: Lake, folder: Path) -> Iterator[Daemon]:
    """One that starts when the first has the work."""
    first.until(first.hangs)
    with daemon(lake, folder, "other") as other:
        yield other


def _is_done(lake: Lake, other: Daemon, event: str, rows: int) -> bool:
    [out] = lake.status().sinks
    return out.exported == rows and any(e["event"] == event for e in other.events())


@contextmanager
def every_core_is_busy(lake: Lake, folder: Path) -> Iterator[list[int]]:
    """Until the block ends, no task of any other job can begin. Yields the jobs that see to it."""
    context, let = lake.spark.sparkContext, folder / "let"
    cores = context.defaultParallelism

    def wait(task: int) -> None:
        (folder / f"busy-{task}").touch()
        while not let.exists():
            time.sleep(0.05)

    holding = threading.Thread(target=lambda: context.parallelize(range(cores), cores).foreach(wait), daemon=True)
    holding.start()
    try:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not all((folder / f"busy-{task}").exists() for task in range(cores)):
            assert time.monotonic() < deadline and holding.is_alive()
            time.sleep(0.05)
        yield context.statusTracker().getActiveJobsIds()
    finally:
        let.touch()
        holding.join()


def test_a_daemon_that_is_told_to_stop_cancels_the_job_of_a_compaction(lake: Lake, tmp_path: Path) -> None:
    before = values(lake, "events")
    for n in range(6):
        lake.append("events", numbers(lake, len(before) + n + 1, len(before) + n + 1))
    lake.tick()
    files, rows = data_files(lake, "events"), sorted(values(lake, "events"))
    tracker = lake.spark.sparkContext.statusTracker()
    environ = {
        "STRANDLINE_MAINTAIN__COMPACT_SCHEDULE": EVERY_SECOND,
        "STRANDLINE_FAILPOINT": "compact.before_rewrite=stop",
    }
    with daemon(lake, tmp_path, "stopped", **environ) as stopped:
        stopped.process.wait_until_stopped(WAIT_SECONDS_MAX)
        with every_core_is_busy(lake, tmp_path) as busy:
            stopped.process.send_signal(signal.SIGCONT)
            stopped.until(lambda: set(tracker.getActiveJobsIds()) - set(busy))
            stopped.process.send_signal(signal.SIGTERM)
            # The job cannot end by itself, and a process that is cut off after `run.stop_seconds_max` ends with 1.
            assert stopped.process.wait(WAIT_SECONDS_MAX) == 0, stopped.log.read_text("utf-8")
            assert set(tracker.getActiveJobsIds()) == set(busy)
        assert [e["event"] for e in stopped.events()][-1] == "stopped"
    [run] = lake.maintenance.runs("events", "compact")
    assert (run.outcome, run.reason, run.by_schedule) == ("skipped", "it was called off", True)
    assert data_files(lake, "events") == files
    again = lake.maintenance.compact("events")
    assert again.run.outcome == "done" and data_files(lake, "events") == again.result.files_after < files
    assert sorted(values(lake, "events")) == rows and lake.delivery.verify().ok
