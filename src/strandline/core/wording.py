"""Counts and times in words: "1 row", "2,000 rows", "3 min". Every message with a count uses this, so that none says
"1 rows"."""

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
    whole = max(0, int(seconds))
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if whole >= 2 * length:
            return f"{whole // length} {unit}"
    return f"{whole} s"


def nearest(name: str, known: Iterable[str], count_max: int = 3) -> list[str]:
    """The known names that are most similar to an unknown one; those that differ only in case come first."""
    names = sorted(known)
    same = [n for n in names if n.lower() == name.lower()]
    close = get_close_matches(name.lower(), [n.lower() for n in names], count_max, 0.7)
    found = same + [n for c in close for n in names if n.lower() == c]
    return list(dict.fromkeys(found))[:count_max]
