"""`make bench`: measures, writes `bench/results/GROUP.json` and `docs/benchmarks.md`, prints a table.

With --quick the sizes are small; that shows that everything runs, and changes neither.

It ends with 1 if something could not be measured. A goal that is missed is said, and is no error: how fast a busy
machine is says little about the code.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.status import Status

from bench.groups import GROUPS
from bench.measure import Measurement, end_at_sigterm
from bench.page import PAGE, write_page
from bench.results import Samples, group_document, read, result, write
from bench.surroundings import surroundings
from bench.table import table

HERE = Path(__file__).parent
RESULTS = HERE / "results"
WORK = HERE / "work"
PIPE_WIDTH = 200
MINUTES_MAX = 60  # of one measurement; on a quiet machine, the longest takes a tenth of it
END_SECONDS_MAX = 10
GONE_SECONDS_MAX = 5


class CouldNotMeasure(Exception):
    pass


def picked(text: str | None) -> list[str]:
    if not text:
        return list(GROUPS)
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in GROUPS]:
        raise argparse.ArgumentTypeError(f"there is no group {unknown[0]!r}; there are {', '.join(GROUPS)}")
    return names


@dataclass(frozen=True, slots=True)
class Workplace:
    work: Path
    """On the project's own disk, because that is where lakes are."""
    temporary: Path
    """For whatever a measurement and the JVMs and servers that it starts make for a while. They may be killed."""

    @property
    def environ(self) -> dict[str, str]:
        java = f"-Djava.io.tmpdir={self.temporary} {os.environ.get('JDK_JAVA_OPTIONS', '')}".strip()
        folders = dict.fromkeys(("TMPDIR", "SPARK_LOCAL_DIRS"), str(self.temporary))
        return {**os.environ, **folders, "JDK_JAVA_OPTIONS": java}


def measure(group: str, number: int, place: Workplace, status: Status | None, *, quick: bool) -> dict[str, Samples]:
    folder = place.work / f"{group}-{number}"
    folder.mkdir(parents=True)
    answer, log = place.work / f"{group}-{number}.json", place.work / f"{group}-{number}.log"
    command = [sys.executable, "-m", "bench.isolated", group, str(number), str(folder), str(answer)]
    if quick:
        command.append("--quick")
    title = GROUPS[group][number].figures[0].name
    with (
        log.open("wb") as errors,
        # A group of its own, so that nothing of it is left afterwards: it starts servers, JVMs and commands.
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=HERE.parent,
            env=place.environ,
            start_new_session=True,
        ) as process,
        limited(process),
    ):
        for line in process.stdout or ():
            if status is not None:
                status.update(f"{group}: {title}: {line.strip()}")
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)
    if process.returncode != 0:
        said = log.read_text("utf-8", "replace").strip()
        raise CouldNotMeasure(said or f"ended with {process.returncode}")
    return {name: Samples(**values) for name, values in json.loads(answer.read_text("utf-8")).items()}


@contextmanager
def limited(process: subprocess.Popen[str]) -> Iterator[None]:
    """Ends the process and all that it has started: when it takes too long, when we are interrupted, and what it has
    left behind."""
    timer = threading.Timer(MINUTES_MAX * 60, process.terminate)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        started = _descendants(process.pid)
        try:
            if process.poll() is None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(END_SECONDS_MAX)
        finally:  # even if we are interrupted again
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            for other in started:
                with suppress(psutil.NoSuchProcess):
                    other.kill()
            # Until they are gone, they may still write into a folder that is about to be removed.
            psutil.wait_procs(started, GONE_SECONDS_MAX)


def _descendants(pid: int) -> list[psutil.Process]:
    """Those in a session of their own, too."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def run(groups: Sequence[str], console: Console, *, quick: bool) -> tuple[list[dict[str, Any]], int]:
    results: list[dict[str, Any]] = []
    failures = 0
    with workplace() as place, watching(console) as status:
        for group, measurements in GROUPS.items():
            for number, measurement in enumerate(measurements):
                if group not in groups:
                    results += unmeasured(group, measurement, None)
                    continue
                began = time.monotonic()
                try:
                    found = measure(group, number, place, status, quick=quick)
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
def workplace() -> Iterator[Workplace]:
    """Gone afterwards, whatever happened."""
    shutil.rmtree(WORK, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix="bench-"))
    temporary.chmod(0o711)  # PostgreSQL does not run as root
    try:
        WORK.mkdir(parents=True)
        yield Workplace(WORK, temporary)
    finally:
        for folder in (WORK, temporary):
            shutil.rmtree(folder, ignore_errors=True)


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
    parser.add_argument("--page", action="store_true", help=f"measure nothing: write {PAGE.name} from what is there")
    chosen = parser.parse_args(arguments)
    failures = 0
    if not chosen.page:
        failures = measure_and_store(chosen.only, quick=chosen.quick)
    if not chosen.quick:
        write_page(read(RESULTS, GROUPS), PAGE)
    return 1 if failures else 0


def measure_and_store(groups: Sequence[str], *, quick: bool) -> int:
    """How many measurements failed."""
    errors = Console(stderr=True, markup=False, highlight=False)
    began = surroundings()
    results, failures = run(groups, errors, quick=quick)
    output = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, markup=False, highlight=False)
    output.print(table(results))
    for group in groups:
        found = [entry for entry in results if entry["group"] == group]
        path = write(group_document(group, found, began, quick=quick), RESULTS)
        output.print(f"written to {path.relative_to(HERE.parent)}" + (", with small sizes" if quick else ""))
    return failures


if __name__ == "__main__":
    end_at_sigterm()
    sys.exit(main())
