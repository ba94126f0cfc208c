"""A real standalone Spark for tests: a master and workers, each a JVM of its own, on loopback.

They are started without Spark's scripts, of which each starts a JVM more, and with the project's class archive.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from strandline.iceberg.session.class_archive import use_flags
from strandline.iceberg.session.jars import spark_home
from strandline.iceberg.session.runtime import ensure_runtime
from tests.run_report import note_start
from tests.servers import ROOT, Server, _answers, _die_with_parent, free_port

HOSTS = ("127.0.0.1", "127.0.0.2") if sys.platform == "linux" else ("127.0.0.1", "127.0.0.1")
"""Spark runs a task's second copy on another host only, and other systems have but one loopback address."""
_PACKAGE = "org.apache.spark.deploy"


@dataclass
class Cluster:
    url: str
    folder: Path
    workers: list[Server] = field(default_factory=list)

    @property
    def driver_options(self) -> Mapping[str, str]:
        """What the settings of a lake need beside the address of the master. Executors compile quickly rather than
        well, and load their classes from the archive."""
        jars, flags = _jars_and_flags()
        return {
            "spark.driver.host": HOSTS[0],
            "spark.driver.bindAddress": HOSTS[0],
            "spark.pyspark.python": sys.executable,
            "spark.executor.memory": "600m",
            "spark.executor.extraClassPath": os.pathsep.join(map(str, jars)),
            "spark.executor.extraJavaOptions": " ".join(flags),
            "spark.sql.shuffle.partitions": "2",
        }

    def add_worker(self, *, cores: int = 1) -> Server:
        number = len(self.workers)
        host = HOSTS[number % len(HOSTS)]
        worker = _start(
            self.folder / f"worker{number}", host, f"{_PACKAGE}.worker.Worker", self.url, "--cores", str(cores),
            "--memory", "1g", "--webui-port", str(free_port()), "--work-dir", str(self.folder / f"work{number}"),
        )  # fmt: skip
        self.workers.append(worker)
        worker.wait_until(lambda: b"Successfully registered" in worker.log.read_bytes())
        return worker


@contextmanager
def start_cluster(folder: Path, *, workers: int = 2) -> Iterator[Cluster]:
    """Everything ends with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    cluster = Cluster(f"spark://{HOSTS[0]}:{port}", folder)
    with ExitStack() as running:
        arguments = ["--port", str(port), "--webui-port", str(free_port())]
        master = _start(folder / "master", HOSTS[0], f"{_PACKAGE}.master.Master", *arguments)
        running.callback(master.stop)
        master.wait_until(lambda: _answers(port))
        running.callback(lambda: [worker.stop() for worker in cluster.workers])
        for _ in range(workers):
            cluster.add_worker()
        yield cluster


def bare_python(folder: Path) -> Path:
    """An archive with a Python that has every package of this one, and nothing of ours: `bin/python` in it."""
    packages, program = folder / "packages", folder / "bin" / "python"
    packages.mkdir(parents=True)
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for there in Path(place).iterdir():
            if "strandline" not in there.name.lower() and there.suffix != ".pth":
                (packages / there.name).symlink_to(there)
    program.parent.mkdir()
    base = getattr(sys, "_base_executable", sys.executable)
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}" exec "{base}" -s "$@"\n', "utf-8")
    program.chmod(0o755)
    archive = folder / "python.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(program.parent, "bin")
    return archive


def _jars_and_flags() -> tuple[tuple[Path, ...], list[str]]:
    runtime = ensure_runtime(s3=True)
    flags = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", note_start()]
    return runtime.jars, [*flags, *use_flags(runtime.archive)]


def _start(folder: Path, host: str, program: str, *arguments: str) -> Server:
    folder.mkdir()
    jars, flags = _jars_and_flags()
    home, java = spark_home(), ensure_runtime(s3=True).java
    [logging] = (home / "jars").glob("slf4j-api-*.jar")  # first, as Spark's scripts have it: the archive is made so
    class_path = [*jars, home / "conf", logging, home / "jars" / "*"]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_")}
    [core] = (home / "jars").glob("spark-core_*.jar")
    scala = core.name.removeprefix("spark-core_").partition("-")[0]  # what Spark's scripts set, and a worker asks for
    environ |= {"SPARK_HOME": str(home), "JAVA_HOME": str(java.home), "SPARK_LOCAL_IP": host}
    environ["SPARK_SCALA_VERSION"] = scala
    # Executors inherit it: our code is the one that is tested, wherever they run.
    environ |= {"SPARK_LOCAL_DIRS": str(folder), "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    log = folder / "log"
    command = [str(java.program), "-cp", os.pathsep.join(map(str, class_path)), "-Xmx256m", *flags]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [*command, program, *arguments, "--host", host],
            stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, cwd=folder, env=environ, preexec_fn=_die_with_parent,
        )  # fmt: skip
    return Server(folder, log, process)
