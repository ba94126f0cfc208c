"""What pages show of a lake's state, put together from the read model: one value per sink instead of one per lane."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from urllib.parse import quote

from strandline.status.followers import FollowerStatus
from strandline.status.problems.status_problem import LONG_SECONDS, StatusProblem, Subject
from strandline.status.report import DatasetStatus, LakeStatus
from strandline.status.sinks import SinkStatus

_STATES = {"stopped": 0, "waiting": 1, "paused": 2}


def sink_views(lanes: Iterable[SinkStatus]) -> list[SinkStatus]:
    """One for each sink: those that need somebody first, then those that lag most."""
    by_name: dict[str, list[SinkStatus]] = {}
    for lane in lanes:
        by_name.setdefault(lane.name, []).append(lane)
    found = [_whole(group) for group in by_name.values()]
    return sorted(
        found, key=lambda s: (_STATES.get(s.state, 3), -(s.lag_rows if s.lag_rows is not None else 1), s.name)
    )


def _whole(lanes: list[SinkStatus]) -> SinkStatus:
    one, quarantined = lanes[0], sum(lane.quarantined for lane in lanes)
    return replace(one, lag_rows=one.sink_lag_rows, lag_seconds=one.sink_lag_seconds, quarantined=quarantined)


@dataclass(frozen=True, slots=True)
class HeldView:
    dataset: str
    holder: str  # a sink, a follower or a consumer
    place: str
    rows: int | None
    since: datetime


def held_views(status: LakeStatus) -> list[HeldView]:
    """Rows that retention holds, and for whom: what nobody has counted first, then the most."""
    datasets = () if status.maintenance is None else status.maintenance.datasets
    found = [
        HeldView(d.dataset, h.name, f"/sinks/{quote(h.name, safe='')}" if h.sink else "/replication", h.rows, h.since)
        for d in datasets
        for h in d.held_by
    ]
    held_for = {(f.dataset, f.name): f.held_since for f in status.followers if f.held_since is not None}
    for (dataset, name), since in held_for.items():
        place = f"/replication/followers/{quote(name, safe='')}"
        found.append(HeldView(dataset, f"follower {name}", place, None, since))
    for c in status.consumers:
        if c.held_since is not None:
            place = f"/datasets/{quote(c.dataset, safe='')}"
            found.append(HeldView(c.dataset, f"consumer {c.name}", place, None, c.held_since))
    return sorted(found, key=lambda h: (h.rows is not None, -(h.rows or 0), h.dataset, h.holder))


@dataclass(frozen=True, slots=True)
class FollowerView:
    """A follower as a whole. What is not known of one shard is not known of the follower."""

    name: str
    state: str  # not begun, silent, catching up, up to date
    datasets: int
    shards: int
    lag_segments: int | None
    lag_rows: int | None
    lag_seconds: float | None
    reported_at: datetime | None
    held_since: datetime | None


def follower_views(shards: Iterable[FollowerStatus], known: Iterable[str], now: datetime) -> list[FollowerView]:
    """Those that need somebody first. `known`: also followers that follow no dataset yet."""
    by_name: dict[str, list[FollowerStatus]] = {name: [] for name in known}
    for shard in shards:
        by_name.setdefault(shard.name, []).append(shard)
    found = [_follower(name, group, now) for name, group in by_name.items()]
    order = ("silent", "not begun", "catching up", "up to date")
    return sorted(found, key=lambda f: (order.index(f.state), -(f.lag_seconds or 0), f.name))


def _follower(name: str, shards: list[FollowerStatus], now: datetime) -> FollowerView:
    reported_at = shards[0].reported_at if shards else None
    segments = sum_known(s.lag_segments for s in shards)
    if reported_at is None:
        state = "not begun"
    elif (now - reported_at).total_seconds() >= LONG_SECONDS:
        state = "silent"
    else:
        state = "up to date" if segments == 0 else "catching up"
    return FollowerView(
        name,
        state,
        len({s.dataset for s in shards}),
        len(shards),
        segments,
        sum_known(s.lag_rows for s in shards),
        max_known(s.lag_seconds for s in shards),
        reported_at,
        min((s.held_since for s in shards if s.held_since is not None), default=None),
    )


def unsealed_first(datasets: Iterable[DatasetStatus]) -> list[DatasetStatus]:
    """Those with a problem first, then those with blocks that are not settled."""
    return sorted(datasets, key=lambda d: (d.problem is None, -d.open_blocks, d.name))


def sum_known(values: Iterable[int | None]) -> int | None:
    """None if one of them is unknown."""
    found = list(values)
    return None if any(v is None for v in found) else sum(v for v in found if v is not None)


def max_known(values: Iterable[float | None]) -> float | None:
    """None if one of them is unknown."""
    found = list(values)
    return None if None in found else max((v or 0.0 for v in found), default=0.0)


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
        case Subject.CONSUMER:
            return f"/datasets/{quote(problem.dataset or '', safe='')}", f"Dataset {problem.dataset}"
        case Subject.FOLLOWER:
            return f"/replication/followers/{name}", f"Follower {problem.name}"
        case Subject.LEADER:
            return "/replication", "Replication"
        case Subject.RECONCILER:
            return "/drift", "Drift"
        case Subject.LAKE:
            return None
