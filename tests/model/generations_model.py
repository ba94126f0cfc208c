"""One lane over several generations, explored in full: a destination that is restored from backups, a deliverer that
checks what it acknowledged last before it goes on, and a person who has what was lost sent again.

A generation that sends rows again begins where the destination was. What lies below was delivered by the generation
before, and is nobody's to deliver any more: whoever goes on must know that it is still there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explore import Explored, explore

Held = frozenset[tuple[int, int]]
"""Generation and row."""


class Rules(NamedTuple):
    asks_the_generation_before: bool = True
    """Until a generation has landed something itself, what it builds on is asked for."""
    asks_all_before_it: bool = True
    """The generation before may build on another one in its turn."""


class World(NamedTuple):
    rows: int = 3
    generations: int = 3
    backups: int = 2
    restores: int = 3


class Generation(NamedTuple):
    began: int
    """Behind this row; what lies below is held by generations before it."""
    mark: int


class State(NamedTuple):
    generations: tuple[Generation, ...] = (Generation(0, 0),)
    held: Held = frozenset()
    backups: tuple[Held, ...] = ()
    restored: int = 0
    stopped: bool = False
    checked: bool = False
    """The deliverer has looked, and sends next."""
    fault: str = ""


def explored(world: World, rules: Rules) -> Explored[State]:
    return explore(State(), lambda s: steps(s, world, rules), lambda s: s.fault)


def steps(state: State, world: World, rules: Rules) -> Iterator[State]:
    number, current = len(state.generations), state.generations[-1]
    if state.stopped:
        if number < world.generations:
            yield resend(state)
    elif state.checked:
        yield deliver(state)
    elif current.mark < world.rows:
        gone = not expected(state, rules) <= state.held
        yield state._replace(stopped=gone, checked=not gone)
    if state.checked:
        return  # a destination that is restored between look and answer is another gap: see ADR 12
    if len(state.backups) < world.backups and state.held not in state.backups:
        yield state._replace(backups=(*state.backups, state.held))
    if state.restored < world.restores:
        for backup in state.backups:
            yield state._replace(held=backup, restored=state.restored + 1)


def expected(state: State, rules: Rules) -> Held:
    """What the destination must have, as far as it is asked: the last that each generation landed."""
    bound, newest = state.generations[-1].mark, len(state.generations)
    oldest = newest if not rules.asks_the_generation_before else 1 if rules.asks_all_before_it else newest - 1
    for number in range(newest, max(oldest, 1) - 1, -1):
        one = state.generations[number - 1]
        if bound > one.began:
            return frozenset({(number, bound)})
        bound = one.began
    return frozenset()


def deliver(state: State) -> State:
    number, current = len(state.generations), state.generations[-1]
    row = current.mark + 1
    held = state.held | {(number, row)}
    rows = {r for _, r in held}
    fault = "" if rows >= set(range(1, row + 1)) else f"row {row} was delivered over rows that are gone"
    generations = (*state.generations[:-1], current._replace(mark=row))
    return state._replace(generations=generations, held=held, checked=False, fault=fault)


def resend(state: State) -> State:
    """In a new generation, from where the destination covers all rows without a gap."""
    reached = 0
    while any(row == reached + 1 and number <= len(state.generations) for number, row in state.held):
        reached += 1
    reached = min(reached, state.generations[-1].mark)
    return state._replace(generations=(*state.generations, Generation(reached, reached)), stopped=False)
