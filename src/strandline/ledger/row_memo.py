"""Values that were made from rows, for queries that read the same thousands of rows again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class RowMemo(Generic[_T]):
    """Makes values from the rows of one query, and makes none twice as long as the query returns the same row.

    The key is the whole row, so a value is never out of date. It keeps those of the last call. Several
    threads may use it: at worst, a value is made twice."""

    def __init__(self, make: Callable[[Any], _T]) -> None:
        """`make` must use nothing but the row, and its values must not be changed."""
        self._make = make
        self._kept: dict[tuple[Any, ...], _T] = {}

    def read(self, rows: Iterable[Any]) -> list[_T]:
        known, kept, found = self._kept, dict[tuple[Any, ...], _T](), list[_T]()
        for row in rows:
            key = tuple(row)
            value = known[key] if key in known else self._make(row)
            kept[key] = value
            found.append(value)
        self._kept = kept
        return found
