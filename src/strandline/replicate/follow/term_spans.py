"""The parts of a range in which rows can be. Pure.

Between two terms lie far more unused numbers than a follower could request part by part.
"""

from __future__ import annotations

from collections.abc import Iterable

from strandline.core.sites.terms import term_of
from strandline.core.types import Seq, SeqRange


def term_spans(owned: Iterable[SeqRange], within: SeqRange) -> tuple[SeqRange, ...]:
    """One span per term: from the first to the last number of `owned` in it, inside of `within`."""
    spans: dict[int, SeqRange] = {}
    for rows in owned:
        lo, hi = max(rows.lo, within.lo), min(rows.hi, within.hi)
        if lo <= hi:
            known = spans.get(term_of(hi), SeqRange(lo, hi))
            spans[term_of(hi)] = SeqRange(Seq(min(lo, known.lo)), Seq(max(hi, known.hi)))
    return tuple(spans[term] for term in sorted(spans))
