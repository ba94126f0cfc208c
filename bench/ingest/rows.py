"""Ingest against a plain Iceberg append of the same DataFrame, in the same session."""

from __future__ import annotations

from bench import frames, lakes
from bench.measure import Bench, Measurement, in_turn, seconds_of, settle_disk
from bench.results import Figure, Goal, Samples

_PEER = "plain Iceberg append of the same DataFrame"
INGEST = Figure("ingest of 4 million rows", "rows/s", _PEER, Goal(0.9, "at least"))
WITH_ID = Figure("ingest of 4 million rows with a batch id (a digest of every row)", "rows/s", _PEER, None)


def measure(bench: Bench) -> dict[str, Samples]:
    rows = bench.sized(4_000_000, 40_000)
    lake = lakes.new_lake(bench.work / "lake")
    bench.say("making the rows")
    source = bench.work / "source"
    size = frames.write_events(lake.spark, source, rows, files=4)
    frame = lake.spark.read.parquet(str(source))

    def ingest(name: str, batch_id: str | None) -> float:
        dataset = lakes.create(lake, name, frames.EVENT_COLUMNS)
        settle_disk()
        took = seconds_of(lambda: lake.append(dataset.name, frame, batch_id=batch_id))
        lakes.remove(lake, f"lake.{dataset.name}")
        return rows / took

    def plain(n: int) -> float:
        like = lakes.create(lake, f"like_{n}", frames.EVENT_COLUMNS)
        table = lakes.plain_table(lake, f"events_{n}", like)
        settle_disk()
        took = seconds_of(lambda: frame.writeTo(table).append())
        lakes.remove(lake, table, f"lake.{like.name}")
        return rows / took

    sides = (lambda n: ingest(f"a_{n}", None), plain, lambda n: ingest(f"b_{n}", f"batch-{n}"))
    bench.say("warming up")
    for side in sides:
        side(99)
    ours, peer, with_id = in_turn(bench, 5, *sides)
    shape = {"rows": rows, "source_bytes": size, "columns": len(frames.EVENT_COLUMNS)}
    return {INGEST.name: Samples(ours, peer, shape), WITH_ID.name: Samples(with_id, peer, shape)}


MEASUREMENT = Measurement((INGEST, WITH_ID), measure)
