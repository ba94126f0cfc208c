"""Real processes for tests that kill and stop them, without a JVM for each.

`python tests/processes.py MODULE ARGUMENTS` runs the module in a process of its own, as `python -m MODULE` would.
Where it would start a JVM, it attaches to the one of the test run instead, which takes a tenth of the time.
`SIGKILL` ends the Python process as always. The JVM lives on, so Spark may go on with what it was doing for that
process: a harder test than a JVM that ends with it.

A test of what users see, or of how the JVM itself ends, uses `own_jvm`.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
JVM = "STRANDLINE_TEST_JVM"


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module in a process of its own, in the JVM that the environment names (`jvm_environ`)."""
    return [sys.executable, str(ROOT / "tests" / "processes.py"), module, *arguments]


def own_jvm(module: str, *arguments: str) -> list[str]:
    """The command that runs a module as a user does."""
    return [sys.executable, "-m", module, *arguments]


def jvm_environ() -> Mapping[str, str]:
    """Where the JVM of this process is, for the processes that it starts."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None, "no JVM runs in this process"
    parameters = gateway.gateway_parameters
    return {JVM: f"{parameters.port}:{parameters.auth_token}"}


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

    from strandline.iceberg.session.launch import _name_packages

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_GATEWAY_PORT"], _, os.environ["PYSPARK_GATEWAY_SECRET"] = os.environ[JVM].partition(":")
    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    _name_packages(gateway.jvm)
    running = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    java = gateway.jvm.JavaSparkContext(running)
    return SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jconf=running.conf()))


def use_the_jvm_of_the_test_run() -> None:
    """From now on, starting Spark means attaching to it, and nothing stops it."""
    from strandline.iceberg.session import launch

    launch.start_context = attach
    launch.stop_context = lambda: None


def main() -> None:
    module, *arguments = sys.argv[1:]
    if JVM in os.environ:
        use_the_jvm_of_the_test_run()
    sys.argv = [module, *arguments]
    sys.path[0] = str(ROOT)  # not the folder of this file
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
