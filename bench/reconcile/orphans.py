"""A report of the reconciler against `remove_orphan_files` as a dry run: the same table, the same Spark session.

Ours looks for missing files, too, which the procedure does not. It remembers what manifests named (`remembered.py`), so
it is measured twice: as it is the first time, and as it is for somebody who looks every day.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench import lakes
from bench.measure import Bench, Measurement, in_turn, seconds_of, settle_disk
from bench.reconcile.many_files import make_table
from bench.results import Figure, Goal, Samples
from bench.shell import STRANDLINE, quietly

if TYPE_CHECKING:
    from strandline.lake import Lake

PROCEDURE = "remove_orphan_files, dry run"
NARROW, WIDE = 12, 120

WARM = Figure("a report over 110,000 files, warm, manifests remembered", "s", PROCEDURE, Goal(1 / 5, "at most"))
WARM_WIDE = Figure(
    "a report over 110,000 files of a table of 120 columns, warm, manifests remembered",
    "s",
    PROCEDURE,
    Goal(1 / 5, "at most"),
)
FIRST = Figure("a report over 110,000 files, nothing remembered", "s", PROCEDURE, None)
FIRST_WIDE = Figure(
    "a report over 110,000 files of a table of 120 columns, nothing remembered", "s", PROCEDURE, Goal(1 / 5, "at most")
)
SHELL = Figure(
    "a report over 110,000 files, from the shell, manifests remembered",
    "s",
    "a new Spark session and the procedure",
    Goal(1 / 8, "at most"),
)
MILLION = Figure("a report over 1,000,000 files, manifests remembered", "s", PROCEDURE, Goal(1 / 3, "at most"))
MILLION_FIRST = Figure("a report over 1,000,000 files, nothing remembered", "s", PROCEDURE, None)
PER_FILE = Figure("time per file at 1,000,000 files", "µs", "at 110,000 files", Goal(1.3, "at most"))
MEMORY = Figure(
    "peak memory of a report over 1,000,000 files, nothing remembered", "MiB", None, Goal(1536, "at most", of="ours")
)

PEER = """
import sys
from strandline.lake import open_lake

lake = open_lake(sys.argv[1])
call = f"CALL lake.system.remove_orphan_files(table => '{sys.argv[2]}', dry_run => true)"
print(len(lake.spark.sql(call).collect()), flush=True)
"""


def measure(bench: Bench) -> dict[str, Samples]:
    live, stray = bench.sized(100_000, 1_000), bench.sized(10_000, 100)
    found: dict[str, Samples] = {}
    for first, again, columns in ((FIRST_WIDE, WARM_WIDE, WIDE), (FIRST, WARM, NARROW)):
        home = bench.work / f"lake{columns}"
        lake = lakes.new_lake(home)
        bench.say(f"making {live + stray:,} files, {columns} columns")
        name = make_table(lake, "t", live=live, stray=stray, columns=columns)
        settle_disk()
        sides = _sides(lake, name, stray)
        for side in sides:
            side(0)
        found |= _compared(first, again, in_turn(bench, bench.sized(7, 5), *sides), live + stray, columns)
    found[SHELL.name] = _from_the_shell(bench, home, name, live + stray)
    return found


def measure_million(bench: Bench) -> dict[str, Samples]:
    found: dict[str, Samples] = {}
    samples: dict[int, list[float]] = {}
    sizes = bench.sized(110_000, 1_100), bench.sized(1_000_000, 5_500)
    for files in sizes:
        home = bench.work / f"lake{files}"
        lake = lakes.new_lake(home)
        bench.say(f"making {files:,} files")
        stray = files // 11
        name = make_table(lake, "t", live=files - stray, stray=stray, columns=NARROW)
        settle_disk()
        first, again, peers = _sides(lake, name, stray)
        again(0)
        if files == sizes[-1]:
            peers(0)
            taken = in_turn(bench, 5, first, again, peers)
            samples[files] = taken[1]
            found |= _compared(MILLION_FIRST, MILLION, taken, files, NARROW)
        else:
            (samples[files],) = in_turn(bench, 5, again)
    small, large = sizes
    found[PER_FILE.name] = Samples(
        [s / large * 1e6 for s in samples[large]], [s / small * 1e6 for s in samples[small]], {"files": large}
    )
    peaks: list[float] = []
    for _ in range(5):
        forget(home)
        peaks.append(_peak_mib([STRANDLINE, "reconcile", "--json", "--config", str(home)]))
    found[MEMORY.name] = Samples(peaks, None, {"files": large})
    return found


def _compared(
    first: Figure, again: Figure, taken: Sequence[list[float]], files: int, columns: int
) -> dict[str, Samples]:
    size = {"files": files, "columns": columns}
    return {first.name: Samples(taken[0], taken[2], size), again.name: Samples(taken[1], taken[2], size)}


def _sides(lake: Lake, name: str, stray: int) -> Sequence[Callable[[int], float]]:
    """Ours for the first time, ours again, and the peer's. Each checks that it found what is there: a report that
    misses something is quick, too."""

    def first(n: int) -> float:
        forget(lake.config.home)
        return again(n)

    def again(_: int) -> float:
        return report_seconds(lake, stray)

    def peer(_: int) -> float:
        call = f"CALL lake.system.remove_orphan_files(table => '{name}', dry_run => true)"
        began = time.perf_counter()
        count = len(lake.spark.sql(call).collect())
        took = time.perf_counter() - began
        if count != stray:
            raise RuntimeError(f"the procedure found {count} instead of {stray}")
        return took

    return first, again, peer


def report_seconds(lake: Lake, stray: int) -> float:
    began = time.perf_counter()
    run = lake.reconcile()
    took = time.perf_counter() - began
    if run.outcome.found.orphans != stray or run.outcome.found.missing:
        raise RuntimeError(f"found {run.outcome.found} instead of {stray} orphans")
    return took


def forget(home: Path) -> None:
    shutil.rmtree(home / "cache", ignore_errors=True)


def _from_the_shell(bench: Bench, home: Path, name: str, files: int) -> Samples:
    from strandline.iceberg.session.lake_session import stop_spark

    stop_spark()
    ours = [STRANDLINE, "reconcile", "--json", "--config", str(home)]
    peer = [sys.executable, "-c", PEER, str(home), name]
    bench.say("from the shell")
    sides = [lambda n, c=c: seconds_of(lambda: quietly(c)) for c in (ours, peer)]
    return Samples(*in_turn(bench, 5, *sides), {"files": files})


def _peak_mib(command: list[str]) -> float:
    """Of the process and those that it starts, together, looked at a hundred times a second."""
    import psutil

    peak = 0
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        reader = threading.Thread(target=process.stdout.read if process.stdout else lambda: None)
        reader.start()
        top = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                peak = max(peak, sum(p.memory_info().rss for p in (top, *top.children(recursive=True))))
            except psutil.Error:
                pass
            time.sleep(0.01)
        reader.join()
    if process.returncode != 0:
        raise RuntimeError(f"{command[1]} ended with {process.returncode}")
    return peak / (1 << 20)


FEWER = Measurement((WARM, FIRST, WARM_WIDE, FIRST_WIDE, SHELL), measure)
MANY = Measurement((MILLION, MILLION_FIRST, PER_FILE, MEMORY), measure_million)
