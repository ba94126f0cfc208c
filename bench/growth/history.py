"""An idle tick, a tick with a thousand new rows, a report of the reconciler and `status`, on lakes of three sizes.

Size and history grow together, as they do in life: each block is an append of its own, with its files and its snapshot.
The three lakes are measured in turn. The ratio is the time for the largest by the time for the smallest: 1 is flat.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench import frames, lakes
from bench.measure import Bench, Measurement, in_turn, seconds_of
from bench.results import Figure, Goal, Samples
from strandline.lake import Lake

FACTORS = (1, 10, 100)
BLOCKS = 10  # of the smallest lake
BLOCK_ROWS = 10_000
NEW = 1000
SAMPLES = 11
PICTURE = "seconds by size of the table"

JOBS = {
    "idle tick": Goal(1.3, "at most"),
    "tick of 1,000 new rows": Goal(1.3, "at most"),
    "reconcile": None,
    "status": Goal(1.3, "at most"),
}


def _slope(job: str) -> Figure:
    return Figure(f"{job}, table and history of 100 times the size", "s", "the smallest", JOBS[job])


def _point(job: str, factor: int) -> Figure:
    return Figure(f"{job}, {BLOCKS * factor:,} blocks, {BLOCKS * factor * BLOCK_ROWS:,} rows", "s", None, None)


@dataclass(slots=True)
class Grown:
    lake: Lake
    factor: int
    rows: int = 0

    def fill(self, bench: Bench) -> None:
        lakes.create(self.lake, "t", frames.READING_COLUMNS)
        blocks = bench.sized(BLOCKS * self.factor, self.factor.bit_length())
        for n in range(blocks):
            if n % 10 == 0:
                bench.say(f"block {n} of {blocks}")
            self.add(bench.sized(BLOCK_ROWS, 10))
        self.lake.delivery.add("s", "t", "files", {"path": str(bench.work / f"sink-{self.factor}")}, from_now=True)

    def add(self, count: int) -> None:
        self.lake.append("t", frames.readings(self.lake.spark, self.rows, count, 1))
        self.rows += count

    def idle_tick(self) -> float:
        return seconds_of(lambda: self.lake.tick("s"))

    def tick(self) -> float:
        self.add(NEW)
        return seconds_of(lambda: self.lake.tick("s"))

    def reconcile(self) -> float:
        return seconds_of(self.lake.reconcile)

    def status(self) -> float:
        return seconds_of(self.lake.status)


def measure(bench: Bench) -> dict[str, Samples]:
    grown = [Grown(lakes.new_lake(bench.work / f"lake{factor}"), factor) for factor in FACTORS]
    for lake in grown:
        lake.fill(bench)
    works: dict[str, Callable[[Grown], float]] = {
        "idle tick": Grown.idle_tick,
        "tick of 1,000 new rows": Grown.tick,
        "reconcile": Grown.reconcile,
        "status": Grown.status,
    }
    found: dict[str, Samples] = {}
    for job, work in works.items():
        for lake in grown:  # warm-up
            work(lake)
            work(lake)
        taken = in_turn(bench, SAMPLES, *((lambda n, lake=lake, work=work: work(lake)) for lake in grown))
        found[_slope(job).name] = Samples(taken[-1], taken[0], {"factor": FACTORS[-1]})
        for lake, samples in zip(grown, taken, strict=True):
            shape = {"picture": PICTURE, "series": job, "x": lake.factor, "x_name": "size, 1× is 10 blocks"}
            found[_point(job, lake.factor).name] = Samples(samples, None, shape | {"rows": lake.rows})
    return found


MEASUREMENT = Measurement(
    tuple(_slope(job) for job in JOBS) + tuple(_point(job, factor) for job in JOBS for factor in FACTORS), measure
)
