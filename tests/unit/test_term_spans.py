"""What a follower asks for of a range that reaches over several terms."""

from __future__ import annotations

from strandline.core.types import Seq, SeqRange
from strandline.replicate.follow.term_spans import term_spans

TERM = 17 * 2**40


def spans(owned: list[tuple[int, int]], within: tuple[int, int]) -> list[tuple[int, int]]:
    of = [SeqRange(Seq(lo), Seq(hi)) for lo, hi in owned]
    return [(s.lo, s.hi) for s in term_spans(of, SeqRange(Seq(within[0]), Seq(within[1])))]


def test_the_numbers_between_two_terms_are_never_asked_for() -> None:
    owned = [(1, 10), (21, 25), (TERM, TERM), (TERM + 5, TERM + 9)]
    assert spans(owned, (1, TERM + 100)) == [(1, 25), (TERM, TERM + 9)]


def test_only_what_lies_in_the_range_is_asked_for() -> None:
    owned = [(1, 10), (TERM + 5, TERM + 9)]
    assert spans(owned, (4, TERM + 6)) == [(4, 10), (TERM + 5, TERM + 6)]
    assert spans(owned, (11, TERM)) == [] == spans([], (1, 5))
