"""What a site that takes over must have: rows that its leader's sinks lack, and no others than its followers have.

One follower carries out a purge of row 1, by two processes, one of which may stand still at any step. Its retention
deletes old rows. Then it is promoted, at any moment. A second follower, which has carried out the old purge or not,
follows it; and a sink, which was paused with row 2 still to come, goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explore import Explored, explore

PURGED, LATER = 1, 2
ROWS = frozenset({PURGED, LATER})


class Applier(NamedTuple):
    """A process that carries the purge out."""

    step: str = "waits"
    """`read`, `recorded`, `deleted`, `ended`."""
    fence: int = 0
    epoch: int = 0


class State(NamedTuple):
    leads: bool = False
    table: frozenset[int] = ROWS
    table_epoch: int = 0
    epoch: int = 0
    purge: str = "open"
    """`done`, `given up`."""
    fence: int = 0
    recorded: bool = False
    """The ledger says that the purge was begun."""
    appliers: tuple[Applier, ...] = (Applier(), Applier())
    item: bool = False
    """The new leader offers a purge of its own for what was begun."""
    other: frozenset[int] = ROWS
    other_purged: bool = False
    """The second follower has carried out the old purge."""
    other_follows: bool = False
    """It has carried out everything that the new leader offers."""
    told: int = PURGED
    """How far the follower believes that the sink is."""
    floor: int = 0
    retained: bool = False
    sink: frozenset[int] = frozenset({PURGED})
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    a_delete_is_of_its_epoch: bool = True
    a_promotion_raises_the_epoch: bool = True
    a_purge_is_recorded_by_who_has_it: bool = True
    a_purge_that_was_begun_gets_an_item: bool = True
    retention_keeps_what_the_leaders_sinks_lack: bool = True


def explored(rules: Rules) -> Explored[State]:
    return explore(State(), lambda s: steps(s, rules), lambda s: s.fault, 1_000_000)


def steps(state: State, rules: Rules) -> Iterator[State]:
    found = [s for s in _steps(state, rules) if s != state]
    yield from found
    if not found and (fault := _fault(state)):
        yield state._replace(fault=fault)


def _fault(state: State) -> str:
    """When nothing moves any more. A purge that was given up is named, and run again by a person: what the second
    follower lacks because it had carried it out counts for nothing."""
    if not state.leads:
        return ""
    if state.sink != ROWS:
        return "a sink that nobody gave up lacks a row"
    return "a follower keeps a row that its leader has not" if PURGED in state.other - state.table else ""


def _steps(state: State, rules: Rules) -> Iterator[State]:
    for n, one in enumerate(state.appliers):
        yield from _carry_out(state, n, one, rules)
    yield from _retain(state, rules)
    yield from _second(state)
    if not state.leads:
        yield _promoted(state, rules)
    elif LATER not in state.sink and LATER in state.table:
        yield state._replace(sink=ROWS)


def _with(state: State, n: int, one: Applier) -> State:
    return state._replace(appliers=(*state.appliers[:n], one, *state.appliers[n + 1 :]))


def _carry_out(state: State, n: int, one: Applier, rules: Rules) -> Iterator[State]:
    has_it = state.purge == "open" and one.fence == state.fence
    match one.step:
        case "waits" if state.purge == "open" and not state.leads:  # takes it, perhaps from one that stands still
            taken = Applier("read", state.fence + 1)
            yield _with(state, n, taken)._replace(fence=state.fence + 1)
        case "read" if has_it or not rules.a_purge_is_recorded_by_who_has_it:
            recorded = one._replace(step="recorded", epoch=state.epoch)
            yield _with(state, n, recorded)._replace(recorded=True)
        case "recorded" if one.epoch >= state.table_epoch or not rules.a_delete_is_of_its_epoch:
            deleted = _with(state, n, one._replace(step="deleted"))
            yield deleted._replace(table=state.table - {PURGED})
        case "deleted":
            yield _with(state, n, one._replace(step="ended"))._replace(purge="done" if has_it else state.purge)


def _retain(state: State, rules: Rules) -> Iterator[State]:
    """Row 2 is due. The floor rises in one transaction, the delete comes after."""
    if not state.floor:
        may = state.told >= LATER or not rules.retention_keeps_what_the_leaders_sinks_lack
        if not state.leads and may:
            yield state._replace(floor=LATER)
    elif not state.retained:
        yield state._replace(retained=True, table=state.table - {LATER})


def _second(state: State) -> Iterator[State]:
    """The second follower: at the old leader it may carry out the purge; then it follows the new one."""
    if not state.leads and not state.other_purged:
        yield state._replace(other=state.other - {PURGED}, other_purged=True)
    if state.leads and not state.other_follows:
        offered = state.purge == "done" or state.item
        gone = {PURGED} - state.table if offered else frozenset()
        yield state._replace(other=state.other - gone, other_follows=True)


def _promoted(state: State, rules: Rules) -> State:
    given_up = state.purge == "open"
    epoch = state.epoch + 1 if given_up and rules.a_promotion_raises_the_epoch else state.epoch
    item = given_up and state.recorded and rules.a_purge_that_was_begun_gets_an_item
    return state._replace(
        leads=True,
        purge="given up" if given_up else state.purge,
        epoch=epoch,
        table_epoch=epoch,
        item=item,
    )
