"""Figures as people read them. What is unknown (None) is left to the templates: it never looks like zero."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from markupsafe import Markup, escape

_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def number(value: float) -> str:
    """With thousands separated: 1,234,567."""
    return f"{value:,.0f}"


def short_number(value: float) -> str:
    """At most four characters and a unit: 1.2 M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}" if abs(value) < size * 1000 else f"{value / size:,.0f} {unit}"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.2g}"


def seconds(value: float) -> str:
    """The two largest units: 2 h 5 min."""
    whole = int(value)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return _two(whole // _MINUTE, "min", whole % _MINUTE if whole < 10 * _MINUTE else 0, "s")
    if whole < _DAY:
        return _two(whole // _HOUR, "h", whole % _HOUR // _MINUTE, "min")
    return _two(whole // _DAY, "d", whole % _DAY // _HOUR, "h")


def _two(large: int, unit: str, small: int, small_unit: str) -> str:
    return f"{large} {unit}" + (f" {small} {small_unit}" if small else "")


def size(value: float) -> str:
    """Bytes in the unit of 1,024 that fits."""
    left = float(value)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if left < 1024 or unit == "TiB":
            return f"{left:,.0f} {unit}" if unit == "B" or left >= 100 else f"{left:.3g} {unit}"
        left /= 1024
    raise AssertionError("unreachable")


def moment_of(value: datetime | str) -> datetime:
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    return found.astimezone(UTC)


def ago(value: datetime | str, now: datetime) -> str:
    """`3 min ago`, or `in 2 h` for what is still to come."""
    passed = (now - moment_of(value)).total_seconds()
    if abs(passed) < 1:
        return "just now"
    return f"{seconds(passed)} ago" if passed > 0 else f"in {seconds(-passed)}"


def clock(value: datetime | str) -> str:
    return f"{moment_of(value):%H:%M}"


def stamp(value: datetime | str) -> str:
    return f"{moment_of(value):%Y-%m-%d %H:%M:%S} UTC"


def prose(text: str) -> Markup:
    """With what stands in backquotes as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(p) if n % 2 else escape(p) for n, p in enumerate(parts))


def words(name: str) -> str:
    """`held_by` as `held by`."""
    return name.replace("_", " ")


def label(name: str) -> str:
    """`held_by` as `Held by`."""
    return words(name[:1].upper() + name[1:])


def spelled(value: object) -> object:
    """A moment in the form of others on the page; anything else as it is."""
    return stamp(value) if isinstance(value, str) and _MOMENT.fullmatch(value) else value


def sentence(text: str) -> str:
    """With a capital at its start, unless that is the name of something, and a full stop."""
    first = text.partition(" ")[0]
    started = text if first[:1] == "`" or "." in first or first.endswith(":") else text[:1].upper() + text[1:]
    return started if started[-1:] in ".?!" else f"{started}."
