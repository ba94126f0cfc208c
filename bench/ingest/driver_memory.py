"""The driver's peak memory, Python and JVM together, at a batch and at one ten times larger.

`python -m bench.ingest.driver_memory HOME SOURCE` is one driver: it ingests, ends, and says what it took at its peak.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

from bench import frames, lakes
from bench.measure import Bench, Measurement, in_turn
from bench.results import Figure, Goal, Samples
from tests.spark_cluster import start_cluster

PEAK = Figure(
    "peak memory of the driver at a batch ten times larger", "MB", "the same at the smaller batch", Goal(1.2, "at most")
)
SETTINGS = """
[spark]
master = "{master}"
[spark.options]
"spark.executor.memory" = "1g"
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"""


def measure(bench: Bench) -> dict[str, Samples]:
    small = bench.sized(200_000, 20_000)
    home = bench.work / "lake"
    _prepare(bench, home, small)
    with start_cluster(bench.work / "cluster") as cluster:
        with (home / "strandline.toml").open("a", encoding="utf-8") as settings:
            settings.write(SETTINGS.format(master=cluster.url))

        def peak(source: str) -> float:
            command = [sys.executable, "-m", "bench.ingest.driver_memory", str(home), str(bench.work / source)]
            run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            if run.returncode != 0:
                raise RuntimeError(f"the driver failed: {run.stderr[-2000:]}")
            said = json.loads(run.stdout)
            bench.say(f"{said['rows']:,} rows: {said}")
            return float(said["python_mb"] + said["jvm_mb"])

        large, smaller = in_turn(bench, 5, lambda n: peak("large"), lambda n: peak("small"))
    return {PEAK.name: Samples(large, smaller, {"rows": small * 10, "peer_rows": small})}


def _prepare(bench: Bench, home: Path, small: int) -> None:
    from strandline.iceberg.session.lake_session import stop_spark

    with lakes.new_lake(home) as lake:
        lakes.create(lake, "events", frames.EVENT_COLUMNS)
        bench.say("making the rows")
        frames.write_events(lake.spark, bench.work / "small", small, files=1)
        frames.write_events(lake.spark, bench.work / "large", small * 10, files=10)
    stop_spark()


def drive(home: str, source: str) -> None:
    from strandline.iceberg.session.lake_session import stop_spark
    from strandline.lake import open_lake

    with open_lake(home) as lake:
        done = lake.append("events", lake.spark.read.parquet(source))
    stop_spark()  # waits for the JVM, whose peak the system tells only then
    found = {who: resource.getrusage(what).ru_maxrss for who, what in _WHO.items()}
    # Linux counts in KiB, macOS in bytes.
    per_mb = 1e6 if sys.platform == "darwin" else 1e6 / 1024
    print(json.dumps({"rows": done.row_count} | {f"{who}_mb": round(peak / per_mb, 1) for who, peak in found.items()}))


_WHO = {"python": resource.RUSAGE_SELF, "jvm": resource.RUSAGE_CHILDREN}

MEASUREMENT = Measurement((PEAK,), measure)

if __name__ == "__main__":
    drive(*sys.argv[1:])
