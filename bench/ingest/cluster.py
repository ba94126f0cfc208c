"""A standalone Spark on loopback, so that the driver is a process without executors in it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers import free_port

_START_SECONDS_MAX = 60
_PACKAGE = "org.apache.spark.deploy"


@contextmanager
def cluster(work: Path, *, workers: int, memory: str) -> Iterator[str]:
    """Gives the address of the master; everything ends with the block."""
    from strandline.iceberg.session.jars import spark_home
    from strandline.iceberg.session.java import find_java

    home, port = spark_home(), free_port()
    environ = os.environ | {
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(find_java().home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": sys.executable,
    }
    address = f"spark://127.0.0.1:{port}"
    loopback = ["--host", "127.0.0.1", "--webui-port", "0"]
    commands = [[f"{_PACKAGE}.master.Master", *loopback, "--port", str(port)]]
    for n in range(workers):
        folder = ["--work-dir", str(work / f"worker-{n}")]
        commands.append([f"{_PACKAGE}.worker.Worker", *loopback, "--cores", "1", "--memory", memory, *folder, address])
    running: list[subprocess.Popen[bytes]] = []
    try:
        with (work / "cluster.log").open("wb") as log:
            for command in commands:
                whole = [str(home / "bin" / "spark-class"), *command]
                process = subprocess.Popen(
                    whole,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environ,
                    cwd=work,
                    start_new_session=True,
                )
                running.append(process)
                if len(running) == 1:
                    _wait_for(port, running[0], work / "cluster.log")
        yield address
    finally:
        for process in reversed(running):
            _end(process)


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"the master did not start: {log.read_text('utf-8', 'replace')[-2000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """With its executors, which are children of a worker."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)
    except ProcessLookupError:
        process.wait()
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
