"""What this process saw of the lake lately: a bounded number of samples, in memory.

The ledger knows how things are; how they were a moment ago is known only to a process that read it then. No process
reads it while no page is open, so charts have gaps then, and pages say since when they know.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from strandline.serve.pages.charts import Point
from strandline.serve.pages.views import sum_known
from strandline.status.report import LakeStatus
from strandline.status.sinks import SinkStatus

SAMPLES_MAX = 360
APART_SECONDS_MIN = 5.0
GAP_SECONDS = 60.0  # samples further apart are not joined by a line


class SinkKey(NamedTuple):
    """With the dataset: a sink that is removed may have had the same name, and rows that others may not know of."""

    dataset: str
    sink: str


def key_of(sink: SinkStatus) -> SinkKey:
    return SinkKey(sink.dataset, sink.name)


@dataclass(frozen=True, slots=True)
class HistorySample:
    at: datetime
    arrived_rows: int | None  # grows by each row that comes in
    lag_rows: Mapping[SinkKey, int | None]
    lag_seconds: Mapping[SinkKey, float | None]
    delivered: Mapping[SinkKey, int | None]  # rows that a sink has got in its generation; None if unknown


def sample_of(status: LakeStatus, at: datetime, arrived_rows: int | None) -> HistorySample:
    lag_rows: dict[SinkKey, int | None] = {}
    lag_seconds: dict[SinkKey, float | None] = {}
    delivered: dict[SinkKey, int | None] = {}
    for lane in status.sinks:
        key = key_of(lane)
        before = delivered.get(key, 0)
        delivered[key] = None if before is None or lane.exported is None else before + lane.exported
        lag_rows[key], lag_seconds[key] = lane.sink_lag_rows, lane.sink_lag_seconds
    return HistorySample(at, arrived_rows, lag_rows, lag_seconds, delivered)


class FigureHistory:
    """Used from one event loop only."""

    def __init__(self, samples_max: int = SAMPLES_MAX) -> None:
        self._samples: deque[HistorySample] = deque(maxlen=samples_max)

    def add(self, sample: HistorySample) -> None:
        """Samples that come too quickly one after the other are left out."""
        newest = self._samples[-1].at if self._samples else None
        if newest is None or (sample.at - newest).total_seconds() >= APART_SECONDS_MIN:
            self._samples.append(sample)

    @property
    def since(self) -> datetime | None:
        return self._samples[0].at if self._samples else None

    @property
    def until(self) -> datetime | None:
        return self._samples[-1].at if self._samples else None

    def lag_rows(self, sink: SinkKey) -> list[Point]:
        return _joined((s.at, s.lag_rows.get(sink)) for s in self._samples)

    def lag_seconds(self, sink: SinkKey) -> list[Point]:
        return _joined((s.at, s.lag_seconds.get(sink)) for s in self._samples)

    def rows_in(self) -> list[Point]:
        """Per second."""
        return _rates((s.at, s.arrived_rows) for s in self._samples)

    def rows_out(self, sinks: Iterable[SinkKey]) -> list[Point]:
        """Per second, to all of these sinks."""
        named = list(sinks)
        return _rates((s.at, sum_known(s.delivered.get(key) for key in named)) for s in self._samples)


def last_value(points: list[Point]) -> float | None:
    return points[-1].value if points else None


def _joined(values: Iterable[tuple[datetime, float | None]]) -> list[Point]:
    points: list[Point] = []
    for at, value in values:
        if points and at.timestamp() - points[-1].at > GAP_SECONDS:
            points.append(Point(at.timestamp(), None))
        points.append(Point(at.timestamp(), value))
    return points


def _rates(values: Iterable[tuple[datetime, int | None]]) -> list[Point]:
    """A counter that went back (a new generation, a restored ledger) or that nobody watched has no rate."""
    found = list(values)
    points: list[Point] = []
    for (before, then), (at, now) in pairwise(found):
        apart = (at - before).total_seconds()
        grown = None if then is None or now is None or now < then or apart > GAP_SECONDS else now - then
        points.append(Point(at.timestamp(), None if grown is None else grown / apart))
    return points
