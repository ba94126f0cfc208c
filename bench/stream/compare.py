"""The streaming source of Strandline against another streaming read in the same Spark: the same rows, into nothing.

Many rows are read in one batch of a query that begins with the first. For few rows, two queries run side by side, each
on a table of its own with the same rows; the times are those that Spark reports for the trigger.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import frames, lakes
from bench.measure import Bench, in_turn, settle_disk
from bench.results import Samples

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

    from strandline.lake import Lake

NEW = 1000
SAMPLES_MANY = 7
SAMPLES_FEW = 15
IDLE_TRIGGERS = 25
_BLOCKS = 8
_WAIT_SECONDS_MAX = 600


@dataclass(frozen=True, slots=True)
class Side:
    """A streaming read, and how rows get to where it reads them."""

    load: Callable[[str, str], DataFrame]
    """Of a table; the second is a name that no other query of the run has."""
    create: Callable[[str, list[dict[str, Any]]], object]
    append: Callable[[str, DataFrame], object]


@dataclass(frozen=True, slots=True)
class Found:
    many: Samples
    few: Samples
    idle: Samples


def ours(lake: Lake) -> Side:
    def load(table: str, name: str) -> DataFrame:
        options = {"lake": str(lake.config.home), "consumer": name}
        return lake.spark.readStream.format("strandline").options(**options).load(table)

    return Side(load, lambda table, columns: lakes.create(lake, table, columns), lake.append)


def compare(bench: Bench, lake: Lake, peer: Side) -> Found:
    """`peer`'s tables have names of their own, so that it can be one that reads ours."""
    import strandline

    lake.spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")
    strandline.register(lake.spark)
    sides = {"ours": ours(lake), "peer": peer}
    many = many_rows(bench, lake, sides)
    few, idle = few_rows(bench, lake, sides)
    return Found(many, few, idle)


def _start(frame: Any, checkpoint: Path, every: str) -> StreamingQuery:
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


def many_rows(bench: Bench, lake: Lake, sides: dict[str, Side]) -> Samples:
    count = bench.sized(4_000_000, 40_000)
    for name, side in sides.items():
        bench.say(f"filling a table of {count:,} rows")
        side.create(f"many_{name}", frames.EVENT_COLUMNS)
        for n in range(_BLOCKS):
            side.append(f"many_{name}", frames.events(lake.spark, n * count // _BLOCKS, count // _BLOCKS, 2))

    def read(name: str, n: int) -> float:
        settle_disk()
        checkpoint = bench.work / f"many-{name}-{n}"
        query = _start(sides[name].load(f"many_{name}", checkpoint.name), checkpoint, "0 seconds")
        try:
            _wait_for(query, count)
            return count / sum(int(p["durationMs"]["triggerExecution"]) / 1000 for p in query.recentProgress)
        finally:
            query.stop()

    for name in sides:  # warm-up
        read(name, -1)
    found = in_turn(bench, SAMPLES_MANY, *((lambda n, name=name: read(name, n)) for name in sides))
    return Samples(found[0], found[1], {"rows": count})


def few_rows(bench: Bench, lake: Lake, sides: dict[str, Side]) -> tuple[Samples, Samples]:
    held = bench.sized(1_000_000, 10_000)
    made = dict.fromkeys(sides, 0)

    def add(name: str, rows: int) -> None:
        sides[name].append(f"few_{name}", frames.readings(lake.spark, made[name], rows, 1))
        made[name] += rows

    def start(name: str, every: str) -> StreamingQuery:
        checkpoint = bench.work / f"few-{name}"
        return _start(sides[name].load(f"few_{name}", checkpoint.name), checkpoint, every)

    queries: dict[str, StreamingQuery] = {}
    try:

        def sample(name: str) -> float:
            add(name, NEW)
            _wait_for(queries[name], made[name])
            return _trigger_seconds(queries[name])

        for name, side in sides.items():
            side.create(f"few_{name}", frames.READING_COLUMNS)
            add(name, held)
            queries[name] = start(name, "1 second")
        for name, query in queries.items():
            _wait_for(query, held)
            for _ in range(3):  # warm-up
                sample(name)
        mine, theirs = in_turn(bench, SAMPLES_FEW, lambda n: sample("ours"), lambda n: sample("peer"))
    finally:
        for query in queries.values():
            query.stop()
    few = Samples(mine, theirs, {"rows": NEW, "table_rows": held})
    idle = [_idle_seconds(lake, start(name, "0 seconds")) for name in sides]
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
