"""A tick with nothing to do, and one with a thousand new rows, against Iceberg's streaming read doing the same."""

from __future__ import annotations

from bench import frames, lakes
from bench.deliver.peers import StreamingRead
from bench.measure import Bench, Measurement, in_turn, seconds_of
from bench.read.new_rows import Table
from bench.results import Figure, Goal, Samples

NEW = 1000
SAMPLES = 15
IDLE = Figure(
    "an idle tick of one sink, in the daemon", "ms", "Iceberg's streaming read, nothing new", Goal(0.05, "at most")
)
IDLE_ITSELF = Figure("an idle tick of one sink, by itself", "ms", None, Goal(5.0, "at most", "ours"))
FEW = Figure("1,000 new rows to files", "s", "Iceberg's streaming read writing the same Parquet", Goal(0.5, "at most"))
SIZES = Figure(
    "1,000 new rows to files from a table of 20 million rows",
    "s",
    "from a table of 1 million rows",
    Goal(1.3, "at most"),
)


def measure(bench: Bench) -> dict[str, Samples]:
    lake = lakes.new_lake(bench.work / "lake")
    tables = {
        "large": Table(lake, "large", bench.sized(20_000_000, 200_000)),
        "small": Table(lake, "small", bench.sized(1_000_000, 10_000)),
    }
    for name, table in tables.items():
        table.fill(bench)
        lake.delivery.add(name, name, "files", {"path": str(bench.work / name)}, from_now=True)
    peer = StreamingRead(lake.spark, "lake.default.small", bench.work / "peer")
    peer.start_now()
    first = dict.fromkeys(tables, 0)

    def add_rows(name: str) -> None:
        lake.append(name, frames.readings(lake.spark, first[name], NEW, 1))
        first[name] += NEW

    def deliver(name: str) -> float:
        add_rows(name)
        before = len(list((bench.work / name).rglob("*.parquet")))
        took = seconds_of(lambda: lake.tick(name))
        if len(list((bench.work / name).rglob("*.parquet"))) != before + 1:
            raise RuntimeError(f"the tick of {name} delivered nothing")
        return took

    def stream() -> float:  # the rows that `deliver("small")` has just added
        return seconds_of(peer.run)

    for _ in range(3):  # warm-up
        for name in tables:
            deliver(name)
        stream()
    small, streamed, large = in_turn(
        bench, SAMPLES, lambda n: deliver("small"), lambda n: stream(), lambda n: deliver("large")
    )
    idle, nothing = in_turn(
        bench, SAMPLES, lambda n: seconds_of(lambda: lake.tick("small")) * 1000, lambda n: stream() * 1000
    )
    shape = {"rows": tables["small"].rows, "new_rows": NEW}
    return {
        IDLE.name: Samples(idle, nothing, shape),
        IDLE_ITSELF.name: Samples(idle, None, shape),
        FEW.name: Samples(small, streamed, shape),
        SIZES.name: Samples(large, small, shape | {"rows": tables["large"].rows, "peer_rows": tables["small"].rows}),
    }


MEASUREMENT = Measurement((IDLE, IDLE_ITSELF, FEW, SIZES), measure)
