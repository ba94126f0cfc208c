"""Daemons over one PostgreSQL ledger share the work by lease: when one is killed, another goes on."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import strandline
from strandline.lake import Lake
from tests.conftest import MakeHome
from tests.fork_server import Forked
from tests.servers import Postgres
from tests.spark.bodies import Sender
from tests.spark.lakes import create, numbers, values

pytestmark = pytest.mark.timeout(900)

WAIT_SECONDS_MAX = 300
LEASE = {"lease_seconds": 1}
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
    }
    make_home(home, settings)
    with strandline.init_lake(home) as made:
        create(made, "events", {"n": "long"})
        made.delivery.add("out", "events", "files", {"path": str(home / "out"), "format": "jsonl"})
        yield made


@pytest.fixture(scope="module")
def sender(lake: Lake) -> Sender:
    return Sender(lake, "events")


def daemon(lake: Lake, log: Path, failpoint: str = "") -> Forked:
    environ = os.environ | {"STRANDLINE_FAILPOINT": failpoint}
    with log.open("w") as out:
        return Forked(["strandline.cli.main", "run"], cwd=lake.config.home, env=environ, stdout=out)


def told(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text("utf-8").splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.parametrize(
    ("point", "event"),
    [
        ("deliver.after_plan", "delivered"),
        ("receive.after_receipt", "ingested"),
        ("maintain.after_begin", "maintained"),
        ("reconcile.after_start", "reconciled"),
    ],
)
def test_when_one_daemon_is_killed_another_goes_on(
    lake: Lake, sender: Sender, tmp_path: Path, point: str, event: str
) -> None:
    before = len(values(lake, "events"))
    lake.append("events", numbers(lake, before + 1, before + 5))
    sender.bring([before + 6, before + 7])
    killed = daemon(lake, tmp_path / "killed", f"{point}=kill")
    assert killed.wait(WAIT_SECONDS_MAX) == -signal.SIGKILL, (tmp_path / "killed").read_text("utf-8")
    other = daemon(lake, tmp_path / "other")
    try:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not _is_done(lake, tmp_path / "other", event, before + 7):
            assert time.monotonic() < deadline and other.poll() is None, (tmp_path / "other").read_text("utf-8")
            time.sleep(0.1)
        other.send_signal(signal.SIGTERM)
        assert other.wait(WAIT_SECONDS_MAX) == 0
    finally:
        other.kill()
        other.wait()
    delivered = [json.loads(line)["n"] for file in (lake.config.home / "out").rglob("*.jsonl") for line in file.open()]
    assert sorted(delivered) == list(range(1, before + 8)) and lake.delivery.verify().ok


def _is_done(lake: Lake, log: Path, event: str, rows: int) -> bool:
    [sink] = lake.status().sinks
    return sink.exported == rows and any(e["event"] == event for e in told(log))
