"""Plans over two lanes, with deliveries that are finished while the next plan is made: a lane that was busy when the
planner looked may be free when the plan is stored. Odd numbers are the first lane's rows, even ones the second's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explore import Explored, explore

LANES = (0, 1)
ROWS = 6


class Seen(NamedTuple):
    """What the planner has read, and then looked for in the table."""

    until: int
    planned: int
    marks: tuple[int, int]
    free: tuple[bool, bool]


class State(NamedTuple):
    sealed: int = 0
    planned: int = 0
    marks: tuple[int, int] = (0, 0)
    open: tuple[int, int] = (0, 0)
    """How far each lane's open intent goes; 0: it has none."""
    delivered: frozenset[int] = frozenset()
    seen: Seen | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    moves_only_lanes_that_the_planner_saw_free: bool = True
    scans_each_lane_from_its_own_mark: bool = True


def explored(rules: Rules) -> Explored[State]:
    return explore(State(), lambda state: _steps(state, rules), _broken)


def _rows(lane: int, after: int, until: int) -> set[int]:
    return {n for n in range(after + 1, until + 1) if n % 2 != lane}


def _with(pair: tuple[int, int], lane: int, value: int) -> tuple[int, int]:
    return (value, pair[1]) if lane == 0 else (pair[0], value)


def _broken(state: State) -> str:
    if any(not _rows(lane, 0, state.marks[lane]) <= state.delivered for lane in LANES):
        return "a mark has passed a row that was never sent"
    return ""


def _steps(state: State, rules: Rules) -> Iterator[State]:
    if state.sealed < ROWS:
        yield state._replace(sealed=state.sealed + 1)
    if state.seen is None and state.sealed:
        free = (not state.open[0], not state.open[1])
        yield state._replace(seen=Seen(state.sealed, state.planned, state.marks, free))
    if state.seen is not None:
        yield _store(state, state.seen, rules)
    for lane in LANES:
        if until := state.open[lane]:
            sent = state.delivered | _rows(lane, state.marks[lane], until)
            yield state._replace(delivered=sent, marks=_with(state.marks, lane, until), open=_with(state.open, lane, 0))


def _store(state: State, seen: Seen, rules: Rules) -> State:
    marks, open_ = state.marks, state.open
    for lane in LANES:
        after = seen.marks[lane] if rules.scans_each_lane_from_its_own_mark else seen.planned
        if seen.free[lane] and _rows(lane, after, seen.until):
            open_ = _with(open_, lane, seen.until)
    for lane in LANES:
        spared = rules.moves_only_lanes_that_the_planner_saw_free and not seen.free[lane]
        if not open_[lane] and not spared:
            marks = _with(marks, lane, max(marks[lane], seen.until))
    return state._replace(planned=max(state.planned, seen.until), marks=marks, open=open_, seen=None)
