"""The epochs of a table and of its ledger, explored in full: a site carries out a cut, applies an item that the cut
keeps, and is promoted, by two processes at a time, each of which may stand still at any step or die.

Raising the epoch of the table and recording it in the ledger are two steps. Whoever publishes has the epoch of the
ledger, so a table that stays above its ledger is one to which nobody can publish.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explore import Explored, explore


class Process(NamedTuple):
    """It carries out the cut, or the promotion. One that dies begins anew."""

    step: str = "away"
    """`took`, `viewed`, `asked`, `raised`, `removed`."""
    promotion: int = 0
    """Which one it carries out; 0: the cut of a site that follows."""
    view: int = 0
    epoch: int = 0


class State(NamedTuple):
    leads: bool = False
    promotion: int = 0
    """The one that has claimed a term; 0: none."""
    begun: int = 0
    ended: int = 0
    others: int = 0
    ledger: int = 0
    table: int = 0
    cut: str = "open"
    """`done`."""
    holder: int = -1
    """Which process has the cut's fence."""
    kept: str = "open"
    """An item below the cut, which it keeps: `taken`, `staged`, `done`, `given up`."""
    kept_epoch: int = 0
    """That of its fence."""
    late: int = -1
    """The epoch with which somebody is about to publish a row that is cut out; -1: nobody is."""
    out: bool = False
    """That row is in the table."""
    processes: tuple[Process, ...] = (Process(), Process())


@dataclass(frozen=True, slots=True)
class Rules:
    a_table_is_raised_only_by_who_has_the_cut_or_the_promotion: bool = True
    a_raise_repeats_what_the_table_has: bool = True
    a_follower_records_the_epoch_that_it_finds: bool = True
    a_leader_begins_with_an_epoch_of_its_own: bool = True
    a_cut_begins_again_when_the_ledger_has_its_epoch: bool = True


@dataclass(frozen=True, slots=True)
class World:
    promotions: int = 2
    ended: int = 1
    """How many promotions end before they lead."""
    others: int = 1
    """How often the cut of another dataset raises the ledger's epoch."""


def explored(world: World, rules: Rules, states_max: int = 3_000_000) -> Explored[State]:
    return explore(State(), lambda s: steps(s, world, rules), lambda s: _fault(s, world, rules), states_max)


def _fault(state: State, world: World, rules: Rules) -> str:
    if state.cut == "done" and state.out:
        return "a row that was cut out is in the table"
    if any(True for _ in _progress(state, rules)):
        return ""
    if state.leads:
        return "nobody can publish at the leader" if state.table > state.ledger else ""
    if state.promotion:
        return "a promotion stands still"
    return "an item is never applied" if "done" not in (state.cut, state.kept) or state.cut != state.kept else ""


def steps(state: State, world: World, rules: Rules) -> Iterator[State]:
    yield from _progress(state, rules)
    for n, one in enumerate(state.processes):
        if one.step != "away":
            yield _with(state, n, Process())
    if state.leads:
        return
    if not state.promotion and state.begun < world.promotions:
        yield state._replace(promotion=state.begun + 1, begun=state.begun + 1)
    if state.promotion and state.ended < world.ended:
        yield state._replace(promotion=0, ended=state.ended + 1)
    if state.others < world.others:
        yield state._replace(ledger=state.ledger + 1, others=state.others + 1)


def _progress(state: State, rules: Rules) -> Iterator[State]:
    for n, one in enumerate(state.processes):
        yield from _run(state, n, one, rules)
    yield from _apply(state, rules)
    if state.late < 0 and state.cut == "open" and not state.out:  # an old leader's own block: it asks the ledger
        yield state._replace(late=state.ledger)
    if state.late >= 0:
        yield state._replace(late=-1, out=state.out or state.table <= state.late)


def _with(state: State, n: int, one: Process) -> State:
    return state._replace(processes=(*state.processes[:n], one, *state.processes[n + 1 :]))


# --- the item that the cut keeps ---


def _apply(state: State, rules: Rules) -> Iterator[State]:
    """`taken` stands for one process. Another one may take the item again, with a fence of the ledger's epoch."""
    if state.leads:
        return
    if state.promotion and state.kept in ("open", "taken"):
        return  # it would be refused at the commit point
    if state.kept in ("open", "taken") and (state.kept, state.kept_epoch) != ("taken", state.ledger):
        yield state._replace(kept="taken", kept_epoch=state.ledger)
    if state.kept == "taken":
        raised = max(state.table, state.kept_epoch)
        yield _seen(state) if _must_record(state, rules) else state._replace(kept="staged", table=raised)
    if state.kept == "staged":
        if state.table <= state.kept_epoch:
            yield state._replace(kept="done")
        elif rules.a_follower_records_the_epoch_that_it_finds:
            yield _seen(state)


def _must_record(state: State, rules: Rules) -> bool:
    return state.table > state.kept_epoch and rules.a_follower_records_the_epoch_that_it_finds


def _seen(state: State) -> State:
    """The ledger goes above the table's epoch; the item is applied again."""
    epoch = state.table + 1 if state.table > state.ledger else state.ledger
    return state._replace(ledger=epoch, kept="open")


# --- the cut, and the promotion ---


def _run(state: State, n: int, one: Process, rules: Rules) -> Iterator[State]:
    away = _with(state, n, Process())
    match one.step:
        case "away" if not state.leads and state.promotion:
            yield _with(state, n, Process("took", state.promotion))
        case "away" if not state.leads and state.cut == "open" and state.kept == "done":
            yield _with(state, n, Process("took"))._replace(holder=n)
        case "took" if one.promotion and state.cut == "done":
            yield _with(state, n, one._replace(step="removed"))
        case "took" if not (one.promotion and state.kept == "staged"):  # that is published first
            yield _with(state, n, one._replace(step="viewed", view=state.table))
        case "viewed":
            is_own = _is_own(state, n, one)
            asks = is_own or not rules.a_table_is_raised_only_by_who_has_the_cut_or_the_promotion
            epoch = max(state.ledger, one.view) + 1
            if rules.a_raise_repeats_what_the_table_has:
                epoch = max(state.ledger + 1, one.view)
            yield _with(state, n, one._replace(step="asked", view=0, epoch=epoch)) if asks else away
        case "asked":
            raised = _with(state, n, one._replace(step="raised"))
            yield away if state.table > one.epoch else raised._replace(table=one.epoch)
        case "raised":
            yield _with(state, n, one._replace(step="removed"))._replace(out=False)
        case "removed":
            after = _settled(state, one, rules) if _is_own(state, n, one) else None
            yield away if after is None else _with(after, n, Process())


def _is_own(state: State, n: int, one: Process) -> bool:
    if state.leads:
        return False
    return one.promotion == state.promotion if one.promotion else state.cut == "open" and state.holder == n


def _settled(state: State, one: Process, rules: Rules) -> State | None:
    """None: it has to begin again."""
    is_prepared = one.epoch > 0
    if is_prepared != (state.cut == "open"):
        return None
    if is_prepared and state.ledger >= one.epoch and rules.a_cut_begins_again_when_the_ledger_has_its_epoch:
        return None
    epoch = max(state.ledger, one.epoch)
    if not one.promotion:
        return state._replace(cut="done", ledger=epoch)
    if state.kept == "staged":
        return None
    if rules.a_leader_begins_with_an_epoch_of_its_own:
        epoch = max(epoch, state.ledger + 1)
    kept = state.kept if state.kept == "done" else "given up"
    return state._replace(leads=True, promotion=0, cut="done", ledger=epoch, kept=kept)
