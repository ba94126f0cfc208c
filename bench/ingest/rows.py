"""Ingest against a plain Iceberg append of the same DataFrame, in the same session."""

from __future__ import annotations

from pathlib import Path

from bench import frames, lakes
from bench.measure import Bench, Measurement, in_turn, seconds_of, settle_disk
from bench.results import Figure, Goal, Samples
from strandline.lake import Lake

PEER = "plain Iceberg append of the same DataFrame"
INGEST = Figure("ingest of 4 million rows", "rows/s", PEER, Goal(0.95, "at least"))
WITH_ID = Figure(
    "ingest of 4 million rows with a batch id (a digest of every row)", "rows/s", PEER, Goal(0.8, "at least")
)


class IngestSides:
    """The same rows into a new table each time, by us and by Spark. Both give rows by second."""

    def __init__(self, lake: Lake, source: Path, rows: int) -> None:
        self.lake, self.rows = lake, rows
        self.source_bytes = frames.write_events(lake.spark, source, rows, files=4)
        self._frame = lake.spark.read.parquet(str(source))

    def ingest(self, name: str, batch_id: str | None = None) -> float:
        dataset = lakes.create(self.lake, name, frames.EVENT_COLUMNS)
        settle_disk()
        took = seconds_of(lambda: self.lake.append(dataset.name, self._frame, batch_id=batch_id))
        lakes.remove(self.lake, f"lake.{dataset.name}")
        return self.rows / took

    def plain(self, n: int) -> float:
        like = lakes.create(self.lake, f"like_{n}", frames.EVENT_COLUMNS)
        table = lakes.plain_table(self.lake, f"events_{n}", like)
        settle_disk()
        took = seconds_of(lambda: self._frame.writeTo(table).append())
        lakes.remove(self.lake, table, f"lake.{like.name}")
        return self.rows / took


def measure(bench: Bench) -> dict[str, Samples]:
    lake = lakes.new_lake(bench.work / "lake")
    bench.say("making the rows")
    of = IngestSides(lake, bench.work / "source", bench.sized(4_000_000, 40_000))
    sides = (lambda n: of.ingest(f"a_{n}"), of.plain, lambda n: of.ingest(f"b_{n}", f"batch-{n}"))
    bench.say("warming up")
    for side in sides:
        side(99)
    ours, peer, with_id = in_turn(bench, 5, *sides)
    shape = {"rows": of.rows, "source_bytes": of.source_bytes, "columns": len(frames.EVENT_COLUMNS)}
    return {INGEST.name: Samples(ours, peer, shape), WITH_ID.name: Samples(with_id, peer, shape)}


MEASUREMENT = Measurement((INGEST, WITH_ID), measure)
