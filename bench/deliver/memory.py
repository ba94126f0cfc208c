"""What a task holds while it builds and sends chunks, in chunks; and what the driver holds as deliveries grow.

`python -m bench.deliver.memory HOME SINK` is one driver: it ticks, ends, and says what it took at its peak.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

from bench import frames, lakes
from bench.ingest.driver_memory import SETTINGS
from bench.measure import Bench, Measurement, in_turn
from bench.results import Figure, Goal, Samples
from tests.spark_cluster import start_cluster

TASK = Figure("peak memory of a task that builds chunks, each way", "chunks", None, Goal(2.0, "at most", "ours"))
DRIVER = Figure(
    "peak memory of the driver at a delivery ten times larger",
    "MB",
    "the same at the smaller one",
    Goal(1.2, "at most"),
)
_CHUNK_ROWS = 450_000
"""About as many as the default of 64 MiB lets in."""
_CHUNKS = 5


def task(bench: Bench) -> dict[str, Samples]:
    """Five chunks through one task, into a real folder; Arrow's own account of what was held at once."""
    lake = lakes.new_lake(bench.work / "lake")
    rows = bench.sized(_CHUNK_ROWS, 5000)
    lakes.create(lake, "events", frames.EVENT_COLUMNS)
    bench.say("making the rows")
    lake.append("events", frames.events(lake.spark, 0, rows * _CHUNKS, 1))
    found: list[float] = []
    for n in range(5):
        bench.say(f"sample {n + 1} of 5")
        peaks = []
        for way in ("pack", "direct", "gathered", "spark"):
            command = [sys.executable, "-m", "bench.deliver.one_task", str(bench.work), way, str(rows), str(n)]
            run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            if run.returncode != 0:
                raise RuntimeError(f"the task failed: {run.stderr[-2000:]}")
            if way == "pack":
                continue
            said = json.loads(run.stdout)
            bench.say(f"{way}: {said}")
            peaks.append(said["peak"] / said["chunk"])
        found.append(max(peaks))
    return {TASK.name: Samples(found, None, {"rows": rows})}


def driver(bench: Bench) -> dict[str, Samples]:
    from strandline.iceberg.session.lake_session import stop_spark

    small = bench.sized(200_000, 20_000)
    home = bench.work / "lake"
    with lakes.new_lake(home) as lake:
        for name, rows in (("small", small), ("large", small * 10)):
            lakes.create(lake, name, frames.EVENT_COLUMNS)
            bench.say(f"making {rows:,} rows")
            lake.append(name, frames.events(lake.spark, 0, rows, 8))
            for n in range(5):
                options = {"path": str(bench.work / f"{name}-{n}"), "chunk_rows_max": str(small // 4)}
                lake.delivery.add(f"{name}-{n}", name, "files", options)
    stop_spark()
    with start_cluster(bench.work / "cluster") as cluster:
        with (home / "strandline.toml").open("a", encoding="utf-8") as settings:
            settings.write(SETTINGS.format(master=cluster.url))

        def peak(sink: str) -> float:
            command = [sys.executable, "-m", "bench.deliver.memory", str(home), sink]
            run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            if run.returncode != 0:
                raise RuntimeError(f"the driver failed: {run.stderr[-2000:]}")
            said = json.loads(run.stdout)
            bench.say(f"{said['rows']:,} rows: {said}")
            return float(said["python_mb"] + said["jvm_mb"])

        large, smaller = in_turn(bench, 5, lambda n: peak(f"large-{n}"), lambda n: peak(f"small-{n}"))
    return {DRIVER.name: Samples(large, smaller, {"rows": small * 10, "peer_rows": small})}


def drive(home: str, sink: str) -> None:
    from strandline.iceberg.session.lake_session import stop_spark
    from strandline.lake import open_lake

    with open_lake(Path(home)) as lake:
        report = lake.tick(sink).sinks[0]
    stop_spark()  # waits for the JVM, whose peak the system tells only then
    per_mb = 1e6 if sys.platform == "darwin" else 1e6 / 1024  # Linux counts in KiB, macOS in bytes
    found = {who: resource.getrusage(what).ru_maxrss for who, what in _WHO.items()}
    print(json.dumps({"rows": report.rows} | {f"{who}_mb": round(peak / per_mb, 1) for who, peak in found.items()}))


_WHO = {"python": resource.RUSAGE_SELF, "jvm": resource.RUSAGE_CHILDREN}
MEASUREMENTS = (Measurement((TASK,), task), Measurement((DRIVER,), driver))

if __name__ == "__main__":
    drive(*sys.argv[1:])
