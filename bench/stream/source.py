"""The streaming source of Strandline against Iceberg's own streaming read: the same rows, into nothing.

Many rows are read in one batch of a query that begins with the first. For few rows, two queries run side by side, each
on a table of its own with the same rows; the times are those that Spark reports for the trigger.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import frames, lakes
from bench.measure import Bench, Measurement, in_turn, settle_disk
from bench.results import Figure, Goal, Samples

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

    from strandline.lake import Lake

NEW = 1000
SAMPLES_MANY = 7
SAMPLES_FEW = 15
IDLE_TRIGGERS = 25
_BLOCKS = 8
_WAIT_SECONDS_MAX = 600

PEER = "Iceberg's streaming read"
MANY = Figure("4 million rows through the streaming source", "rows/s", PEER, Goal(0.9, "at least"))
FEW = Figure("1,000 new rows in a trigger of the streaming source", "s", PEER, Goal(1.0, "at most"))
IDLE = Figure("an idle trigger of the streaming source", "s", PEER, Goal(0.1, "at most", "ours"))

Started = Callable[[str, Path, str], "StreamingQuery"]


def ours(lake: Lake) -> Started:
    def start(table: str, checkpoint: Path, every: str) -> StreamingQuery:
        options = {"lake": str(lake.config.home), "consumer": checkpoint.name}
        return _started(lake.spark.readStream.format("strandline").options(**options).load(table), checkpoint, every)

    return start


def iceberg(lake: Lake) -> Started:
    def start(table: str, checkpoint: Path, every: str) -> StreamingQuery:
        return _started(lake.spark.readStream.format("iceberg").load(f"lake.default.{table}"), checkpoint, every)

    return start


def _started(frame: Any, checkpoint: Path, every: str) -> StreamingQuery:
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query: StreamingQuery = writer.trigger(processingTime=every).start()
    return query


def _rows(query: StreamingQuery) -> int:
    return sum(int(p["numInputRows"]) for p in query.recentProgress)


def _wait_for(query: StreamingQuery, rows: int) -> None:
    ends = time.monotonic() + _WAIT_SECONDS_MAX
    while _rows(query) < rows:
        if not query.isActive or time.monotonic() > ends:
            raise RuntimeError(f"the stream has {_rows(query)} of {rows} rows: {query.exception()}")
        time.sleep(0.02)


def _trigger_seconds(query: StreamingQuery) -> float:
    """Of the newest trigger that had rows, as Spark measured it."""
    last = next(p for p in reversed(query.recentProgress) if p["numInputRows"])
    return int(last["durationMs"]["triggerExecution"]) / 1000


def many_rows(bench: Bench, lake: Lake) -> Samples:
    count = bench.sized(4_000_000, 40_000)
    lakes.create(lake, "many", frames.EVENT_COLUMNS)
    for n in range(_BLOCKS):
        bench.say(f"filling a table of {count:,} rows")
        lake.append("many", frames.events(lake.spark, n * count // _BLOCKS, count // _BLOCKS, 2))

    def read(side: str, start: Started, n: int) -> float:
        settle_disk()
        query = start("many", bench.work / f"{side}-{n}", "0 seconds")
        try:
            _wait_for(query, count)
            return count / sum(int(p["durationMs"]["triggerExecution"]) / 1000 for p in query.recentProgress)
        finally:
            query.stop()

    sides = (("ours", ours(lake)), ("peer", iceberg(lake)))
    for side, start in sides:  # warm-up
        read(side, start, -1)
    found = in_turn(bench, SAMPLES_MANY, *((lambda n, s=s, t=t: read(s, t, n)) for s, t in sides))
    return Samples(found[0], found[1], {"rows": count})


def few_rows(bench: Bench, lake: Lake) -> tuple[Samples, Samples]:
    held = bench.sized(1_000_000, 10_000)
    made: dict[str, int] = {}

    def add(table: str, rows: int) -> None:
        first = made.get(table, 0)
        lake.append(table, frames.readings(lake.spark, first, rows, 1))
        made[table] = first + rows

    for table in ("mine", "theirs"):
        lakes.create(lake, table, frames.READING_COLUMNS)
        add(table, held)
    queries = {
        "mine": ours(lake)("mine", bench.work / "few-ours", "1 second"),
        "theirs": iceberg(lake)("theirs", bench.work / "few-peer", "1 second"),
    }
    try:

        def sample(table: str) -> float:
            add(table, NEW)
            _wait_for(queries[table], made[table])
            return _trigger_seconds(queries[table])

        for table, query in queries.items():
            _wait_for(query, held)
            for _ in range(3):  # warm-up
                sample(table)
        mine, theirs = in_turn(bench, SAMPLES_FEW, lambda n: sample("mine"), lambda n: sample("theirs"))
    finally:
        for query in queries.values():
            query.stop()
    few = Samples(mine, theirs, {"rows": NEW, "table_rows": held})
    idle = [
        _idle_seconds(lake, start(table, bench.work / f"few-{side}", "0 seconds"))
        for side, table, start in (("ours", "mine", ours(lake)), ("peer", "theirs", iceberg(lake)))
    ]
    return few, Samples(idle[0], idle[1])


def _idle_seconds(lake: Lake, query: StreamingQuery) -> list[float]:
    """From one idle trigger to the next: Spark says when each ended, and waits for 10 ms in between."""
    try:
        with _idle_moments(lake) as moments:
            query.processAllAvailable()
            moments.clear()
            ends = time.monotonic() + _WAIT_SECONDS_MAX
            while len(moments) <= IDLE_TRIGGERS and time.monotonic() < ends:
                time.sleep(0.05)
            found = list(moments)
    finally:
        query.stop()
    return [(b - a).total_seconds() for a, b in itertools.pairwise(found)]


@contextmanager
def _idle_moments(lake: Lake) -> Iterator[list[datetime]]:
    from pyspark.sql.streaming import StreamingQueryListener

    moments: list[datetime] = []

    class Idle(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None: ...
        def onQueryProgress(self, event: Any) -> None: ...
        def onQueryTerminated(self, event: Any) -> None: ...

        def onQueryIdle(self, event: Any) -> None:
            moments.append(datetime.fromisoformat(event.timestamp))

    listener = Idle()
    lake.spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "0")
    lake.spark.streams.addListener(listener)
    try:
        yield moments
    finally:
        lake.spark.streams.removeListener(listener)


def measure(bench: Bench) -> dict[str, Samples]:
    import strandline

    lake = lakes.new_lake(bench.work / "lake")
    lake.spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")
    strandline.register(lake.spark)
    found = {MANY.name: many_rows(bench, lake)}
    few, idle = few_rows(bench, lake)
    lake.close()
    return found | {FEW.name: few, IDLE.name: idle}


MEASUREMENT = Measurement((MANY, FEW, IDLE), measure)
