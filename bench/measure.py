"""What every measurement has in hand, and how samples are taken."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.results import Figure, Samples


@dataclass(frozen=True, slots=True)
class Bench:
    work: Path
    """An empty folder of this measurement's own; whoever started it removes it."""
    quick: bool
    """Small sizes: shows that everything runs, not how fast."""
    say: Callable[[str], None]

    def sized(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Measurement:
    """Figures that are measured together, in a process of their own."""

    figures: tuple[Figure, ...]
    run: Callable[[Bench], Mapping[str, Samples]]
    """From the name of a figure to its samples."""


def in_turn(bench: Bench, count: int, *sides: Callable[[int], float]) -> list[list[float]]:
    """The samples of each side, one of each before the next of any: what else the machine does hits all alike."""
    found: list[list[float]] = [[] for _ in sides]
    for n in range(count):
        bench.say(f"sample {n + 1} of {count}")
        for taken, side in zip(found, sides, strict=True):
            taken.append(side(n))
    return found


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def settle_disk() -> None:
    """Else one sample pays for writing back what another one left in memory."""
    os.sync()


def end_at_sigterm() -> None:
    """As at Ctrl-C, so that whoever has started something ends it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))


class Stolen:
    """How much of the processors a hypervisor has given to others since this was made, as a share. Nothing of it is
    known outside of Linux."""

    def __init__(self) -> None:
        self._began = self._ticks()

    @property
    def share(self) -> float:
        (stolen, total), (then_stolen, then_total) = self._ticks(), self._began
        return (stolen - then_stolen) / max(1, total - then_total)

    @staticmethod
    def _ticks() -> tuple[int, int]:
        try:
            ticks = [int(t) for t in Path("/proc/stat").read_text("utf-8").split("\n", 1)[0].split()[1:9]]
        except OSError:
            return 0, 0
        return ticks[7], sum(ticks)
