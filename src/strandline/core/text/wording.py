"""Counts, times and sizes as people read them: "1 row", "2,000 rows", "3 min", "1.5 MiB". Messages, tables and pages
all use this. What is stored or parsed is in `core/documents.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from difflib import get_close_matches

_VERBS = {"is": "are", "has": "have", "does": "do", "was": "were", "carries": "carry"}


def plural(count: int, noun: str, verb: str = "") -> str:
    """The count with its noun and verb: `plural(1, "row", "is")` is "1 row is"."""
    words = [f"{count:,}", noun if count == 1 else _many(noun)]
    if verb:
        words.append(agreeing(count, verb))
    return " ".join(words)


def part(count: int, total: int, noun: str, verb: str = "") -> str:
    """A part of a total: `part(1, 2, "row", "is")` is "1 of 2 rows is"."""
    words = [f"{count:,} of {plural(total, noun)}"]
    if verb:
        words.append(agreeing(count, verb))
    return " ".join(words)


def agreeing(count: int, verb: str) -> str:
    """The verb for a count that is elsewhere in the sentence: "is" or "are"."""
    return verb if count == 1 else _VERBS.get(verb, verb.removesuffix("s"))


def _many(noun: str) -> str:
    if re.search("[^aeiou]y$", noun):
        return noun[:-1] + "ies"
    return noun + ("es" if re.search("(?:ch|sh|x|s)$", noun) else "s")


def age(since: datetime, now: datetime | None = None) -> str:
    return duration(((now or datetime.now(UTC)) - since).total_seconds())


def duration(seconds: float) -> str:
    """A duration in its two largest units: 2 h 5 min. Seconds only below ten minutes."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return _two(whole // 60, "min", whole % 60 if whole < 600 else 0, "s")
    if whole < 86_400:
        return _two(whole // 3_600, "h", whole % 3_600 // 60, "min")
    return _two(whole // 86_400, "d", whole % 86_400 // 3_600, "h")


def _two(large: int, unit: str, small: int, small_unit: str) -> str:
    return f"{large} {unit}" + (f" {small} {small_unit}" if small else "")


def took(seconds: float) -> str:
    """How long work took: with a tenth of a second below a minute."""
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def moment(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def size(count: float) -> str:
    """Bytes, in the unit of 1,024 that fits."""
    if count < 1024:
        return f"{count:,.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:,.1f} TiB"


def nearest(name: str, known: Iterable[str], count_max: int = 3) -> list[str]:
    """The known names that are most similar to an unknown one; those that differ only in case come first."""
    names = sorted(known)
    same = [n for n in names if n.lower() == name.lower()]
    close = get_close_matches(name.lower(), [n.lower() for n in names], count_max, 0.7)
    found = same + [n for c in close for n in names if n.lower() == c]
    return list(dict.fromkeys(found))[:count_max]
