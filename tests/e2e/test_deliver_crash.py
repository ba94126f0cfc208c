"""Deliverers in processes of their own: killed, stopped and continued, two at once; tasks that Spark runs twice.

`kill -9` at the most telling points; tests/spark/test_deliver_crash.py dies at every one, without a process for each.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from strandline import Lake
from tests.conftest import MakeHome
from tests.fork_server import Forked
from tests.processes import own_jvm
from tests.servers import S3, Postgres
from tests.spark.deliveries import (
    Delivered,
    Objects,
    in_bucket,
    in_catalog,
    in_folder,
    in_table,
    keys_of,
    make_lake,
    outlive_lease,
)

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
WAIT_SECONDS_MAX = 180


@pytest.fixture(scope="module")
def delivered(
    tmp_path_factory: pytest.TempPathFactory,
    make_home: MakeHome,
    s3: S3,
    postgres_server: Postgres,
    spark_started: object,
) -> Iterator[Delivered]:
    """One lake with a sink of each kind; this process writes, and goes on where a deliverer died."""
    folder = tmp_path_factory.mktemp("delivered")
    with pytest.MonkeyPatch.context() as environ:
        for name, value in keys_of(s3).items():
            environ.setenv(name, value)
        with make_lake(folder / "lake", make_home, {"deliver": {"poll_seconds": 0.1}}) as lake:
            made = Delivered(lake)
            made.add(in_folder(folder / "out"), chunk_rows_max="4")
            made.add(in_bucket(s3), chunk_rows_max="4")
            made.add(in_table(postgres_server.create_database()), chunk_rows_max="4")
            made.add(in_catalog(folder / "other"), chunk_rows_max="4")
            yield made


def start(home: Path, *arguments: str, log: Path, failpoint: str = "") -> Forked:
    with log.open("w") as out:
        environ = os.environ | {"STRANDLINE_FAILPOINT": failpoint}
        return Forked(["strandline.cli.main", *arguments], cwd=home, env=environ, stdout=out)


def killed_at(delivered: Delivered, sink: str, point: str, log: Path) -> None:
    """Its JVM and its workers may live on for a moment, with tasks under way."""
    process = start(delivered.lake.config.home, "tick", "--sink", sink, "--json", failpoint=f"{point}=kill", log=log)
    assert process.wait(WAIT_SECONDS_MAX) == -signal.SIGKILL, f"{point} was not reached: {log.read_text('utf-8')}"


@pytest.mark.parametrize(
    ("sink", "point"),
    [
        ("files", "deliver.after_plan"),
        ("files", "files.after_link"),
        ("files", "deliver.before_acknowledge"),
        ("files", "deliver.after_mark"),
        ("s3", "s3.after_put"),
        ("postgres", "postgres.after_commit"),
        ("iceberg", "iceberg.after_commit"),
    ],
)
def test_a_deliverer_that_is_killed_is_gone_on_from(
    delivered: Delivered, sink: str, point: str, tmp_path: Path
) -> None:
    delivered.survives(sink, lambda: killed_at(delivered, sink, point, tmp_path / "log"))


def stopped(process: subprocess.Popen[str], lake: Lake) -> list[psutil.Process]:
    """Wait until the deliverer stopped itself; it, and whichever of its workers did."""
    driver = psutil.Process(process.pid)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        assert process.poll() is None and time.monotonic() < deadline, "it did not stop"
        tree = [p for p in (driver, *driver.children(recursive=True)) if has_stopped(p)]
        if driver in tree and len(tree) > 1:
            if is_free(lake):
                return tree
            # The worker stopped it while another thread of it had the ledger, which nobody can write then.
            driver.resume()
            time.sleep(0.02)
            driver.suspend()
        time.sleep(0.05)


def has_stopped(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False  # a worker that ended between being seen and being looked at


def is_free(lake: Lake) -> bool:
    assert lake.ledger.path is not None
    with closing(sqlite3.connect(lake.ledger.path, timeout=0.2, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
        return True


@pytest.mark.parametrize("point", ["deliver.before_send", "files.before_link"])
def test_a_deliverer_stopped_for_longer_than_its_lease_delivers_nothing_again(delivered: Delivered, point: str) -> None:
    """Another one has delivered everything by then, and a consumer has taken it away."""
    out = delivered.sinks["files"]
    assert isinstance(out, Objects)
    delivered.lake.tick("files")
    delivered.ingest()
    # With workers of its own: those that stopped are looked for among its children.
    process = subprocess.Popen(
        own_jvm("strandline.cli.main", "tick", "--sink", "files", "--json"),
        cwd=delivered.lake.config.home, env=os.environ | {"STRANDLINE_FAILPOINT": f"{point}=stop"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    stopped(process, delivered.lake)
    outlive_lease(delivered.lake)
    delivered.ingest()
    [report] = delivered.lake.tick("files").sinks
    assert report.did == "delivered"
    assert out.see().rows == delivered.expected and out.mark() == delivered.rows
    taken = {o.path: o.path.read_bytes() for objects in out.lanes().values() for o in objects}
    for path in taken:
        path.unlink()
    for each in stopped(process, delivered.lake):
        each.send_signal(signal.SIGCONT)
    said, err = process.communicate(timeout=WAIT_SECONDS_MAX)
    [told] = json.loads(said)["sinks"]
    assert (process.returncode, told["did"]) == (1, "busy"), (told, err)
    assert "another deliverer" in told["reason"]
    assert out.lanes() == {}, "what a consumer had taken is there again"
    assert delivered.lake.delivery.get("files").failures == 0, "one that was superseded has no say any more"
    for path, body in taken.items():  # for the tests that follow
        path.write_bytes(body)
    delivered.ingest()
    assert delivered.lake.tick("files").sinks[0].did == "delivered"
    assert out.see().rows == delivered.expected


def told(log: Path) -> list[dict[str, Any]]:
    """What a daemon has told so far, line by line."""
    return [json.loads(line) for line in log.read_text("utf-8").splitlines(keepends=True) if line.endswith("\n")]


def test_two_deliverers_of_the_same_sinks_at_once_deliver_each_row_once(delivered: Delivered, tmp_path: Path) -> None:
    delivered.lake.tick()
    logs = [tmp_path / "one", tmp_path / "other"]
    both = [start(delivered.lake.config.home, "run", "--json", log=log) for log in logs]
    try:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not all(any(e["event"] == "delivered" for e in told(log)) for log in logs):
            assert time.monotonic() < deadline, "both are to have a part in it"
            delivered.ingest()
            time.sleep(0.2)
        while not delivered.is_done:
            assert time.monotonic() < deadline, "they do not get done"
            time.sleep(0.1)
        for process in both:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(WAIT_SECONDS_MAX) for process in both] == [0, 0]
    finally:
        for process in both:
            process.kill()
            process.wait()
    for name, destination in delivered.sinks.items():
        assert destination.see().rows == delivered.expected, name
    events = [e for log in logs for e in told(log)]
    assert [e for e in events if "reason" in e] == [], "neither failed"


@pytest.fixture(scope="module")
def run_twice(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Path:
    """The folder in which the sinks of tests/e2e/deliverer.py have delivered 100 rows each."""
    home = tmp_path_factory.mktemp("twice") / "lake"
    make_lake(home, make_home, {"spark": {"master": "local[2,4]"}}).close()
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.deliverer", str(home), *WAYS],
        capture_output=True, text=True, timeout=WAIT_SECONDS_MAX, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == dict.fromkeys(WAYS, "delivered"), done.stderr
    return home.parent


WAYS = ["before", "after", "worker", "late"]


@pytest.mark.parametrize("how", WAYS[:3])
def test_a_task_that_spark_runs_again_delivers_each_row_once(run_twice: Path, how: str) -> None:
    assert (run_twice / f"{how}-ran-twice").exists()
    assert in_folder(run_twice / how).see().rows == [(n, n) for n in range(1, 101)]


def test_a_slow_twin_of_a_task_brings_nothing_back_that_a_consumer_has_taken(run_twice: Path) -> None:
    said = (run_twice / "twin").read_text("utf-8")
    assert "superseded" in said or "repeat=True" in said  # by the fence, or because the mark had passed it
    assert in_folder(run_twice / "late").see().rows == []
    assert len(list(run_twice.glob("*.parquet"))) == 4, "the consumer has them"
