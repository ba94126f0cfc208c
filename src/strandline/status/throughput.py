"""How many rows came and went between two readings of the status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

from strandline.status.report import LakeStatus
from strandline.status.sinks import SinkStatus


@dataclass(frozen=True, slots=True)
class Throughput:
    """Rows per second. None if it is not known: the first reading, a sink that was reset, rows that were deleted."""

    ingested: Mapping[str, float | None]  # by dataset: rows that came into its table
    delivered: Mapping[str, float | None]  # by sink


def throughput(before: LakeStatus | None, after: LakeStatus, seconds: float) -> Throughput:
    rows_before = {} if before is None else {d.name: d.rows for d in before.datasets}
    sent_before = {} if before is None else _delivered(before.sinks)
    return Throughput(
        {d.name: _rate(rows_before.get(d.name), d.rows, seconds) for d in after.datasets},
        {
            name: _rate(earlier[1], rows, seconds)
            if (earlier := sent_before.get(name)) is not None and earlier[0] == generation
            else None
            for name, (generation, rows) in _delivered(after.sinks).items()
        },
    )


def _delivered(sinks: Iterable[SinkStatus]) -> dict[str, tuple[int, int | None]]:
    """The generation of each sink, and the rows that it got in that generation."""
    found: dict[str, tuple[int, int | None]] = {}
    for name, group in groupby(sinks, key=lambda s: s.name):
        lanes = list(group)
        known = [s.exported for s in lanes if s.exported is not None]
        found[name] = lanes[0].generation, sum(known) if len(known) == len(lanes) else None
    return found


def _rate(before: int | None, after: int | None, seconds: float) -> float | None:
    if before is None or after is None or after < before or seconds <= 0:
        return None
    return (after - before) / seconds
