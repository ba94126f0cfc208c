"""A cache of values that are computed from rows, for queries that read the same thousands of rows again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class RowMemo(Generic[_T]):
    """Computes values from the rows of one query, and reuses a value while the query returns the same row.

    The key is the whole row, so a value is never out of date. Only the values of the last call are cached. Several
    threads may use it: at worst, a value is computed twice."""

    def __init__(self, make: Callable[[Any], _T]) -> None:
        """`make` must use nothing but the row. Callers must not change the values."""
        self._make = make
        self._cache: dict[tuple[Any, ...], _T] = {}

    def read(self, rows: Iterable[Any]) -> list[_T]:
        old, new, values = self._cache, dict[tuple[Any, ...], _T](), list[_T]()
        for row in rows:
            key = tuple(row)
            value = old[key] if key in old else self._make(row)
            new[key] = value
            values.append(value)
        self._cache = new
        return values
