"""What a follower deletes when it carries out a purge: the rows that were purged, and no row that its leader lost for
another reason.

The leader and its follower have rows 1 to 3, and a person asks for rows 1 and 3 to be forgotten. Row 2 may come to
match while the purge works. The run of the purge may die at any step, and the next one finishes it. Retention deletes
rows at the leader: the lowest ones, or by a column any of them. The follower's ledger, or the leader's, is restored
from before the purge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explore import Explored, explore

ROWS = frozenset({1, 2, 3})
ASKED = frozenset({1, 3})


class State(NamedTuple):
    leader: frozenset[int] = ROWS
    matching: frozenset[int] = ASKED
    step: str = "none"
    """Of the purge: `recorded`, `deleted`, `item` (followers learn of it)."""
    dead: bool = False
    """The run that recorded it."""
    named: frozenset[int] = frozenset()
    """The rows that the purge says it deletes, in the ledger."""
    on_table: frozenset[int] = frozenset()
    """What the table says."""
    asked: frozenset[int] = frozenset()
    """What the purge found: a person wants it to be gone, whoever deletes it."""
    forgotten: frozenset[int] = frozenset()
    """What the purge did delete."""
    floor: int = 0
    follower: frozenset[int] = ROWS
    carried_out: bool = False
    applier: frozenset[int] | None = None
    """What a process of the follower found that it has to delete."""
    told: bool = False
    """The leader knows that the follower has carried the purge out."""
    dropped: bool = False
    follower_restored: bool = False
    leader_restored: bool = False
    fault: str = ""


@dataclass(frozen=True, slots=True)
class World:
    many: bool = False
    """The purged rows are more than can be named: the purge names all rows from the first to the last."""
    by_column: bool = False
    """Retention may delete any row, and not only the lowest ones."""
    drops: bool = False
    """A rule drops rows for a follower that lags, so an unfinished purge does not hold retention for ever."""
    restores: bool = False

    @property
    def may_delete_more(self) -> bool:
        """Nobody can tell any more which of the rows were purged. Then forgetting comes first."""
        return self.many and (self.by_column or self.drops or self.restores)


@dataclass(frozen=True, slots=True)
class Rules:
    a_purge_names_its_rows: bool = True
    the_table_names_them_too: bool = True
    a_purge_deletes_only_what_it_named: bool = True
    a_follower_keeps_what_the_leader_has: bool = True
    an_open_purge_holds_retention: bool = True
    a_purge_that_was_begun_holds_retention: bool = True
    rows_below_the_floor_are_judged_too: bool = True


def explored(world: World, rules: Rules) -> Explored[State]:
    return explore(State(), lambda s: steps(s, world, rules), lambda s: s.fault, 1_000_000)


def steps(state: State, world: World, rules: Rules) -> Iterator[State]:
    progress = list(_progress(state, world, rules))
    for after in (*progress, *_troubles(state, world, rules)):
        yield after._replace(fault=_fault(after, world))
    if not progress and state.follower & state.forgotten:
        yield state._replace(fault="a purged row stays")


def _fault(state: State, world: World) -> str:
    if state.leader - state.follower:
        return "the follower lacks a row that its leader has"
    lost = ROWS - state.asked - state.forgotten - state.follower
    return "a row that nobody purged is gone" if lost and not world.may_delete_more else ""


def _progress(state: State, world: World, rules: Rules) -> Iterator[State]:
    """What happens in the end, if nothing else does."""
    yield from _purge(state, world, rules)
    yield from _carry_out(state, rules)


def _between(rows: frozenset[int]) -> frozenset[int]:
    return frozenset(range(min(rows), max(rows) + 1)) if rows else rows


def _purge(state: State, world: World, rules: Rules) -> Iterator[State]:
    match state.step:
        case "none" if found := state.matching & state.leader:
            named = found if rules.a_purge_names_its_rows and not world.many else _between(found)
            told = named if rules.the_table_names_them_too else _between(named)
            yield state._replace(step="recorded", named=named, on_table=told, asked=found)
        case "recorded" if not state.dead:
            within = state.named if rules.a_purge_deletes_only_what_it_named else _between(state.named)
            gone = state.matching & state.leader & within
            yield state._replace(step="deleted", leader=state.leader - gone, forgotten=gone)
        case "deleted" | "recorded":  # the next run finishes what a dead one left
            yield state._replace(step="item", dead=False)


def _carry_out(state: State, rules: Rules) -> Iterator[State]:
    if state.applier is not None:
        kept = state.follower - state.applier
        yield state._replace(follower=kept, carried_out=True, told=True, applier=None)
    elif state.step == "item" and not state.carried_out:
        gone = state.follower & state.named
        if rules.a_follower_keeps_what_the_leader_has:
            gone -= state.leader
        if not rules.rows_below_the_floor_are_judged_too:
            gone = frozenset(r for r in gone if r > state.floor)
        yield state._replace(applier=gone)


def _troubles(state: State, world: World, rules: Rules) -> Iterator[State]:
    if state.step in ("none", "recorded"):
        yield state._replace(matching=ROWS)  # somebody changes row 2
    if state.step in ("recorded", "deleted"):
        yield state._replace(dead=True)
    yield from _retain(state, world, rules)
    if world.drops:
        yield state._replace(dropped=True)
    if world.restores and not state.follower_restored and state.carried_out:
        yield state._replace(carried_out=False, follower_restored=True)
    if world.restores and not state.leader_restored and state.step != "none":
        yield _resynced(state)


def _retain(state: State, world: World, rules: Rules) -> Iterator[State]:
    """Everything is due, and the follower has it all; the floor is the highest row that was deleted."""
    end = max(ROWS)
    is_open = state.step == "item" and not state.told
    begun = state.step in ("recorded", "deleted")
    holds = is_open and rules.an_open_purge_holds_retention and not state.dropped
    if holds or (begun and rules.a_purge_that_was_begun_holds_retention):
        end = min(state.named) - 1
    for row in state.leader:
        if row <= end:
            gone = {row} if world.by_column else {r for r in ROWS if r <= row}
            yield state._replace(leader=state.leader - gone, floor=max(row, state.floor))


def _resynced(state: State) -> State:
    """The restored ledger finds the purge on the table, and offers it under another number. The run that was under way
    finds another epoch, and deletes nothing."""
    offered = state._replace(step="item", dead=False, named=state.on_table, told=False, carried_out=False)
    return offered._replace(applier=None, leader_restored=True)
