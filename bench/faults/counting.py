"""How rows that arrived are counted. Each row has a number of its own, from 0 on, in the column `n`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure import Bench
from bench.results import Figure, Goal, Samples

SAMPLES = 5
COLUMNS: list[dict[str, Any]] = [{"name": "n", "type": "long"}, {"name": "at", "type": "timestamptz"}]
NONE = Goal(0, "exactly", "ours")


@dataclass(frozen=True, slots=True)
class Arrived:
    lost: int
    twice: int


def arrived(numbers: Iterable[int], rows: int) -> Arrived:
    """`rows`: how many there are at the source."""
    found = Counter(numbers)
    return Arrived(sum(n not in found for n in range(rows)), sum(times - 1 for times in found.values()))


def numbers_below(folder: Path) -> list[int]:
    """Of all Parquet files there, but for what a tool keeps for itself."""
    from pyarrow import parquet

    files = [file for file in folder.rglob("*.parquet") if "/_" not in f"/{file.relative_to(folder)}"]
    return [n for file in files for n in parquet.ParquetFile(file).read(["n"])["n"].to_pylist()]


def figures(what: str, peer: str) -> tuple[Figure, Figure]:
    """Rows lost, and rows that came twice. The goal is ours: what a peer does is shown."""
    lost = Figure(f"rows lost: {what}", "rows", peer, NONE, counts=True)
    return lost, Figure(f"rows that came twice: {what}", "rows", peer, NONE, counts=True)


def count(
    bench: Bench, rows: int, sides: Mapping[str, tuple[Figure, Figure]], once: Callable[[int], Mapping[str, Arrived]]
) -> dict[str, Samples]:
    """`once`: what arrived on our side and on the sides of all peers, from the beginning each time. `ours` is our name
    among them."""
    found: list[Mapping[str, Arrived]] = []
    for n in range(SAMPLES):
        bench.say(f"time {n + 1} of {SAMPLES}")
        found.append(once(n))
    samples: dict[str, Samples] = {}
    for peer, (lost, twice) in sides.items():
        for figure, of in ((lost, lambda side: side.lost), (twice, lambda side: side.twice)):
            ours = [float(of(each["ours"])) for each in found]
            samples[figure.name] = Samples(ours, [float(of(each[peer])) for each in found], {"rows": rows})
    return samples
