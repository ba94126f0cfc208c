"""A thousand new rows to a files sink whose folder has 100,000 objects, against one whose folder is nearly empty."""

from __future__ import annotations

import os
from pathlib import Path

from bench import frames, lakes
from bench.measure import Bench, Measurement, in_turn, seconds_of, settle_disk
from bench.results import Figure, Goal, Samples
from strandline.core.types import Seq, SeqRange
from strandline.deliver.sinks.blobs.names import object_name

NEW = 1000
SAMPLES = 15
OBJECTS = 100_000
TICK = Figure(
    "1,000 new rows to a files sink with 100,000 objects in its folder",
    "s",
    "a nearly empty folder",
    Goal(1.3, "at most"),
)


def measure(bench: Bench) -> dict[str, Samples]:
    lake = lakes.new_lake(bench.work / "lake")
    lakes.create(lake, "t", frames.READING_COLUMNS)
    rows = 0

    def add(count: int) -> None:
        nonlocal rows
        lake.append("t", frames.readings(lake.spark, rows, count, 1))
        rows += count

    objects = bench.sized(OBJECTS, 1000)
    add(objects)  # one row for each object that the old folder gets
    folders = {"old": bench.work / "old", "young": bench.work / "young"}
    for name, folder in folders.items():
        lake.delivery.add(name, "t", "files", {"path": str(folder)}, from_now=True)
    add(NEW)
    for name in folders:
        lake.tick(name)
    bench.say(f"putting {objects:,} objects into a folder")
    _age(folders["old"], objects)
    settle_disk()

    def deliver(name: str) -> float:
        before = len(os.listdir(_chunks(folders[name])))
        took = seconds_of(lambda: lake.tick(name))
        if len(os.listdir(_chunks(folders[name]))) <= before:
            raise RuntimeError(f"the tick of {name} delivered nothing")
        return took

    def old(_: int) -> float:
        add(NEW)
        return deliver("old")

    for n in range(2):  # warm-up
        old(n)
        deliver("young")
    taken = in_turn(bench, SAMPLES, old, lambda n: deliver("young"))
    return {TICK.name: Samples(taken[0], taken[1], {"objects": objects, "new_rows": NEW})}


def _chunks(folder: Path) -> Path:
    """Where the sink's chunks are."""
    return next(folder.rglob("*.parquet")).parent


def _age(folder: Path, objects: int) -> None:
    """Chunks of one row each, as deliveries before the first one would have left them. Their names count, not their
    contents, so all are links to one file."""
    first = next(folder.rglob("*.parquet"))
    for number in range(1, objects + 1):
        os.link(first, first.with_name(object_name(SeqRange(Seq(number), Seq(number)), "parquet")))


MEASUREMENT = Measurement((TICK,), measure)
