"""What pages show of a lake's state, put together from the read model: one value per sink instead of one per lane."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from strandline.serve.pages.history import SinkKey
from strandline.status.problems import StatusProblem, Subject
from strandline.status.report import DatasetStatus, LakeStatus
from strandline.status.sinks import SinkStatus

_STATES = {"stopped": 0, "waiting": 1, "paused": 2}


@dataclass(frozen=True, slots=True)
class SinkView:
    name: str
    kind: str
    dataset: str
    state: str
    reason: str | None
    lag_rows: int | None
    lag_seconds: float | None
    trend: str
    quarantined: int
    held_rows: int | None
    held_since: datetime | None
    lanes: int
    retry_at: datetime | None

    @property
    def key(self) -> SinkKey:
        return SinkKey(self.dataset, self.name)


def sink_views(lanes: Iterable[SinkStatus]) -> list[SinkView]:
    """Those that need somebody first, then those that lag most."""
    by_name: dict[str, list[SinkStatus]] = {}
    for lane in lanes:
        by_name.setdefault(lane.name, []).append(lane)
    found = [_sink(group) for group in by_name.values()]
    return sorted(
        found, key=lambda s: (_STATES.get(s.state, 3), -(s.lag_rows if s.lag_rows is not None else 1), s.name)
    )


def _sink(lanes: list[SinkStatus]) -> SinkView:
    one = lanes[0]
    return SinkView(
        one.name,
        one.kind,
        one.dataset,
        one.state,
        one.reason,
        one.sink_lag_rows,
        one.sink_lag_seconds,
        one.trend,
        sum(lane.quarantined for lane in lanes),
        one.held_rows,
        one.held_since,
        len(lanes),
        one.retry_at,
    )


@dataclass(frozen=True, slots=True)
class HeldView:
    dataset: str
    sink: str
    rows: int | None
    since: datetime


def held_views(status: LakeStatus) -> list[HeldView]:
    """Rows that retention holds, and for whom."""
    datasets = () if status.maintenance is None else status.maintenance.datasets
    return [HeldView(d.dataset, h.name, h.rows, h.since) for d in datasets for h in d.held_by]


def unsealed_first(datasets: Iterable[DatasetStatus]) -> list[DatasetStatus]:
    """Those with a problem first, then those with blocks that are not settled."""
    return sorted(datasets, key=lambda d: (d.problem is None, -d.open_blocks, d.name))


def sum_known(values: Iterable[int | None]) -> int | None:
    """None if one of them is unknown."""
    found = list(values)
    return None if any(v is None for v in found) else sum(v for v in found if v is not None)


def place_of(problem: StatusProblem) -> tuple[str, str] | None:
    """The page where something can be done about it, and its name; None for what concerns the lake as a whole."""
    name = quote(problem.name or "", safe="")
    match problem.subject:
        case Subject.DATASET:
            return f"/datasets/{name}", f"Dataset {problem.name}"
        case Subject.SINK:
            return f"/sinks/{name}", f"Sink {problem.name}"
        case Subject.QUARANTINE:
            return f"/quarantine/rows?sink={name}", f"Quarantined rows of {problem.name}"
        case Subject.RECONCILER:
            return "/drift", "Drift"
        case Subject.LAKE:
            return None
