"""A real Spark cluster, a master and two workers: the same settings file with another master, and the same promises."""

from __future__ import annotations

import itertools
import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import strandline
from tests.campaign import report_fired, scaled, seed
from tests.conftest import QUICK_JVM, MakeHome
from tests.e2e.on_cluster import ROWS, SEND, TASKS
from tests.e2e.test_docs_run import quick_commands, run_page
from tests.rest_catalog import RestCatalogs
from tests.servers import S3
from tests.spark import bodies, deliveries
from tests.spark_cluster import HOSTS, Cluster, bare_python, start_cluster

pytestmark = pytest.mark.timeout(1500)

WAIT_SECONDS_MAX = 300
ROUNDS = scaled(1, 6)
SEED = 20
SECRET = "c4n4ry-of-the-cluster"
KILLS = tuple(itertools.product(("executor", "worker", "driver"), ("ingest", "delivery")))
SPECULATION = {"": "true", ".interval": "200ms", ".quantile": "0.5", ".multiplier": "1.5", ".minTaskRuntime": "2s"}
SPECULATION |= {".task.duration.threshold": "2s"}  # of a job that is one task


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with start_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def test_the_page_about_growth_takes_a_lake_from_one_machine_to_a_cluster(
    cluster: Cluster, postgres_database: str, s3: S3, rest_catalogs: RestCatalogs, tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    catalog = rest_catalogs.take(bucket=True)
    places = {
        "LAKE_LEDGER": postgres_database,
        "LAKE_BUCKET": s3.make_bucket(),
        "LAKE_ENDPOINT": s3.endpoint,
        "LAKE_ACCESS_KEY": s3.access_key,
        "LAKE_SECRET_KEY": s3.secret_key,
        "LAKE_WAREHOUSE": catalog.warehouse["url"],
        "LAKE_CATALOG": catalog.settings()["catalog"]["uri"],
        "LAKE_SPARK": cluster.url,
    }
    bare = bare_python(tmp_path_factory.mktemp("bare"))
    without = subprocess.run([bare.parent / "bin/python", "-c", "import strandline"], capture_output=True, text=True)
    assert "No module named 'strandline'" in without.stderr
    spark = {**QUICK_JVM, **cluster.driver_options, "spark.archives": f"{bare}#python"}
    spark |= {"spark.pyspark.python": "./python/bin/python"}
    del spark["spark.executor.extraClassPath"]  # the driver sends Iceberg's jars
    options = {"STRANDLINE_SPARK__OPTIONS": json.dumps(spark)}
    attached = quick_commands(tmp_path_factory.mktemp("attached"))
    run_page("docs/scale.md", tmp_path, attached | places, options | places)
    unpacked = list(cluster.folder.glob("work*/app-*/*/strandline-*/strandline/__init__.py"))
    assert len(unpacked) == 2, "both executors ran the code that the driver has sent"


class Driver:
    """`tests.e2e.on_cluster`, in a process group of its own: that is how all of it is killed at once."""

    def __init__(self, home: Path) -> None:
        self.home = home
        command = [sys.executable, "-m", "tests.e2e.on_cluster", str(home)]
        with (home / "driver.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self._answers.put(json.loads(line))
        self._answers.put(None)

    def tell(self, *step: str) -> None:
        assert self.process.stdin is not None
        print(*step, file=self.process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        found = self._answers.get(timeout=WAIT_SECONDS_MAX)
        assert found is not None, (self.home / "driver.log").read_text("utf-8")
        assert "failed" not in found, found["failed"]
        return found

    def ask(self, *step: str) -> dict[str, Any]:
        self.tell(*step)
        return self.answer()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(WAIT_SECONDS_MAX) == 0


class Site:
    """A lake on the cluster, and who is killed there while it is ingesting and delivering."""

    def __init__(self, cluster: Cluster, lake: strandline.Lake) -> None:
        self.cluster, self.lake, self.home = cluster, lake, lake.config.home
        self.driver = Driver(self.home)
        self.batches: list[str] = []
        self.undelivered = 1000
        self.fired: dict[str, int] = {}

    def new_batch(self) -> str:
        self.batches.append(str(len(self.batches) + 1))
        self.undelivered += TASKS * ROWS
        return self.batches[-1]

    def held(self, what: str) -> psutil.Process:
        """The executor of the task that is held."""

        def found() -> list[int]:
            return [int(path.name.rpartition("-")[2]) for path in self.home.glob(f"held-{what}-*")]

        wait_until(found)
        return psutil.Process(found()[-1])

    def begin(self, step: str, batch: str) -> psutil.Process:
        """A batch, or the delivery of one, until one of its tasks is held."""
        for left in self.home.glob("held-*"):
            left.unlink()
        if step == "delivery":
            assert self.driver.ask("append", batch)["rows"] == TASKS * ROWS
        what = SEND if step == "delivery" else batch
        (self.home / f"armed-{what}").touch()
        self.driver.tell(*(("tick",) if step == "delivery" else ("append", batch)))
        return self.held(what)

    def kill(self, whom: str, step: str) -> None:
        """Whoever runs a task of this step; and then the step is done."""
        batch = self.new_batch()
        executor = self.begin(step, batch)
        match whom:
            case "executor":
                executor.kill()
            case "worker":
                worker = executor.parent()
                assert worker is not None
                worker.kill()
            case "driver":
                self.driver.kill()
                wait_until(lambda: is_gone(executor))
                self.replace_driver()
                self.driver.tell(*(("tick",) if step == "delivery" else ("append", batch)))
        self.is_done(step)
        assert is_gone(executor)
        self.fired[f"{whom} killed during {step}"] = self.fired.get(f"{whom} killed during {step}", 0) + 1

    def is_done(self, step: str) -> None:
        answer = self.driver.answer()
        if step == "ingest":
            assert answer["rows"] == TASKS * ROWS
        else:
            assert (answer["did"], answer["rows"]) == ("delivered", self.undelivered), answer
            self.undelivered = 0

    def replace_driver(self) -> None:
        bodies.outlive_lease(self.lake)
        deliveries.outlive_lease(self.lake)
        self.driver = Driver(self.home)


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def texts(folder: Path) -> dict[Path, bytes]:
    """Every file below, with its content. What executors remove meanwhile is left out."""
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                found[Path(place, name)] = Path(place, name).read_bytes()
    return found


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path, make_home: MakeHome, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("CLUSTER_SECRET", SECRET)
    options = dict(cluster.driver_options) | {f"spark.speculation{key}": value for key, value in SPECULATION.items()}
    options |= {"spark.hadoop.fs.s3a.secret.key": "env:CLUSTER_SECRET"}
    make_home(tmp_path, {"spark": {"master": cluster.url, "options": options}})
    with strandline.init_lake(tmp_path) as lake:
        made = Site(cluster, lake)
        try:
            yield made
        finally:
            made.driver.kill()


def test_a_lake_on_a_cluster_keeps_every_promise_whoever_is_killed_and_when_tasks_run_twice_at_once(
    site: Site, record_property: Callable[[str, object], None]
) -> None:
    driver = site.driver
    began = driver.ask("begin")
    assert began["master"] == site.cluster.url and began["executors"] == 2
    if len(set(HOSTS)) == 2:
        for step in ("ingest", "delivery"):  # Spark starts the twin of a task that is held, and the twin ends it
            site.begin(step, site.new_batch())
            site.is_done(step)
        assert driver.ask("append", site.batches[0]) == {"step": "append", "rows": TASKS * ROWS, "duplicate": True}
    plan = [("executor", "ingest"), ("worker", "delivery"), ("driver", "ingest")]
    if ROUNDS > 1:
        plan = [*KILLS] * ROUNDS
        random.Random(seed(SEED)).shuffle(plan)
    for whom, step in plan:
        site.kill(whom, step)
        if ROUNDS > 1 and whom == "worker":
            site.cluster.add_worker()
    if plan[-1][1] == "ingest":
        assert site.driver.ask("tick")["did"] == "delivered"
    report_fired(record_property, site.fired, SEED)

    new = [1000 * int(batch) + n for batch in site.batches for n in range(TASKS * ROWS)]
    found = site.driver.ask("read", began["token"])
    assert found["new"] == [len(new), len(new), sum(new)] and sorted(found["ordered"]) == sorted(new)
    assert found["rows"] == [1000 + len(new), 1000 + len(new), sum(range(1000)) + sum(new)]
    assert found["partition"] == 500 and found["foreign"] == 1
    assert site.driver.ask("verify") == {"step": "verify", "ok": True, "rows": 1000 + len(new)}
    site.driver.end()
    # Executors are started by others: what their arguments are is in the logs of the workers, and in their own.
    said = texts(site.cluster.folder)
    assert any(b"CoarseGrainedExecutorBackend" in text for text in said.values())
    assert [file for file, text in said.items() if SECRET.encode() in text] == []
