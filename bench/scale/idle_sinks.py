"""Ten thousand sinks with ten lanes each, in a real ledger: a pass in which nothing is due, and what one sink costs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bench import lakes
from bench.measure import Bench, Measurement, in_turn, seconds_of
from bench.results import Figure, Goal, Samples
from bench.serve.large_lake import ROWS, add_rows, add_sink, make_datasets, pass_of
from strandline.core.delivery_types import SinkRecord
from strandline.core.types import Dataset
from strandline.lake import Lake
from strandline.ledger.deliver import sinks

COUNTS = (100, 1_000, 10_000)
LANES = 10
DATASETS = 100
SAMPLES = 7
PASSES = 20
"""Of one sink, in a sample."""
LEDGERS = ("SQLite", "PostgreSQL")
IDLE_GOALS = {1_000: Goal(1.0, "at most", "ours"), 10_000: Goal(10.0, "at most", "ours")}


def _idle(ledger: str, count: int) -> Figure:
    return Figure(
        f"an idle pass over {count:,} sinks with {LANES} lanes each, {ledger}", "s", None, IDLE_GOALS.get(count)
    )


def _busy(ledger: str) -> Figure:
    return Figure(
        f"the ledger's part of a tick of one sink with {LANES} lanes, beside {COUNTS[-1]:,} sinks, {ledger}",
        "ms", f"beside {COUNTS[0]:,} sinks", Goal(1.3, "at most"),
    )  # fmt: skip


class Crowd:
    """A lake with many sinks that have everything. Its tables are empty: only the ledger works."""

    def __init__(self, bench: Bench, home: Path, ledger: str, count: int) -> None:
        self.lake: Lake = lakes.new_lake(home, ledger=ledger)
        self.count = count
        self.datasets: list[Dataset] = make_datasets(self.lake, bench.sized(DATASETS, 5))
        self.until = ROWS
        for n in range(count):
            if n % 1_000 == 0:
                bench.say(f"sink {n:,} of {count:,}")
            add_sink(self.lake, self.datasets[n % len(self.datasets)], f"sink{n:05}", LANES)
        self.busy_dataset = self.datasets[0]
        self.busy: SinkRecord = self.lake.ledger.query(sinks.get, "sink00000")

    def idle(self) -> float:
        def work() -> None:
            report = self.lake.tick()
            if len(report.sinks) != self.count or any(sink.did != "idle" for sink in report.sinks):
                raise RuntimeError("the pass was not idle")

        return seconds_of(work)

    def busy_ms(self) -> float:
        """The mean of some passes of one sink. The other sinks of its dataset stay behind meanwhile."""

        def work() -> None:
            for _ in range(PASSES):
                first, self.until = self.until + 1, self.until + ROWS
                with self.lake.ledger.write() as connection:
                    add_rows(connection, self.busy_dataset, f"rows from {first}", first)
                pass_of(self.lake, self.busy, self.busy_dataset, self.until, LANES)
                self.busy = self.lake.ledger.query(sinks.get, self.busy.name)

        return seconds_of(work) / PASSES * 1000


def measure(bench: Bench) -> dict[str, Samples]:
    from tests.servers import start_postgres

    found: dict[str, Samples] = {}
    postgres = start_postgres()
    with ExitStack() as open_lakes:
        open_lakes.callback(postgres.server.stop)
        for ledger in LEDGERS:
            crowds = []
            for count in COUNTS:
                url = "ledger.db" if ledger == "SQLite" else postgres.create_database()
                home = bench.work / f"{ledger}-{count}"
                crowds.append(Crowd(bench, home, url, bench.sized(count, count // 50)))
                open_lakes.callback(crowds[-1].lake.close)
            found |= _of(ledger, crowds, bench)
    return found


def _of(ledger: str, crowds: list[Crowd], bench: Bench) -> dict[str, Samples]:
    sides: list[Callable[[int], float]] = [lambda n, c=c: c.idle() for c in crowds]  # type: ignore[misc]
    for side in sides:
        side(0)  # warm-up
    found: dict[str, Samples] = {}
    for crowd, count, samples in zip(crowds, COUNTS, in_turn(bench, SAMPLES, *sides), strict=True):
        shape = {"picture": "an idle pass by sinks", "series": ledger, "x": count / COUNTS[0]}
        named = {"x_name": f"sinks with {LANES} lanes each, 1× is {COUNTS[0]}", "sinks": crowd.count}
        found[_idle(ledger, count).name] = Samples(samples, None, shape | named)
    many, few = crowds[-1], crowds[0]
    many.busy_ms(), few.busy_ms()  # warm-up
    taken = in_turn(bench, SAMPLES, lambda n: many.busy_ms(), lambda n: few.busy_ms())
    found[_busy(ledger).name] = Samples(taken[0], taken[1], {"sinks": many.count, "lanes": LANES})
    return found


MEASUREMENT = Measurement(
    tuple(_idle(ledger, count) for ledger in LEDGERS for count in COUNTS) + tuple(_busy(ledger) for ledger in LEDGERS),
    measure,
)
