"""Renders `top`: what is wrong, the sinks with the largest lag, and the datasets, as many as fit the window."""

from __future__ import annotations

from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from strandline.cli.render.elements import UNKNOWN, attention, dim, done, grid, number
from strandline.cli.render.sinks import STYLES, lag
from strandline.core.text.wording import plural
from strandline.status.problems.lake_problems import find_problems, worst_first

if TYPE_CHECKING:
    from strandline.status.report import LakeStatus
    from strandline.status.sinks import SinkStatus
    from strandline.status.throughput import Throughput

_PROBLEMS_MAX = 5
_LINES_BESIDE = 7  # the head, headers, empty lines and "more" below two tables
_SINKS_SHARE = 0.6  # of the lines that are left; datasets get the rest


def frame(found: LakeStatus, flow: Throughput, *, lines_max: int, now: datetime | None = None) -> RenderableType:
    problems = worst_first(find_problems(found, now))
    parts: list[RenderableType] = [_head(found), *map(attention, problems[:_PROBLEMS_MAX])]
    if not problems:
        parts.append(done("Nothing is wrong."))
    elif len(problems) > _PROBLEMS_MAX:
        parts.append(dim(f"{plural(len(problems) - _PROBLEMS_MAX, 'more problem')}: `strandline status`"))
    left = max(4, lines_max - len(parts) - _LINES_BESIDE)
    sinks_max = max(2, int(left * _SINKS_SHARE)) if found.sinks else 0
    if found.sinks:
        parts += [Text(""), *_sinks(found, flow, sinks_max)]
    if found.datasets:
        used = min(sinks_max, len({s.name for s in found.sinks}))
        parts += [Text(""), *_datasets(found, flow, max(2, left - used))]
    return Group(*parts)


def old_frame(
    found: LakeStatus, flow: Throughput, why: str, *, lines_max: int, now: datetime | None = None
) -> RenderableType:
    """The last frame, while the lake cannot be read."""
    said = Text(f"Old figures: {why}. Trying again.", "red", no_wrap=True, overflow="ellipsis")
    return Group(said, frame(found, flow, lines_max=lines_max - 1, now=now))


def _head(found: LakeStatus) -> Text:
    names = {s.name for s in found.sinks}
    counts = f"{plural(len(found.datasets), 'dataset')}, {plural(len(names), 'sink')}"
    return Text.assemble("Lake ", (found.lake, "bold"), (f" · {counts} · Ctrl-C ends", "dim"))


def _behind(one: SinkStatus) -> tuple[int, float, str]:
    """For sorting: an unknown lag comes first, then the longest one."""
    return 0 if one.sink_lag_rows is None else 1, -(one.sink_lag_seconds or 0.0), one.name


def _sinks(found: LakeStatus, flow: Throughput, lines_max: int) -> list[RenderableType]:
    table = grid("sink", "dataset", "state", "behind", "trend", "rows/s out", "quarantined", right=("rows/s out",))
    groups = {name: list(lanes) for name, lanes in groupby(found.sinks, key=lambda s: s.name)}
    chosen = sorted((lanes[0] for lanes in groups.values()), key=_behind)
    for one in chosen[:lines_max]:
        quarantined = sum(lane.quarantined for lane in groups[one.name])
        table.add_row(
            Text(one.name, "bold"),
            Text(one.dataset),
            Text(one.state, STYLES.get(one.state, "")),
            lag(one.sink_lag_rows, one.sink_lag_seconds),
            Text(one.trend, "dim"),
            _rate(flow.delivered.get(one.name)),
            Text(number(quarantined), "yellow" if quarantined else "dim"),
        )
    return [table, *_more(len(chosen) - lines_max, "sink")]


def _datasets(found: LakeStatus, flow: Throughput, lines_max: int) -> list[RenderableType]:
    headers = ("rows", "sealed", "rows/s in", "open blocks", "received, waiting")
    table = grid("dataset", *headers, right=headers)
    waiting = {r.dataset: r.rows for r in found.receive or () if not r.dropped}
    chosen = sorted(found.datasets, key=lambda d: (d.problem is None, -(flow.ingested.get(d.name) or 0.0), d.name))
    for d in chosen[:lines_max]:
        table.add_row(
            Text(d.name, "bold" if d.problem is None else "bold red"),
            number(d.rows),
            "–" if d.sealed is None else number(d.sealed),
            _rate(flow.ingested.get(d.name)),
            number(d.open_blocks),
            number(waiting.get(d.name, 0)),
        )
    return [table, *_more(len(chosen) - lines_max, "dataset")]


def _rate(rows_per_second: float | None) -> Text:
    if rows_per_second is None:
        return Text(UNKNOWN, "dim")
    return Text(f"{rows_per_second:,.0f}", "green" if rows_per_second else "dim")


def _more(count: int, noun: str) -> list[RenderableType]:
    return [dim(f"and {plural(count, noun)} more")] if count > 0 else []
