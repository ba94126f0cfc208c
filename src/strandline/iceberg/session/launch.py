"""Starts the process's one Spark, quietly and quickly.

The JVM's standard output and error go to a log file: Spark, Ivy, log4j and the JVM itself each print to a terminal in
their own way, and this stops all of them at once.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.core.errors import ConfigError, FailedError, RuntimeMissing
from strandline.iceberg.session import spark_internals, strandline_worker_daemon
from strandline.iceberg.session.jars import spark_home
from strandline.iceberg.session.java import JavaFound

if TYPE_CHECKING:
    from pyspark import SparkContext

_STOP_TIMEOUT_SECONDS = 60
LOG4J2_CONFIG = Path(__file__).with_name("log4j2.properties")

# Spark's own default does not cover `s3.access-key-id` and `credential`
REDACTED = "(?i)secret|password|passwd|token|credential|access[.-]?key"

PACKAGES = (
    "java.io",
    "java.lang",
    "java.util",
    "org.apache.iceberg.catalog",
    "org.apache.iceberg.expressions",
    "org.apache.iceberg.spark.actions",
    "org.apache.iceberg.types",
    "org.apache.iceberg.util",
    "org.apache.spark.sql",
    "py4j.reflection",
)
CLASSES = (
    "org.apache.spark.api.python.PythonErrorUtils",
    "org.apache.spark.api.python.PythonUtils",
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.internal.SQLConf",
)
"""PySpark looks these classes up for each expression and each error."""

DAEMON_ON_EXECUTORS = strandline_worker_daemon.__name__.rpartition(".")[2]
"""Its name without a package: Spark copies the file to the executors by itself (`executor_code.py`)."""

_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


def is_local(master: str) -> bool:
    return master.partition("[")[0] == "local"


def java_options(*, local: bool, archive_flags: tuple[str, ...], further: str) -> str:
    """The driver's JVM flags. The user's flags come last and win."""
    flags = ["-Duser.timezone=UTC", "-Dfile.encoding=UTF-8", f"-Dlog4j2.configurationFile={LOG4J2_CONFIG.as_uri()}"]
    flags += ["-Dlog4j2.disableJmx=true", "-XX:-UsePerfData", "-Xshare:auto", "-Xlog:disable", *archive_flags]
    if local and not re.search(r"-XX:\+Use\w+GC", further):
        # Concurrent collectors cost more at the start than they gain. The JVM refuses flags for two collectors.
        flags.append("-XX:+UseSerialGC")
    return " ".join([*map(_quoted, flags), *([further] if further else [])])


def context_options(
    *,
    master: str,
    driver_memory: str,
    jars: tuple[Path, ...],
    archive_flags: tuple[str, ...],
    scratch: Path,
    options: Mapping[str, str],
) -> dict[str, str]:
    """Everything that the JVM needs at its start. Settings of one lake are set on its session instead."""
    local = is_local(master)
    ours = {
        "spark.master": master,
        "spark.app.name": "strandline",
        "spark.driver.memory": driver_memory,
        "spark.log.level": "ERROR",  # otherwise the gateway sets WARN, as for a shell
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Spark describes each plan for the UI, even if there is no UI. A full description takes a fifteenth of a small
        # query's time.
        "spark.sql.ui.explainMode": "simple",
        # The status store keeps these even if there is no UI. A daemon should not keep a thousand old jobs.
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "10000",
        "spark.sql.ui.retainedExecutions": "50",
        "spark.sql.extensions": _EXTENSIONS,
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": (scratch / "spark-warehouse").as_uri(),
        "spark.sql.session.timeZone": "UTC",
        "spark.redaction.regex": REDACTED,
        # Sinks are delivered in parallel: a large job of one sink must not delay the small jobs of others.
        "spark.scheduler.mode": "FAIR",
        "spark.python.daemon.module": "strandline.iceberg.session.worker_daemon",
    }
    if local:
        # Not the host's name: resolving it can be slow or wrong, or change with the network.
        ours |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    else:
        ours["spark.jars"] = ",".join(jar.as_uri() for jar in jars)
        ours["spark.python.daemon.module"] = DAEMON_ON_EXECUTORS
    _refuse_secret_flags(options)
    merged = ours | dict(options)
    class_path = [*map(str, jars), *filter(None, [options.get("spark.driver.extraClassPath")])]
    merged["spark.driver.extraClassPath"] = os.pathsep.join(class_path)
    merged["spark.driver.extraJavaOptions"] = java_options(
        local=local, archive_flags=archive_flags, further=options.get("spark.driver.extraJavaOptions", "")
    )
    return merged


_FLAG_SETTINGS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions", "spark.executor.extraJavaOptions")
_SECRET_FLAG = re.compile(rf"-D(\S*?(?:{REDACTED.removeprefix('(?i)')})[^\s=]*)=", re.IGNORECASE)


def _refuse_secret_flags(options: Mapping[str, str]) -> None:
    """Raises ConfigError for secrets in the JVM's flags, which all users can see as arguments of its process."""
    for name in _FLAG_SETTINGS:
        if (flag := _SECRET_FLAG.search(options.get(name, ""))) is not None:
            raise ConfigError(
                f"spark.options: {name} has {flag[1]}, and all users of the machine can see the flags of a JVM",
                hint="Put it into a file, and name the file with @FILE in JDK_JAVA_OPTIONS, or use a Spark setting.",
            )


def start_context(options: Mapping[str, str], java: JavaFound, log: Path) -> SparkContext:
    """Starts the JVM and Spark. Nothing is printed to the terminal, even on failure. Raises RuntimeMissing and
    FailedError."""
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf(loadDefaults=False)
    for key, value in options.items():
        conf.set(key, value)
    with (
        _settings_file(options) as file,
        log.open("wb") as sink,
        spark_internals.launch_environment(_launch_environment(options, java, file)),
    ):
        try:
            # Called without the settings: pyspark would pass them as arguments, which all users of the machine can see.
            gateway = launch_gateway(popen_kwargs={"stdout": sink, "stderr": sink})  # type: ignore[no-untyped-call]
        except PySparkRuntimeError as e:
            raise RuntimeMissing(
                f"Spark's Java process did not start: {last_useful_line(_read(log)) or e}",
                hint=f"Its output is in {log}. `strandline doctor` checks what Spark needs.",
            ) from e
        spark_internals.name_packages(gateway.jvm, PACKAGES, CLASSES)
        try:
            context = SparkContext(conf=conf, gateway=gateway)
        except Exception as e:
            end_jvm(gateway)
            raise FailedError(
                f"Spark did not start: {java_message(e) or last_useful_line(_read(log))}",
                hint=f"Its output is in {log}.",
            ) from e
    if python := worker_python(options):
        context.pythonExec = python  # pyspark takes it from the environment of the process
    return context


def worker_python(options: Mapping[str, str]) -> str | None:
    """The Python program of the executors. None if the cluster decides."""
    return options.get("spark.pyspark.python") or (sys.executable if is_local(options["spark.master"]) else None)


def stop_context() -> int | None:
    """Stops Spark and its JVM, so that the next start can have another class path. Returns the JVM's exit code."""
    if (context := spark_internals.running_context()) is not None:
        context.stop()
    spark_internals.forget_sessions()
    return None if (gateway := spark_internals.gateway()) is None else end_jvm(gateway)


def end_jvm(gateway: Any) -> int | None:
    """Ends the JVM and waits for it. Returns its exit code. pyspark itself would leave the JVM running until the Python
    process ends."""
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    spark_internals.forget_gateway()
    gateway.shutdown()
    if process is None:
        return None
    if process.stdin is not None:
        process.stdin.close()  # Spark's gateway ends its JVM when this pipe closes
    try:
        return process.wait(_STOP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def java_message(error: BaseException) -> str | None:
    """The message of a Java exception, without its stack trace."""
    if (java := getattr(error, "java_exception", None)) is None:
        return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return str(java.toString()).splitlines()[0]


def last_useful_line(text: str) -> str | None:
    """The most useful line of a Java log: the last cause, otherwise the last line that names an error."""
    lines = [line.strip() for line in text.splitlines()]
    if causes := [line for line in lines if line.startswith("Caused by: ")]:
        return causes[-1].removeprefix("Caused by: ")
    frame = re.compile(r"^(at |\.\.\. \d+ more|WARNING: Using incubator|Picked up )")
    other = [line for line in lines if line and not frame.match(line)]
    error = re.compile(r"exception|error|could not|invalid|unrecognized", re.IGNORECASE)
    errors = [line for line in other if error.search(line)]
    return next(reversed(errors or other), None)


def _read(log: Path) -> str:
    try:
        return log.read_text("utf-8", errors="replace")
    except OSError:
        return ""


@contextmanager
def _settings_file(options: Mapping[str, str]) -> Iterator[Path]:
    """Writes the settings to a file that only this user can read. The file exists until Spark's JVM has read it."""
    with tempfile.TemporaryDirectory(prefix="strandline-spark-") as folder:  # its mode is 0700
        file = Path(folder) / "spark.conf"
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as handle:
            handle.writelines(f"{_escaped(key)}={_escaped(value)}\n" for key, value in options.items())
        yield file


def _escaped(text: str) -> str:
    """The text escaped for `java.util.Properties`."""
    units = text.encode("utf-16-be", "surrogatepass")
    numbers = (int.from_bytes(units[n : n + 2]) for n in range(0, len(units), 2))
    return "".join(chr(n) if 0x21 <= n <= 0x7E and chr(n) not in "\\=:#!" else f"\\u{n:04x}" for n in numbers)


def _launch_environment(options: Mapping[str, str], java: JavaFound, settings: Path) -> dict[str, str | None]:
    environ: dict[str, str | None] = {
        "JAVA_HOME": str(java.home),
        "PYSPARK_SUBMIT_ARGS": f"--load-spark-defaults --properties-file {shlex.quote(str(settings))} pyspark-shell",
        "SPARK_REMOTE": None,
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -XX:-UsePerfData",
    }
    if is_local(options["spark.master"]):
        # Another Spark's folder has other jars, and the first python3 on the PATH may lack our packages.
        environ["SPARK_HOME"] = str(spark_home())
        environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if python := worker_python(options):
        environ["PYSPARK_PYTHON"] = python
    locale = os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG") or ""
    if sys.platform == "linux" and "utf" not in locale.lower():
        environ["LC_ALL"] = "C.UTF-8"  # otherwise Java cannot open files with non-ASCII names
    return environ


def _quoted(flag: str) -> str:
    """The flag in quotes, if it needs them. Spark's launcher splits options like a shell."""
    if re.fullmatch(r"[^\s\"'\\]+", flag):
        return flag
    return '"' + flag.replace("\\", "\\\\").replace('"', '\\"') + '"'
