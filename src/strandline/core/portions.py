"""Divides many things into portions of a bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def portions(
    items: Iterable[T], size: Callable[[T], int], size_max: int, count_max: int | None = None
) -> Iterator[list[T]]:
    """The items in their order. A portion with several items is not larger than `size_max`; each item alone may be."""
    portion: list[T] = []
    total = 0
    for item in items:
        if portion and (total + size(item) > size_max or len(portion) == count_max):
            yield portion
            portion, total = [], 0
        portion.append(item)
        total += size(item)
    if portion:
        yield portion
