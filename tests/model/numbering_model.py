"""Numbering the rows that a table had before, as a small state machine: two passes over one file of one row, each free
to stop for ever and to wake up, a pass that is taken over, a sink that delivers what is sealed, and a ledger that is
copied, restored once, and opened step by step.

A pass has no commit point in the ledger: its commit to the table is the only one, so the table alone must refuse it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.model.explore import Explored, explore


@dataclass(frozen=True, slots=True)
class Ledger:
    counter: int = 0
    epoch: int = 0
    blocks: tuple[tuple[int, str, int], ...] = ()
    """(number, state, index of the pass that made it), sorted; states: reserved, published, abandoned."""

    def get(self, number: int) -> tuple[str, int] | None:
        return next(((state, by) for n, state, by in self.blocks if n == number), None)

    def put(self, number: int, state: str, by: int) -> Ledger:
        kept = tuple(b for b in self.blocks if b[0] != number)
        return replace(self, blocks=tuple(sorted((*kept, (number, state, by)))))

    def is_left(self) -> int | None:
        return next((n for n, state, _ in self.blocks if state == "reserved"), None)


@dataclass(frozen=True, slots=True)
class Pass:
    at: str = "idle"
    number: int = 0
    epoch: int = 0
    old: int = 0
    """The block of the pass that this one took over."""


@dataclass(frozen=True, slots=True)
class State:
    ledger: Ledger = Ledger()
    witness: int = 0
    row: int = 0
    """Its number in the table; 0 while it has none."""
    branches: frozenset[int] = frozenset()
    epoch: int = 0
    """As the table says."""
    passes: tuple[Pass, ...] = (Pass(), Pass())
    under_way: tuple[int, int] | None = None
    """Number and epoch of a commit that was sent, and whose answer did not come: it may land yet."""
    opening: str = ""
    copy: Ledger | None = None
    restored: bool = False
    mark: int = 0
    late: bool = False
    """The row got a number at or below the mark: the sink will never see it."""

    def with_pass(self, index: int, changed: Pass, **changes: object) -> State:
        passes = (*self.passes[:index], changed, *self.passes[index + 1 :])
        return replace(self, passes=passes, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Rules:
    commit_looks_at_the_epoch: bool = True
    commit_needs_the_branch: bool = True
    epoch_is_of_the_ledger_that_knows_the_block: bool = True
    old_block_ends_when_it_can_land_no_more: bool = True
    numbers_max: int = 5


def steps(state: State, rules: Rules) -> Iterator[State]:
    for index, one in enumerate(state.passes):
        yield from _pass_steps(state, index, one, rules)
    if state.under_way is not None and (landed := _landed(state, *state.under_way, rules)) is not None:
        yield replace(landed, under_way=None)
    yield from _open(state, rules)
    if not state.opening and state.witness == state.ledger.counter and (sealed := _sealed(state.ledger)) > state.mark:
        yield replace(state, mark=sealed)
    if state.copy is None:
        yield replace(state, copy=state.ledger)
    elif not state.restored and not state.opening:
        yield replace(state, ledger=state.copy, restored=True)


def _sealed(ledger: Ledger) -> int:
    """As far as the seal can be, if batches were published in between."""
    return min((n - 1 for n, state, _ in ledger.blocks if state == "reserved"), default=ledger.counter)


def _pass_steps(state: State, index: int, one: Pass, rules: Rules) -> Iterator[State]:
    match one.at:
        case "idle":
            yield from _begin(state, index, rules)
        case "taking over":
            yield _look_at_the_old(state, index, one)
        case "ready":
            yield from _reserve(state, index, one, rules)
        case "reserved":
            yield _read_the_epoch(state, index, one, rules)
        case "fenced":
            yield state.with_pass(index, replace(one, at="written"), branches=state.branches | {one.number})
        case "written":
            yield from _commit(state, index, one, rules)
        case "landed":
            yield state.with_pass(index, _after(one), ledger=_published(state.ledger, one.number, index))
        case "refused":
            branches = state.branches - {one.number}
            yield state.with_pass(index, replace(one, at="giving up"), branches=branches)
        case "giving up" if state.row == one.number:
            yield state.with_pass(index, _after(one), ledger=_published(state.ledger, one.number, index))
        case "giving up":
            yield from _abandon(state, index, one.number, _after(one), rules)
        case "ending the old":
            yield from _end_the_old(state, index, one.old, rules)


def _after(one: Pass) -> Pass:
    return replace(one, at="ending the old" if one.old else "done")


def _published(ledger: Ledger, number: int, index: int) -> Ledger:
    return ledger.put(number, "published", index) if ledger.get(number) == ("reserved", index) else ledger


def _begin(state: State, index: int, rules: Rules) -> Iterator[State]:
    left = state.ledger.is_left()
    if left is not None:  # its lease may have run out: the branch goes, and then the table is looked at
        taken = state.ledger.put(left, "reserved", index)
        yield state.with_pass(index, Pass("taking over", old=left), ledger=taken, branches=state.branches - {left})
    elif not state.row:
        yield state.with_pass(index, Pass("ready"))


def _look_at_the_old(state: State, index: int, one: Pass) -> State:
    if state.row == one.old:
        return state.with_pass(index, Pass("done"), ledger=state.ledger.put(one.old, "published", index))
    return state.with_pass(index, replace(one, at="ready"))


def _reserve(state: State, index: int, one: Pass, rules: Rules) -> Iterator[State]:
    if state.opening or state.witness != state.ledger.counter or state.witness >= rules.numbers_max:
        return
    number = state.witness + 1
    yield replace(state, witness=number)  # killed between witness and commit
    taken = replace(state.ledger, counter=number).put(number, "reserved", index)
    yield state.with_pass(index, replace(one, at="reserved", number=number), ledger=taken, witness=number)


def _read_the_epoch(state: State, index: int, one: Pass, rules: Rules) -> State:
    if rules.epoch_is_of_the_ledger_that_knows_the_block and state.ledger.get(one.number) is None:
        return state.with_pass(index, replace(one, at="refused"))
    return state.with_pass(index, replace(one, at="fenced", epoch=state.ledger.epoch))


def _commit(state: State, index: int, one: Pass, rules: Rules) -> Iterator[State]:
    landed = _landed(state, one.number, one.epoch, rules)
    if landed is None:
        yield state.with_pass(index, replace(one, at="refused"))
        return
    yield landed.with_pass(index, replace(one, at="landed"))
    if state.under_way is None:
        yield state.with_pass(index, replace(one, at="refused"), under_way=(one.number, one.epoch))


def _landed(state: State, number: int, epoch: int, rules: Rules) -> State | None:
    """One commit, on the very metadata that was looked at: the file's rows are numbered, and the branch goes."""
    refused = state.row != 0
    refused |= rules.commit_needs_the_branch and number not in state.branches
    refused |= rules.commit_looks_at_the_epoch and state.epoch > epoch
    if refused:
        return None
    return replace(state, row=number, branches=state.branches - {number}, late=number <= state.mark)


def _end_the_old(state: State, index: int, number: int, rules: Rules) -> Iterator[State]:
    """Its pass may have slept before it made its branch, and lands as long as its file is there."""
    if rules.old_block_ends_when_it_can_land_no_more and state.row == number:
        yield state.with_pass(index, Pass("done"), ledger=_published(state.ledger, number, index))
    elif rules.old_block_ends_when_it_can_land_no_more and not state.row:
        yield state.with_pass(index, Pass("done"))
    else:
        yield from _abandon(state, index, number, Pass("done"), rules)


def _abandon(state: State, index: int, number: int, then: Pass, rules: Rules) -> Iterator[State]:
    """It takes a number, so that a restore that undoes it is noticed."""
    if state.ledger.get(number) != ("reserved", index):
        yield state.with_pass(index, then)
    elif not state.opening and state.witness == state.ledger.counter and state.witness < rules.numbers_max:
        taken = state.witness + 1
        ledger = replace(state.ledger, counter=taken).put(number, "abandoned", index)
        yield state.with_pass(index, then, ledger=ledger, witness=taken)


def _open(state: State, rules: Rules) -> Iterator[State]:
    """Under the counter's lock, which keeps others from taking numbers, but nobody from committing to the table."""
    gap = range(state.ledger.counter + 1, state.witness + 1)
    match state.opening:
        case "" if gap and state.witness < rules.numbers_max:
            yield replace(state, opening="raised", epoch=max(state.epoch, state.ledger.epoch) + 1)
        case "raised":
            yield replace(state, opening="removed", branches=frozenset(b for b in state.branches if b not in gap))
        case "removed":
            ledger = replace(state.ledger, counter=state.witness + 1, epoch=state.epoch)
            yield replace(state, opening="", ledger=ledger, witness=state.witness + 1)


def explored(rules: Rules) -> Explored[State]:
    return explore(State(), lambda state: steps(state, rules), _broken)


def _broken(state: State) -> str:
    if state.late:
        return "a row came in below a mark"
    found = state.ledger.get(state.row)
    return "a row has the number of a block that was given up" if found is not None and found[0] == "abandoned" else ""
