"""What a person waits for in the shell: Spark up to its first Iceberg query, and commands that need no Spark."""

from __future__ import annotations

import sys
from pathlib import Path

from bench import frames, lakes
from bench.measure import Bench, Measurement, in_turn, seconds_of
from bench.results import Figure, Goal, Samples
from bench.shell import STRANDLINE, quietly, seconds_until_lines

START = Figure(
    "Spark from start to the first Iceberg query", "s", "spark.jars.packages and defaults", Goal(0.6, "at most")
)
COMMANDS = {"status": 0.8, "--help": 0.3, "--version": 0.3, "read events --limit 2": 2.0}
"""How many seconds each may take."""
QUERY = "SELECT count(*), max(user_id) FROM lake.default.events"

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
    started, peer_started = in_turn(
        bench, 5, lambda n: _until_answer(ours, bench.work), lambda n: _until_answer(peer, bench.work)
    )
    size = {"rows": rows}
    found = {START.name: Samples(started, peer_started, size)}
    commands = {name: _command(name, home) for name in COMMANDS}
    for command in commands.values():
        quietly(command)
    sides = (lambda n, c=command: seconds_of(lambda: quietly(c)) for command in commands.values())
    for name, taken in zip(commands, in_turn(bench, 7, *sides), strict=True):
        found[_shell(name).name] = Samples(taken, None, size)
    return found


def _shell(name: str) -> Figure:
    return Figure(f"`strandline {name}` from the shell", "s", None, Goal(COMMANDS[name], "at most", of="ours"))


def _command(name: str, home: Path) -> list[str]:
    needs_lake = not name.startswith("--")
    return [STRANDLINE, *name.split(), *(["--config", str(home)] if needs_lake else [])]


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
    [took], _ = seconds_until_lines(command, work, "[Row(")
    return took


MEASUREMENT = Measurement((START, *map(_shell, COMMANDS)), measure)
