"""Goes through every state that a small state machine can reach, breadth first, so that the way to a fault is short."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

S = TypeVar("S", bound=Hashable)
N = TypeVar("N", bound="type[Any]")


def quickly_replaced(named_tuple: N) -> N:
    """The class, whose `_replace` takes half the time: a large model spends a third of its time there."""
    places = {name: n for n, name in enumerate(named_tuple._fields)}
    make = tuple.__new__

    def _replace(self: Any, /, **changes: object) -> Any:
        values = list(self)
        for name, value in changes.items():
            values[places[name]] = value
        return make(named_tuple, values)

    named_tuple._replace = _replace
    return named_tuple


@dataclass(frozen=True, slots=True)
class Explored(Generic[S]):
    states: int
    broken: tuple[S, ...]
    """The way to the first state that must not be; empty where there is none."""
    why: str = ""


def explore(
    first: S, steps: Callable[[S], Iterable[S]], broken: Callable[[S], str], states_max: int = 3_000_000
) -> Explored[S]:
    gc.disable()  # states hold no cycles, and there are many of them
    try:
        return _explore(first, steps, broken, states_max)
    finally:
        gc.enable()


def _explore(first: S, steps: Callable[[S], Iterable[S]], broken: Callable[[S], str], states_max: int) -> Explored[S]:
    came_from: dict[S, S | None] = {first: None}
    frontier = [first]
    while frontier:
        following: list[S] = []
        for state in frontier:
            for after in steps(state):
                if after in came_from:
                    continue
                came_from[after] = state
                if why := broken(after):
                    return Explored(len(came_from), _way(came_from, after), why)
                following.append(after)
        frontier = following
        if len(came_from) > states_max:
            raise RuntimeError("the model grew beyond what can be explored here")
    return Explored(len(came_from), ())


def _way(came_from: dict[S, S | None], end: S) -> tuple[S, ...]:
    way = [end]
    while (before := came_from[way[-1]]) is not None:
        way.append(before)
    return tuple(reversed(way))
