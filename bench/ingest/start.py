"""What a person waits for in the shell: Spark up to its first Iceberg query, and `strandline status`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from bench import frames, lakes
from bench.measure import Bench, Measurement, in_turn, seconds_of
from bench.results import Figure, Goal, Samples

START = Figure(
    "Spark from start to the first Iceberg query", "s", "spark.jars.packages and defaults", Goal(0.6, "at most")
)
STATUS = Figure("`strandline status` from the shell, no JVM", "s", None, Goal(1.0, "at most", of="ours"))
QUERY = "SELECT count(*), max(user_id) FROM lake.default.events"
_STRANDLINE = Path(sys.executable).with_name("strandline")

OURS = """
import sys
from strandline.lake import open_lake

lake = open_lake(sys.argv[1])
print(lake.spark.sql(sys.argv[2]).collect(), flush=True)
"""

PEER = """
import sys
from pyspark.sql import SparkSession

home, query, packages, ivy = sys.argv[1:]
name = "spark.sql.catalog.lake"
spark = (
    SparkSession.builder.config("spark.jars.packages", packages)
    .config("spark.jars.ivy", ivy)
    .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
    .config(name, "org.apache.iceberg.spark.SparkCatalog")
    .config(f"{name}.type", "jdbc")
    .config(f"{name}.uri", f"jdbc:sqlite:{home}/catalog.db")
    .config(f"{name}.jdbc.schema-version", "V1")
    .config(f"{name}.warehouse", f"file://{home}/warehouse")
    .getOrCreate()
)
print(spark.sql(query).collect(), flush=True)
"""


def measure(bench: Bench) -> dict[str, Samples]:
    home = bench.work / "lake"
    rows = 1000
    _fill(home, rows)
    peer = [sys.executable, "-c", PEER, str(home), QUERY, _packages(), str(_ivy())]
    ours = [sys.executable, "-c", OURS, str(home), QUERY]
    bench.say("warming up")  # what both fetch or make once is not part of a start
    for command in (ours, peer):
        _until_answer(command, bench.work)
    count = 5
    started, peer_started = in_turn(
        bench, count, lambda n: _until_answer(ours, bench.work), lambda n: _until_answer(peer, bench.work)
    )
    status = [str(_STRANDLINE), "status", "--config", str(home)]
    _quietly(status)
    (shown,) = in_turn(bench, 7, lambda n: seconds_of(lambda: _quietly(status)))
    size = {"rows": rows}
    return {START.name: Samples(started, peer_started, size), STATUS.name: Samples(shown, None, size)}


def _fill(home: Path, rows: int) -> None:
    from strandline.iceberg.session.lake_session import stop_spark

    with lakes.new_lake(home) as lake:
        dataset = lakes.create(lake, "events", frames.EVENT_COLUMNS)
        lake.append(dataset.name, frames.events(lake.spark, 0, rows, 1))
    stop_spark()


def _packages() -> str:
    from strandline.iceberg.session.jars import needed_jars

    return ",".join(jar.coordinates for jar in needed_jars(s3=False))


def _ivy() -> Path:
    """Kept between runs, as Ivy's own folder would be."""
    return Path(__file__).parents[2] / ".cache" / "bench-ivy"


def _until_answer(command: list[str], work: Path) -> float:
    """From the start of the process to the query's answer; what it takes to end is not counted."""
    began = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=work, text=True
    ) as process:
        answer = process.stdout.readline() if process.stdout else ""
        took = time.perf_counter() - began
        _, said = process.communicate()
    if not answer.startswith("[Row("):
        raise RuntimeError(f"no answer: {said[-2000:]}")
    return took


def _quietly(command: list[str]) -> None:
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)


MEASUREMENT = Measurement((START, STATUS), measure)
