"""Real processes for tests that kill and stop them, without a JVM for each.

`python tests/processes.py MODULE ARGUMENTS` runs the module in a process of its own, as `python -m MODULE` would.
Where it would start a JVM, it attaches to the one of the test run instead, which takes a tenth of the time.
`SIGKILL` ends the Python process as always. The JVM lives on, so Spark may go on with what it was doing for that
process: a harder test than a JVM that ends with it.

`start` does the same without a second of imports (`tests/fork_server.py`). A test of what users see, or of how the JVM
itself ends, uses `own_jvm`.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fork_server import Forked

ROOT = Path(__file__).resolve().parent.parent
JVM = "STRANDLINE_TEST_JVM"
PYTHON = "STRANDLINE_TEST_PYTHON"


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module in a process of its own, in the JVM that the environment names (`jvm_environ`)."""
    return [sys.executable, str(ROOT / "tests" / "processes.py"), module, *arguments]


def own_jvm(module: str, *arguments: str) -> list[str]:
    """The command that runs a module as a user does."""
    return [sys.executable, "-m", module, *arguments]


def start(command: Sequence[str], *, cwd: Path, env: Mapping[str, str], **pipes: Any) -> Forked | subprocess.Popen[str]:
    """A module and its arguments in a process of its own: a fork that attaches to the JVM of the test run, or just what
    a user starts where there is none."""
    from tests.fork_server import Forked

    if JVM in env:
        return Forked(command, cwd=cwd, env=env, **pipes)
    return subprocess.Popen(own_jvm(*command), cwd=cwd, env=env, text=True, stdin=subprocess.DEVNULL, **pipes)


def jvm_environ() -> Mapping[str, str]:
    """Where the JVM of this process is, and the Python that it starts, for the processes that this one starts."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None, "no JVM runs in this process"
    context = SparkContext._active_spark_context
    assert context is not None
    parameters = gateway.gateway_parameters
    return {
        JVM: f"{parameters.port}:{parameters.auth_token}:{context._javaAccumulator.id()}",
        PYTHON: context.pythonExec,
    }


def environ_for_all_pythons(folder: Path) -> dict[str, str]:
    """As `jvm_environ`, for programs that start Python by themselves. Python loads a module from the folder first."""
    hook = f"import sys; sys.path.append({str(ROOT)!r}); import tests.processes as p; p.use_the_jvm_of_the_test_run()"
    (folder / "sitecustomize.py").write_text(hook, "utf-8")
    places = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**jvm_environ(), "PYTHONPATH": os.pathsep.join(places)}


def attach(*_: object) -> Any:
    """A SparkContext of this process in the JVM that the environment names."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    from strandline.iceberg.session.launch import CLASSES, PACKAGES
    from strandline.iceberg.session.spark_internals import name_packages

    os.environ["PYSPARK_PYTHON"] = os.environ.get(PYTHON, sys.executable)
    os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"], counters = os.environ[JVM].split(":")
    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    name_packages(gateway.jvm, PACKAGES, CLASSES)
    running = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    java = gateway.jvm.JavaSparkContext(running)
    context = SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jconf=running.conf()))
    _report_to_the_test_run(context, int(counters))
    return context


def _report_to_the_test_run(context: Any, counters: int) -> None:
    """Spark's scheduler reports to Python when a task of a Python function has ended, and waits for its answer. For a
    process that is stopped it would wait for ever, and every other process of this JVM with it. So it reports to the
    test run, by the accumulator of the context there, whose id is given."""
    from py4j.java_gateway import JavaClass

    known = JavaClass("org.apache.spark.util.AccumulatorContext", context._gateway._gateway_client)
    context._javaAccumulator = known.get(counters).get()


def use_the_jvm_of_the_test_run() -> None:
    """From now on, starting Spark means attaching to it, and nothing stops it. Modules that a fork was born with have
    names of their own for both; importing them here would load Spark for whoever does not need it."""
    from strandline.iceberg.session import launch

    for room in (launch, sys.modules.get("strandline.iceberg.session.lake_session")):
        if room is not None:
            room.start_context, room.stop_context = attach, lambda: None  # type: ignore[attr-defined]


def run_module(module: str) -> None:
    """As `python -m` does, with what is in `sys.argv`."""
    if JVM in os.environ:
        use_the_jvm_of_the_test_run()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    sys.argv = sys.argv[1:]
    sys.path[0] = str(ROOT)  # not the folder of this file
    run_module(sys.argv[0])


if __name__ == "__main__":
    main()
