"""The ranges that a purge names: they have every purged row, and as few others as possible."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.purged_ranges import (
    COMPARED_MAX,
    LISTED_MAX,
    NAMED_MAX,
    bound,
    clip,
    in_ranges,
    join_nearest,
    name_rows,
    parse_text,
    span_of,
    to_text,
)
from strandline.core.types import SEQ_COLUMN, SEQ_MAX, Seq, SeqRange

NUMBERS = st.lists(st.integers(1, 400), unique=True, min_size=1)


def rows(*bounds: tuple[int, int]) -> tuple[SeqRange, ...]:
    return tuple(SeqRange(Seq(lo), Seq(hi)) for lo, hi in bounds)


def numbers(ranges: tuple[SeqRange, ...]) -> set[int]:
    return {n for r in ranges for n in range(r.lo, r.hi + 1)}


@given(NUMBERS)
def test_few_rows_are_named_one_by_one(found: list[int]) -> None:
    named = name_rows(found)
    assert numbers(named) == set(found) and len(named) <= NAMED_MAX
    assert span_of(named) == SeqRange(Seq(min(found)), Seq(max(found)))


@given(NUMBERS, st.integers(1, 5))
def test_of_many_rows_neighbours_are_joined_and_none_is_left_out(found: list[int], most: int) -> None:
    named = join_nearest(name_rows(found), named_max=most)
    assert numbers(named) >= set(found) and len(named) <= most and list(named) == sorted(named)
    assert span_of(named) == SeqRange(Seq(min(found)), Seq(max(found)))


def test_the_nearest_neighbours_are_joined_first() -> None:
    assert join_nearest(name_rows([1, 2, 10, 13, 14, 40]), named_max=3) == rows((1, 2), (10, 14), (40, 40))
    assert join_nearest(rows((1, 5), (7, 7), (20, 30)), named_max=2) == rows((1, 7), (20, 30))
    assert join_nearest((), named_max=2) == bound(()) == ()


@pytest.mark.parametrize("length", [1, 20, 25, 100_000])
@pytest.mark.parametrize("count", [1, COMPARED_MAX, COMPARED_MAX + 1, NAMED_MAX, NAMED_MAX + 1, 3 * NAMED_MAX])
def test_a_purge_has_as_many_ranges_as_one_condition_can_have(length: int, count: int) -> None:
    found = rows(*((n * 10**6 + 1, n * 10**6 + length) for n in range(count)))
    named = bound(found)
    assert span_of(named) == span_of(found) and len(named) <= NAMED_MAX
    assert sum(len(r) for r in sorted(named, key=len)[:-COMPARED_MAX]) <= LISTED_MAX
    assert bound(named) == named, "so a follower has the same"
    if count <= COMPARED_MAX or (count <= NAMED_MAX and length * (count - COMPARED_MAX) <= LISTED_MAX):
        assert named == found


@given(NUMBERS)
def test_the_condition_of_ranges_fits_the_rows_in_them(found: list[int]) -> None:
    with sqlite3.connect(":memory:") as db:
        db.execute(f"CREATE TABLE t ({SEQ_COLUMN} INTEGER)")
        db.executemany("INSERT INTO t VALUES (?)", [(n,) for n in range(402)])
        fitting = db.execute(f"SELECT {SEQ_COLUMN} FROM t WHERE {in_ranges(name_rows(found))}")
        assert sorted(n for (n,) in fitting) == sorted(found)
        assert db.execute(f"SELECT 1 FROM t WHERE {in_ranges(())}").fetchall() == []


def test_ranges_are_clipped_to_a_part_of_them() -> None:
    named = rows((1, 5), (8, 8), (20, 30))
    assert clip(named, SeqRange(Seq(4), Seq(21))) == rows((4, 5), (8, 8), (20, 21))
    assert clip(named, SeqRange(Seq(9), Seq(19))) == ()


@given(NUMBERS)
def test_ranges_are_read_back_from_their_text(found: list[int]) -> None:
    assert parse_text(to_text(name_rows(found))) == name_rows(found)


def test_the_text_of_ranges_is_short() -> None:
    assert to_text(rows((17, 17), (20, 25))) == "17 3+5"
    assert parse_text(to_text(rows((SEQ_MAX, SEQ_MAX)))) == rows((SEQ_MAX, SEQ_MAX))


@pytest.mark.parametrize("text", ["", " ", "0", "3 0", "3+", "+3", "-3", "3  4", "²", "3,4", f"{2**63}", f"1+{2**63}"])
def test_any_other_text_is_none_of_ours(text: str) -> None:
    assert parse_text(text) is None
