"""A process that is killed when its rows are at the target, and before it has noted that they are. Then another one
takes over.

Into files: a sink beside `foreachBatch` with a `df.write` in it, which Spark gives the same batch again. Into
PostgreSQL: a sink beside dlt, which appends. There, the moment in question is short; a crash hits it one day.
"""

from __future__ import annotations

import subprocess
import sys
import time

from bench import lakes
from bench.deliver.other_tools import metadata_of
from bench.faults import for_each_batch
from bench.faults.counting import COLUMNS, Arrived, arrived, count, figures, numbers_below
from bench.measure import Bench, Measurement
from bench.peers.environment import PeerFailed, running, versions
from bench.results import Samples
from strandline.cli.demo.scene import killed_child
from strandline.lake import Lake

_EVENT = "killed between the rows at the target and the note of it"
TO_FILES = {
    "foreachBatch": figures(f"{_EVENT}, into files", "Iceberg's streaming read, df.write.parquet in foreachBatch")
}
TO_POSTGRES = {"dlt": figures(f"{_EVENT}, into PostgreSQL", f"dlt {versions('dlt')['dlt']}, write_disposition append")}
_LEASE = {"STRANDLINE_DELIVER__LEASE_SECONDS": "3"}  # of the process that is killed; the next one waits for it
_SECONDS_MAX = 120


def to_files(bench: Bench) -> dict[str, Samples]:
    lake, rows = _lake(bench)

    def once(n: int) -> dict[str, Arrived]:
        ours, theirs = bench.work / f"ours-{n}", bench.work / f"theirs-{n}"
        _deliver_killed(lake, f"out{n}", "files", {"path": str(ours)}, "files.after_link=kill", rows)
        command = [sys.executable, "-m", "bench.faults.for_each_batch", str(lake.config.home), str(theirs)]
        killed = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if killed.returncode != -9:
            raise RuntimeError(f"the query that was to be killed ended with {killed.returncode}: {killed.stderr}")
        for_each_batch.copy(lake, theirs, lambda: None)
        return {"ours": arrived(numbers_below(ours), rows), "foreachBatch": arrived(numbers_below(theirs), rows)}

    found = count(bench, rows, TO_FILES, once)
    lake.close()
    return found


def to_postgres(bench: Bench) -> dict[str, Samples]:
    from tests.servers import start_postgres

    lake, rows = _lake(bench)
    postgres = start_postgres()
    try:

        def once(n: int) -> dict[str, Arrived]:
            url = postgres.create_database()
            options = {"dsn": url, "table": "rows", "create": "true"}
            _deliver_killed(lake, f"out{n}", "postgres", options, "postgres.after_commit=kill", rows)
            _run_dlt_killed(bench, lake, url, f"by_dlt_{n}")
            return {
                "ours": arrived(_numbers(url, "public"), rows),
                "dlt": arrived(_numbers(url, f"by_dlt_{n}"), rows),
            }

        found = count(bench, rows, TO_POSTGRES, once)
    finally:
        postgres.server.stop()
    lake.close()
    return found


def _lake(bench: Bench) -> tuple[Lake, int]:
    lake, rows = lakes.new_lake(bench.work / "lake"), bench.sized(10_000, 1_000)
    lakes.create(lake, for_each_batch.DATASET, COLUMNS)
    numbers = lake.spark.range(0, rows, 1, 1)
    lake.append(for_each_batch.DATASET, numbers.selectExpr("id AS n", "timestamp_seconds(1700000000 + id) AS at"))
    return lake, rows


def _deliver_killed(lake: Lake, sink: str, kind: str, options: dict[str, str], failpoint: str, rows: int) -> None:
    lake.delivery.add(sink, for_each_batch.DATASET, kind, options)
    killed_child(lake.config.home, "tick", failpoint=failpoint, settings=_LEASE)
    deadline = time.monotonic() + _SECONDS_MAX
    while (report := lake.tick(sink).sinks[0]).did != "idle":
        if time.monotonic() > deadline:
            raise RuntimeError(f"the sink did not continue: {report.reason}")
        time.sleep(0.1)


def _run_dlt_killed(bench: Bench, lake: Lake, url: str, name: str) -> None:
    work = bench.work / "dlt"
    question = {
        "name": name,
        "metadata": metadata_of(lake, for_each_batch.DATASET),
        "cursor": "at",
        "columns": ["n", "at"],
    }
    for killed in (True, False):
        with running("dlt_pipeline", work) as dlt:
            # The server asks for no password, but dlt insists on having one.
            dlt.ask("open", name=name, destination="postgres", target=url.replace("postgres@", "postgres:none@"))
            if killed:
                dlt.ask("be_killed")
                try:
                    dlt.ask("run", **question)
                except PeerFailed:
                    continue
                raise RuntimeError("dlt was not killed")
            for _ in range(2):  # the first run only takes over what the killed one has left
                dlt.ask("run", **question)


def _numbers(url: str, schema: str) -> list[int]:
    import psycopg

    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute(f'SELECT n FROM "{schema}".rows')]  # type: ignore[call-overload]


FILES = Measurement(TO_FILES["foreachBatch"], to_files)
POSTGRES = Measurement(TO_POSTGRES["dlt"], to_postgres)
