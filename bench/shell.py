"""Commands as a person starts them in a shell."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

STRANDLINE = str(Path(sys.executable).with_name("strandline"))


def quietly(command: Sequence[str]) -> None:
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)


def seconds_until_lines(command: Sequence[str], work: Path, *starts: str) -> tuple[list[float], float]:
    """The time from the start of the process until it printed a line that begins with each of `starts`, in their order,
    and until it ended."""
    began, seen = time.perf_counter(), list[float]()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=work, text=True
    ) as process:
        for line in process.stdout or ():
            if len(seen) < len(starts) and line.startswith(starts[len(seen)]):
                seen.append(time.perf_counter() - began)
        _, errors = process.communicate()
        took = time.perf_counter() - began
    if len(seen) < len(starts) or process.returncode != 0:
        raise RuntimeError(f"{command[:3]} ended with {process.returncode}: {errors[-2000:]}")
    return seen, took
