"""The streaming source of Strandline against Iceberg's own streaming read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import lakes
from bench.measure import Bench, Measurement
from bench.results import Figure, Goal, Samples
from bench.stream.compare import Side, compare

if TYPE_CHECKING:
    from strandline.lake import Lake

PEER = "Iceberg's streaming read"
MANY = Figure("4 million rows through the streaming source", "rows/s", PEER, Goal(0.9, "at least"))
FEW = Figure("1,000 new rows in a trigger of the streaming source", "s", PEER, Goal(1.0, "at most"))
IDLE = Figure("an idle trigger of the streaming source", "s", PEER, Goal(0.1, "at most", "ours"))


def iceberg(lake: Lake) -> Side:
    return Side(
        lambda table, _: lake.spark.readStream.format("iceberg").load(f"lake.default.{table}"),
        lambda table, columns: lakes.create(lake, table, columns),
        lake.append,
    )


def measure(bench: Bench) -> dict[str, Samples]:
    lake = lakes.new_lake(bench.work / "lake")
    found = compare(bench, lake, iceberg(lake))
    lake.close()
    return {MANY.name: found.many, FEW.name: found.few, IDLE.name: found.idle}


MEASUREMENT = Measurement((MANY, FEW, IDLE), measure)
