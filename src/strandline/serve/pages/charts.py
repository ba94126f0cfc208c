"""Charts as SVG text, drawn from values. Colours are classes of the stylesheet, so that they follow light and dark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup, escape

from strandline.serve.pages.spelling import short_number

_PAD = 2.0
_WIDTH, _HEIGHT = 640, 160
_SPARK_POINTS_MAX, _CHART_POINTS_MAX = 32, 120  # more points make the page larger and show no more


@dataclass(frozen=True, slots=True)
class Point:
    at: float  # seconds
    value: float | None  # None: not known then; the line has a gap


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    style: str  # the class of its colour
    points: Sequence[Point]


def sparkline(points: Sequence[Point], label: str, *, width: int = 120, height: int = 28) -> Markup:
    """A small line without axes; empty if fewer than two values are known."""
    shown = thinned(points, _SPARK_POINTS_MAX)
    if sum(p.value is not None for p in shown) < 2:
        return Markup("")
    drawn = "".join(_curves(shown, _ChartFrame(shown, width, height, _PAD), with_area=False))
    return Markup(
        f'<svg class="spark" role="img" aria-label="{escape(label)}" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" focusable="false">{drawn}</svg>'
    )


def line_chart(
    lines: Sequence[Line], label: str, *, start: str, end: str, unit: Callable[[float], str] = short_number
) -> Markup:
    """Lines over one time axis, from zero to the highest value. `start` and `end` name the ends of the axis.

    The drawing stretches to the width that it gets; words stand beside it, in the size of other words."""
    lines = [replace(line, points=thinned(line.points, _CHART_POINTS_MAX)) for line in lines]
    everything = [p for line in lines for p in line.points]
    if max((sum(p.value is not None for p in line.points) for line in lines), default=0) < 2:
        return Markup("")
    frame = _ChartFrame(everything, _WIDTH, _HEIGHT, _PAD)
    drawn = [
        f'<line class="grid" x1="0" x2="{_WIDTH}" y1="{_n(frame.y(v))}" y2="{_n(frame.y(v))}"/>'
        for v in (0.0, frame.high / 2, frame.high)
    ]
    for line in lines:
        drawn.append(f'<g class="{escape(line.style)}">{"".join(_curves(line.points, frame))}</g>')
    heights = "".join(f"<span>{escape(unit(v))}</span>" for v in (frame.high, frame.high / 2, 0.0))
    return Markup(
        f'<figure class="plot"><div class="heights">{heights}</div>'
        f'<svg class="chart" role="img" aria-label="{escape(label)}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'preserveAspectRatio="none" focusable="false">{"".join(drawn)}</svg>'
        f'<figcaption class="times"><span>{escape(start)}</span><span>{escape(end)}</span></figcaption></figure>'
    )


def share_bar(part: float, whole: float, label: str) -> Markup:
    """How much of the whole is there. A whole of zero is drawn full: nothing is missing."""
    share = 1.0 if whole <= 0 else min(1.0, max(0.0, part / whole))
    filled = _n(share * 100)
    return Markup(
        f'<svg class="share" role="img" aria-label="{escape(label)}" viewBox="0 0 100 6" preserveAspectRatio="none" '
        f'focusable="false"><rect class="rest" width="100" height="6" rx="3"/>'
        f'<rect class="{"full" if share == 1 else "part"}" width="{filled}" height="6" rx="3"/></svg>'
    )


class _ChartFrame:
    def __init__(self, points: Sequence[Point], width: float, height: float, pad: float) -> None:
        self.first = min(p.at for p in points)
        self.span = max(p.at for p in points) - self.first or 1.0
        self.high = max((p.value for p in points if p.value is not None), default=0.0) or 1.0
        self.left, self.right = pad, width - pad
        self.low_y, self.high_y = height - pad, pad

    def x(self, at: float) -> float:
        return self.left + (at - self.first) / self.span * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.low_y - value / self.high * (self.low_y - self.high_y)


def thinned(points: Sequence[Point], points_max: int) -> list[Point]:
    """At most so many: of neighbours, the highest counts; the newest stays as it is. A gap stays a gap."""
    if len(points) <= points_max:
        return list(points)
    size = -(-(len(points) - 1) // (points_max - 1))
    return [
        *(_one_of(points[at : min(at + size, len(points) - 1)]) for at in range(0, len(points) - 1, size)),
        points[-1],
    ]


def _one_of(neighbours: Sequence[Point]) -> Point:
    known = [p.value for p in neighbours if p.value is not None]
    return Point(neighbours[-1].at, max(known) if len(known) == len(neighbours) else None)


def _curves(points: Sequence[Point], frame: _ChartFrame, *, with_area: bool = True) -> Iterator[str]:
    """One curve for each run of known values; a single one is a dot."""
    for run in _runs(points):
        at = [f"{_n(frame.x(p.at))} {_n(frame.y(p.value or 0.0))}" for p in run]
        if len(at) == 1:
            x, y = at[0].split()
            yield f'<circle class="dot" cx="{x}" cy="{y}" r="1.5"/>'
            continue
        line = " L".join(at)
        low = _n(frame.low_y)
        if with_area:
            yield f'<path class="area" d="M{line} L{_n(frame.x(run[-1].at))} {low} L{_n(frame.x(run[0].at))} {low}Z"/>'
        yield f'<path class="line" d="M{line}"/>'


def _runs(points: Sequence[Point]) -> Iterator[list[Point]]:
    run: list[Point] = []
    for point in points:
        if point.value is not None:
            run.append(point)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _n(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")
