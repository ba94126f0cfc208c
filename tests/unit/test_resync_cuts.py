"""Which numbers of a lake that was taken over a ledger claims that is made anew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strandline.core.sites.replication import TakeoverCut
from strandline.core.sites.takeover_cuts import NumberedCut
from strandline.core.sites.terms import numbers_of
from strandline.core.types import Seq, SeqRange, merge_ranges
from strandline.ingest.resync.cuts import numbers_left


def test_the_hole_between_two_terms_is_nobodys() -> None:
    first = numbers_of(17).lo
    at = NumberedCut(first, TakeoverCut(17, Seq(10), (SeqRange(Seq(16), Seq(20)),)))
    gap = SeqRange(Seq(1), Seq(first + 9))
    assert [(r.lo, r.hi) for r in numbers_left(gap, [at])] == [(1, 10), (16, 20), (first + 1, first + 9)]
    assert numbers_left(gap, []) == [gap]


@st.composite
def recorded(draw: st.DrawFn) -> list[NumberedCut]:
    found = []
    for number in sorted(draw(st.sets(st.integers(2, 60), max_size=3))):
        above = draw(st.integers(0, number - 1))
        lows = draw(st.lists(st.integers(above + 1, number), max_size=3))
        keeps = merge_ranges(SeqRange(Seq(n), Seq(n)) for n in lows if n < number)
        found.append(NumberedCut(Seq(number), TakeoverCut(1, Seq(above), tuple(keeps))))
    return found


@given(st.integers(1, 40), st.integers(0, 40), recorded())
def test_what_is_left_is_what_no_cut_has_cut_out(lo: int, more: int, cuts: list[NumberedCut]) -> None:
    def stays(n: int) -> bool:
        return all(
            n != at.number and (n <= at.cut.above or n > at.number or any(r.lo <= n <= r.hi for r in at.cut.keeps))
            for at in cuts
        )

    left = numbers_left(SeqRange(Seq(lo), Seq(lo + more)), cuts)
    assert [n for r in left for n in range(r.lo, r.hi + 1)] == [n for n in range(lo, lo + more + 1) if stays(n)]
