"""Pictures of what a group has found, as SVG: the ratios beside their goals, and what grows with the size of a table.

A figure is drawn over sizes if its samples name a `series` and an `x` in their size: all figures of one series share a
picture. Both axes are logarithmic, so what follows the size is a diagonal, and what does not is flat.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import floor, log10
from typing import Any

from bench.table import number

_COLOURS = ("#2563eb", "#dc2626", "#059669", "#9333ea", "#d97706", "#0891b2")
_WIDTH, _HEIGHT = 720, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 190, 36, 44
_BAR, _NAMES = 26, 380

Points = list[tuple[float, float]]


def plots(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """File names and contents."""
    measured = [entry for entry in document["results"] if entry["ours"] is not None]
    judged = [entry for entry in measured if entry["ratio"] is not None and entry["goal_of"] == "ratio"]
    if judged:
        yield (
            f"bench-{document['group']}.svg",
            bars(f"{document['group']}: ratio to the peer; the line is the goal", judged),
        )
    series: dict[str, dict[str, Points]] = {}
    units: dict[str, tuple[str, str]] = {}
    for entry in measured:
        size = entry["size"] or {}
        if "series" not in size:
            continue
        lines = series.setdefault(size["picture"], {})
        lines.setdefault(size["series"], []).append((size["x"], entry["ours"]))
        units[size["picture"]] = (size["x_name"], entry["unit"])
    for picture, lines in series.items():
        name = f"bench-{document['group']}-{picture.replace(' ', '-')}.svg"
        yield name, growth(picture, lines, *units[picture])


def bars(title: str, entries: Sequence[Mapping[str, Any]]) -> str:
    """A bar for each ratio; green where the goal is met. The axis ends at the largest of them, or of the goals."""
    top = max(max(entry["ratio"], entry["goal"]) for entry in entries) * 1.05
    height = 40 + _BAR * len(entries) + 8
    room = _WIDTH - _NAMES - 70
    parts = [_text(8, 22, title, weight="bold")]
    for place, entry in enumerate(entries):
        y = 40 + _BAR * place
        colour = "#059669" if entry["holds"] else "#dc2626"
        goal = _NAMES + room * entry["goal"] / top
        parts.append(_text(_NAMES - 8, y + 14, _short(entry["figure"]), anchor="end"))
        parts.append(
            f'<rect x="{_NAMES}" y="{y + 2}" width="{room * entry["ratio"] / top:.1f}" height="16" fill="{colour}"/>'
        )
        parts.append(_line(goal, y - 1, goal, y + 21, "#6b7280", 2))
        parts.append(_text(_NAMES + room + 8, y + 14, number(entry["ratio"])))
    return _svg(_WIDTH, height, parts)


def growth(title: str, lines: Mapping[str, Points], x_name: str, unit: str) -> str:
    xs = [x for points in lines.values() for x, _ in points]
    ys = [y for points in lines.values() for _, y in points if y > 0]
    x_of = _scale(min(xs), max(xs), _LEFT, _WIDTH - _RIGHT)
    y_of = _scale(10 ** floor(log10(min(ys))), 10 ** (floor(log10(max(ys))) + 1), _HEIGHT - _BOTTOM, _TOP)
    parts = [_text(8, 22, f"{title} ({unit})", weight="bold"), _text(_LEFT, _HEIGHT - 8, x_name)]
    for power in range(floor(log10(min(ys))), floor(log10(max(ys))) + 2):
        y = y_of(10**power)
        parts.append(_line(_LEFT, y, _WIDTH - _RIGHT, y, "#d1d5db", 1))
        parts.append(_text(_LEFT - 6, y + 4, number(10**power), anchor="end"))
    for x in sorted(set(xs)):
        parts.append(_text(x_of(x), _HEIGHT - _BOTTOM + 18, f"{x:,.0f}×", anchor="middle"))
    for place, (name, points) in enumerate(lines.items()):
        colour = _COLOURS[place % len(_COLOURS)]
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in sorted(points) if y > 0)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3" fill="{colour}"/>' for x, y in points if y > 0]
        parts.append(_text(_WIDTH - _RIGHT + 12, _TOP + 12 + 18 * place, name, colour=colour))
    return _svg(_WIDTH, _HEIGHT, parts)


def _scale(low: float, high: float, start: float, end: float) -> Any:
    span = log10(high) - log10(low) or 1.0
    return lambda value: start + (end - start) * (log10(value) - log10(low)) / span


def _short(name: str) -> str:
    return name if len(name) <= 58 else name[:57] + "…"


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", weight: str = "normal", colour: str = "#111827"
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" fill="{colour}"'
    return f"<text {place}>{escape(words)}</text>"


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    """On white, so that it can be read on a dark page too."""
    view = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {view}>'
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="#ffffff"/>', *parts, "</svg>", ""])
