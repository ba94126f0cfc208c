"""The ranges of sequence numbers in which a purge deleted rows. Pure.

Followers delete what their leader lacks in these ranges. So the ranges have no other number than those of purged rows,
unless there are too many of them: then neighbours are joined, the nearest first.

How many there may be is bounded by what Spark evaluates quickly for each row. A condition of more than about fifty
comparisons is no longer compiled: then each row takes fifty times as long. A list of numbers is looked up by hash, but
each of them is an expression of the plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from strandline.core.types import SEQ_COLUMN, SEQ_MAX, Seq, SeqRange, merge_ranges

NAMED_MAX = 500  # ranges of one purge: each stands in the ledgers of all sites, and on their tables
COMPARED_MAX = 20  # of these, the longest: by first and last number
LISTED_MAX = 10_000  # numbers in all others
_STEP = re.compile(r"(\d{1,19})(?:\+(\d{1,19}))?", re.ASCII)


def name_rows(numbers: Iterable[int]) -> tuple[SeqRange, ...]:
    return bound(SeqRange(Seq(n), Seq(n)) for n in numbers)


def bound(ranges: Iterable[SeqRange]) -> tuple[SeqRange, ...]:
    """Ranges that cover the given ones, as many as a purge may have."""
    named = join_nearest(ranges, named_max=NAMED_MAX)
    listed = sum(len(r) for r in _by_length(named)[COMPARED_MAX:])
    return named if listed <= LISTED_MAX else join_nearest(named, named_max=COMPARED_MAX)


def join_nearest(ranges: Iterable[SeqRange], *, named_max: int) -> tuple[SeqRange, ...]:
    """At most `named_max` ranges that cover the given ones, with as few other numbers in them as possible."""
    apart = merge_ranges(ranges)
    gaps = sorted(range(1, len(apart)), key=lambda n: apart[n].lo - apart[n - 1].hi, reverse=True)
    starts = [0, *sorted(gaps[: named_max - 1]), len(apart)]
    return tuple(SeqRange(apart[a].lo, apart[b - 1].hi) for a, b in pairwise(starts) if a < b)


def _by_length(ranges: Sequence[SeqRange]) -> list[SeqRange]:
    return sorted(ranges, key=len, reverse=True)


def in_ranges(ranges: Sequence[SeqRange]) -> str:
    """The condition, in Spark SQL, for rows whose number is in one of the ranges, which are as `bound` returns them."""
    column, by_length = f"`{SEQ_COLUMN}`", _by_length(ranges)
    parts = [f"{column} BETWEEN {r.lo} AND {r.hi}" for r in sorted(by_length[:COMPARED_MAX])]
    if listed := sorted(n for r in by_length[COMPARED_MAX:] for n in range(r.lo, r.hi + 1)):
        parts.append(f"{column} IN ({', '.join(map(str, listed))})")
    return f"({' OR '.join(parts) or 'false'})"


def span_of(ranges: Sequence[SeqRange]) -> SeqRange:
    """From the first number of the ranges to the last."""
    return SeqRange(min(r.lo for r in ranges), max(r.hi for r in ranges))


def clip(ranges: Iterable[SeqRange], within: SeqRange) -> tuple[SeqRange, ...]:
    inside = ((max(r.lo, within.lo), min(r.hi, within.hi)) for r in ranges)
    return tuple(SeqRange(lo, hi) for lo, hi in inside if lo <= hi)


def to_text(ranges: Sequence[SeqRange]) -> str:
    """Short, because tables have it in their properties: for each range, how far it begins behind the end of the one
    before, and by how much it is longer than one number."""
    lasts = [0, *(int(r.hi) for r in ranges)]
    steps = ((r.lo - last, r.hi - r.lo) for r, last in zip(ranges, lasts, strict=False))
    return " ".join(f"{gap}+{more}" if more else f"{gap}" for gap, more in steps)


def parse_text(text: str) -> tuple[SeqRange, ...] | None:
    """None for anything that `to_text` does not return."""
    found: list[SeqRange] = []
    last = 0
    for step in text.split(" "):
        if (parts := _STEP.fullmatch(step)) is None:
            return None
        lo = last + int(parts[1])
        last = lo + int(parts[2] or 0)
        if not lo <= last <= SEQ_MAX or lo < 1 or (found and int(parts[1]) < 1):
            return None
        found.append(SeqRange(Seq(lo), Seq(last)))
    return tuple(found)
