"""Figures as people read them. What is unknown (None) is left to the templates: it never looks like zero."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from markupsafe import Markup, escape

from strandline.core.text.wording import duration, moment

_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


def number(value: float) -> str:
    """With thousands separated: 1,234,567."""
    return f"{value:,.0f}"


def short_number(value: float) -> str:
    """At most four characters and a unit: 1.2 M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}" if abs(value) < size * 1000 else f"{value / size:,.0f} {unit}"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.2g}"


def moment_of(value: datetime | str) -> datetime:
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    return found.astimezone(UTC)


def ago(value: datetime | str, now: datetime) -> str:
    """`3 min ago`, or `in 2 h` for what is still to come."""
    passed = (now - moment_of(value)).total_seconds()
    if abs(passed) < 1:
        return "just now"
    return f"{duration(passed)} ago" if passed > 0 else f"in {duration(-passed)}"


def due(value: datetime | str, now: datetime) -> str:
    return ago(value, now) if moment_of(value) > now else "due now"


def clock(value: datetime | str) -> str:
    return f"{moment_of(value):%H:%M}"


def stamp(value: datetime | str) -> str:
    return moment(moment_of(value))


def prose(text: str) -> Markup:
    """Text in backquotes becomes code."""
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
