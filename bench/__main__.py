"""`make bench`: measures, writes `bench/results/latest.json` (or `quick.json`, with small sizes), prints a table.

It ends with 1 if something could not be measured. A goal that is missed is said, and is no error: how fast a busy
machine is says little about the code.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status

from bench.groups import GROUPS
from bench.measure import Measurement
from bench.results import Samples, result, write
from bench.table import table

HERE = Path(__file__).parent
RESULTS = HERE / "results"
WORK = HERE / "work"
PIPE_WIDTH = 200


class CouldNotMeasure(Exception):
    pass


def picked(text: str | None) -> list[str]:
    if not text:
        return list(GROUPS)
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in GROUPS]:
        raise argparse.ArgumentTypeError(f"there is no group {unknown[0]!r}; there are {', '.join(GROUPS)}")
    return names


def measure(group: str, number: int, work: Path, status: Status | None, *, quick: bool) -> dict[str, Samples]:
    folder = work / f"{group}-{number}"
    folder.mkdir(parents=True)
    answer, log = work / f"{group}-{number}.json", work / f"{group}-{number}.log"
    command = [sys.executable, "-m", "bench.isolated", group, str(number), str(folder), str(answer)]
    if quick:
        command.append("--quick")
    title = GROUPS[group][number].figures[0].name
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=HERE.parent) as process,
    ):
        try:
            for line in process.stdout or ():
                if status is not None:
                    status.update(f"{group}: {title}: {line.strip()}")
        except BaseException:
            process.terminate()
            raise
    shutil.rmtree(folder, ignore_errors=True)
    if process.returncode != 0:
        said = log.read_text("utf-8", "replace").strip()
        raise CouldNotMeasure(said or f"ended with {process.returncode}")
    return {name: Samples(**values) for name, values in json.loads(answer.read_text("utf-8")).items()}


def run(groups: Sequence[str], console: Console, *, quick: bool) -> tuple[list[dict[str, Any]], int]:
    results: list[dict[str, Any]] = []
    failures = 0
    with workplace() as work, watching(console) as status:
        for group, measurements in GROUPS.items():
            for number, measurement in enumerate(measurements):
                if group not in groups:
                    results += unmeasured(group, measurement, None)
                    continue
                began = time.monotonic()
                try:
                    found = measure(group, number, work, status, quick=quick)
                except CouldNotMeasure as e:
                    failures += 1
                    console.print(f"{group}: {measurement.figures[0].name} could not be measured:\n{e}", style="red")
                    results += unmeasured(group, measurement, str(e).splitlines()[-1])
                    continue
                took = round(time.monotonic() - began, 1)
                for figure in measurement.figures:
                    entry = result(figure, group, found.get(figure.name))
                    results.append(entry | {"measured_in_seconds": took, "quick": quick})
    return results, failures


def unmeasured(group: str, measurement: Measurement, why: str | None) -> list[dict[str, Any]]:
    return [result(figure, group, None, why) for figure in measurement.figures]


@contextmanager
def workplace() -> Iterator[Path]:
    """On the project's own disk, because that is where lakes are; gone afterwards, whatever happened."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    try:
        yield WORK
    finally:
        shutil.rmtree(WORK, ignore_errors=True)


@contextmanager
def watching(console: Console) -> Iterator[Status | None]:
    if not console.is_terminal:
        yield None
        return
    with console.status("starting") as status:
        yield status


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench", description="Measures Strandline against its peers.")
    parser.add_argument("--only", type=picked, default=list(GROUPS), metavar="GROUPS", help=", ".join(GROUPS))
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, not how fast")
    chosen = parser.parse_args(arguments)
    errors = Console(stderr=True, markup=False, highlight=False)
    results, failures = run(chosen.only, errors, quick=chosen.quick)
    # Small sizes must not pass for the figures.
    target = RESULTS / ("quick.json" if chosen.quick else "latest.json")
    write(results, target)
    output = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, markup=False, highlight=False)
    output.print(table(results))
    output.print(f"written to {target.relative_to(HERE.parent)}" + (", with small sizes" if chosen.quick else ""))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
