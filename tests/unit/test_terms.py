"""Which numbers and which terms belong to whom."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.errors import RefusedError
from strandline.core.sites.replication import FIRST_TERM
from strandline.core.sites.terms import LAST_TERM, NUMBER_BITS, SITES_MAX, next_term, numbers_of, term_of
from strandline.core.types import SEQ_MAX

terms = st.integers(FIRST_TERM, LAST_TERM)
site_numbers = st.integers(0, SITES_MAX - 1)


@given(terms, site_numbers, site_numbers)
def test_two_sites_never_take_the_same_term(current: int, one: int, other: int) -> None:
    try:
        taken = next_term(current, one), next_term(current, other)
    except RefusedError:
        return
    assert (taken[0] == taken[1]) == (one == other)
    assert all(current < t <= current + SITES_MAX for t in taken)


@given(terms, site_numbers)
def test_a_site_takes_its_own_terms_only(current: int, site: int) -> None:
    try:
        assert next_term(current, site) % SITES_MAX == site
    except RefusedError:
        assert current + SITES_MAX > LAST_TERM


@given(st.integers(FIRST_TERM, LAST_TERM - 1))
def test_the_numbers_of_terms_lie_one_behind_the_other(term: int) -> None:
    assert numbers_of(term).hi + 1 == numbers_of(term + 1).lo
    assert term_of(numbers_of(term).lo) == term_of(numbers_of(term).hi) == term


def test_the_first_term_begins_at_the_first_number() -> None:
    assert numbers_of(FIRST_TERM).lo == 1


def test_the_last_number_is_exact_wherever_numbers_are_floats() -> None:
    last = numbers_of(LAST_TERM).hi
    assert last == 2**NUMBER_BITS - 1 < SEQ_MAX
    assert int(float(last)) == last and json.loads(json.dumps(float(last))) == last


def test_a_term_beyond_the_last_is_refused() -> None:
    with pytest.raises(RefusedError, match="no term is left"):
        next_term(LAST_TERM, 3)
    with pytest.raises(ValueError, match="not a term"):
        numbers_of(LAST_TERM + 1)
    with pytest.raises(ValueError, match="not the number of a site"):
        next_term(1, SITES_MAX)
