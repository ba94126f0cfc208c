"""Durations as people write them: `90s`, `15m`, `12h`, `30d`."""

from __future__ import annotations

import re
from datetime import timedelta

from strandline.core.errors import UsageError

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SPELLED = re.compile(r"([0-9]{1,9})([smhd])")
DAYS_MAX = 36_500  # a hundred years; more is a typo, and would exceed the calendar


def parse(text: str) -> timedelta:
    spelled = _SPELLED.fullmatch(text.strip())
    if spelled is None:
        raise UsageError(
            f"`{text}` is not a duration", hint="Write a number and s, m, h or d: `90s`, `15m`, `12h`, `30d`."
        )
    length = timedelta(**{_UNITS[spelled[2]]: int(spelled[1])})
    if length > timedelta(days=DAYS_MAX):
        raise UsageError(f"`{text}` is too long: at most {DAYS_MAX}d")
    return length


def spell(length: timedelta) -> str:
    """A duration in the largest unit that is exact; fractions of a second are dropped."""
    seconds = int(length.total_seconds())
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
