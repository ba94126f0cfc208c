"""A real Spark cluster, a master and two workers: the same settings file with another master, and the same promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.iceberg.session.jars import spark_home
from strandline.iceberg.session.java import find_java
from tests.conftest import MakeHome
from tests.servers import Server, _answers, _die_with_parent, free_port

TIMEOUT_SECONDS = 400
HOSTS = ("127.0.0.1", "127.0.0.2") if sys.platform == "linux" else ("127.0.0.1", "127.0.0.1")
"""Spark runs a task's second copy on another host only, and other systems have but one loopback address."""
SLOW_SECONDS = 150 if len(set(HOSTS)) == 2 else 45
"""How long the first attempt of one task sleeps, which is when Spark starts its twin. The twin's end is its end; where
there can be none, it is waited for."""


def _start(folder: Path, host: str, *arguments: str) -> Server:
    folder.mkdir()
    log = folder / "log"
    environ = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_")}
    environ |= {"SPARK_HOME": str(spark_home()), "JAVA_HOME": str(find_java().home), "SPARK_NO_DAEMONIZE": "1"}
    environ |= {"SPARK_LOCAL_IP": host, "SPARK_LOCAL_DIRS": str(folder), "PYSPARK_PYTHON": sys.executable}
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [spark_home() / "bin" / "spark-class", *arguments, "--host", host],
            stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, cwd=folder, env=environ, preexec_fn=_die_with_parent,
        )  # fmt: skip
    return Server(folder, log, process)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The master's address, and where all of them write."""
    folder, port = tmp_path_factory.mktemp("cluster"), free_port()
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as running:
        leader = _start(
            folder / "master", HOSTS[0], "org.apache.spark.deploy.master.Master",
            "--port", str(port), "--webui-port", str(free_port()),
        )  # fmt: skip
        running.callback(leader.stop)
        leader.wait_until(lambda: _answers(port))
        for k, host in enumerate(HOSTS):
            worker = _start(
                folder / f"worker{k}", host, "org.apache.spark.deploy.worker.Worker", url, "--cores", "1",
                "--memory", "1g", "--webui-port", str(free_port()), "--work-dir", str(folder / f"work{k}"),
            )  # fmt: skip
            running.callback(worker.stop)
            worker.wait_until(lambda log=worker.log: b"Successfully registered" in log.read_bytes())  # type: ignore[misc]
        yield url, folder


def run(home: Path) -> dict[str, Any]:
    """What the process of its own does: append, read on, and a batch of which one task runs twice at once."""
    with strandline.open(home) as lake:
        columns = parse_columns([{"name": "n", "type": "long"}, {"name": "p", "type": "string"}])
        lake.create_dataset("events", columns, deliver_by=["p"])
        first = lake.spark.sql("SELECT id AS n, 'p' || id % 2 AS p FROM range(0, 1000, 1, 4)")
        lake.append("events", first, batch_id="first")
        token = lake.read_since("events").continuation
        # A foreign row, so that reading needs Python on the workers too.
        lake.spark.sql("INSERT INTO lake.default.events VALUES (-1, 'p=p0', -1, 'p0')")
        twice = lake.spark.range(0, 4, 1, 4).mapInArrow(_slow_once(home), "n long, p string")
        lake.append("events", twice, batch_id="twice", progress=lambda step, rows: (home / step).touch())
        sums = "count(*)", "count(DISTINCT _ingest_seq)", "sum(n)"
        read = lake.read_since("events", token, internal=True)
        hosts = lake.spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()  # type: ignore[union-attr]
        return {
            "master": lake.spark.sparkContext.master,
            "executors": hosts - 1,
            "rows": list(lake.read_since("events", internal=True).df.selectExpr(*sums).collect()[0]),
            "new": list(read.df.selectExpr(*sums).collect()[0]),
            "partition": lake.read_since("events", partition={"p": "p0"}).df.count(),
            "ordered": [row.n for row, _ in read],
            "repeat": lake.append("events", first, batch_id="first").duplicate,
            "attempts": len(list(home.glob("attempt-*"))),
            "foreign": lake.status().datasets[0].foreign,
        }


def _slow_once(home: Path) -> Any:
    """The first attempt of task 2, while writing, gives its rows and then hangs: Spark runs it a second time."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        at = 0 if context is None else context.partitionId()
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"n": pa.array([5000 + at * 10 + i for i in range(10)]), "p": ["x"] * 10})
        if at == 2 and (home / "writing").exists() and context is not None:
            first = not list(home.glob("attempt-*"))
            (home / f"attempt-{context.taskAttemptId()}").touch()
            if first:
                time.sleep(SLOW_SECONDS)

    return rows


def _texts(folder: Path) -> dict[Path, bytes]:
    """Every file below, with its content. What executors remove meanwhile is left out."""
    texts = {}
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                texts[Path(place, name)] = Path(place, name).read_bytes()
    return texts


def test_a_lake_on_a_cluster_keeps_every_promise_also_when_a_task_runs_twice_at_once(
    cluster: tuple[str, Path], tmp_path: Path, make_home: MakeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, folder = cluster
    speculate = {"": "true", ".interval": "200ms", ".quantile": "0.5", ".multiplier": "1.5", ".minTaskRuntime": "2s"}
    options = {f"spark.speculation{key}": value for key, value in speculate.items()}
    options |= {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "600m", "spark.sql.shuffle.partitions": "2"}
    options |= {"spark.pyspark.python": sys.executable, "spark.driver.bindAddress": "127.0.0.1"}
    monkeypatch.setenv("CLUSTER_SECRET", "c4n4ry-of-the-cluster")
    options |= {"spark.hadoop.fs.s3a.secret.key": "env:CLUSTER_SECRET"}
    make_home(tmp_path, {"spark": {"master": master, "options": options}})
    strandline.init_lake(tmp_path).close()
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.test_cluster", str(tmp_path)],
        capture_output=True, text=True, timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["master"] == master and found["executors"] == 2
    assert found["attempts"] == len(set(HOSTS)), "the task did run twice"
    new = [5000 + t * 10 + i for t in range(4) for i in range(10)]
    assert found["new"] == [40, 40, sum(new)] and found["ordered"] == new
    assert found["rows"] == [1040, 1040, sum(range(1000)) + sum(new)]
    assert found["partition"] == 500 and found["repeat"] and found["foreign"] == 1
    # Executors are started by others: what their arguments are is in the logs of the workers, and in their own.
    texts = _texts(folder)
    assert any(b"CoarseGrainedExecutorBackend" in text for text in texts.values())
    assert [file for file, text in texts.items() if b"c4n4ry" in text] == []


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]))))
