"""Retention beside delivery: two sinks of one dataset, one of them added on the way, a retention whose process may stop
anywhere and go on much later, a ledger that is replaced by an older copy of itself, and a destination that loses what
it had. Rows are numbers; a row that a sink is owed must be in the table, at the sink, or counted as lost to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explore import Explored, explore, quickly_replaced

ROWS = 2
SINKS = (0, 1)
RUNS_MAX = 2
"""At once: one of them was given up for dead."""


@quickly_replaced
class Sink(NamedTuple):
    """What the ledger says of it."""

    start: int
    """Where its lane began."""
    mark: int
    open: int
    """How far its open intent goes; 0: it has none."""
    lost: frozenset[int]
    forgotten: frozenset[int] = frozenset()
    """Counted as a loss of unknown size: they may be gone, and are sent where they are not."""
    others: int = 0
    """Where partitions begin that it has not met: in a generation that sends rows again, at what was planned."""


@quickly_replaced
class Ledger(NamedTuple):
    counter: int = 0
    """Moved by whatever a restore must not undo unnoticed."""
    sealed: int = 0
    floor: int = 0
    epoch: int = 0
    sinks: tuple[Sink | None, Sink | None] = (Sink(0, 0, 0, frozenset()), None)


@quickly_replaced
class Retention(NamedTuple):
    """A run under way, which another process may still hold when its ledger is gone."""

    up_to: int
    epoch: int
    step: str
    """`raised`, then `told` (the table knows the floor) and, where it looked again, `checked`."""


@quickly_replaced
class State(NamedTuple):
    ledger: Ledger = Ledger()
    copy: Ledger | None = None
    witness: int = 0
    table: frozenset[int] = frozenset()
    property: int = 0
    epoch: int = 0
    held: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    """What each sink has, by its own record: no restore of the ledger changes it."""
    runs: tuple[Retention, ...] = ()
    restored: bool = False
    resent: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    a_new_sink_starts_above_the_floor: bool = True
    an_open_intent_holds_its_rows: bool = True
    the_floor_is_raised_before_rows_go: bool = True
    every_sink_holds: bool = True
    a_drop_is_counted_before_rows_go: bool = True
    raising_takes_a_number: bool = True
    the_table_knows_the_floor_before_rows_go: bool = True
    an_opening_takes_the_floor_from_the_table: bool = True
    looks_at_the_epoch_after_it_told_the_table: bool = True
    the_property_never_goes_back: bool = True
    an_opening_counts_what_the_copy_forgot: bool = True
    a_resend_counts_what_may_be_gone: bool = True
    a_resend_sends_what_is_left_below_the_floor: bool = True
    a_recovery_goes_by_where_the_lane_began: bool = True


def explored(rules: Rules) -> Explored[State]:
    return explore(State(), lambda state: _steps(state, rules), _broken)


def _broken(state: State) -> str:
    if state.ledger.counter != state.witness:
        return ""  # nobody acts on it before it is opened
    for n in SINKS:
        sink = state.ledger.sinks[n]
        if sink is None:
            continue
        owed = set(range(sink.start + 1, state.ledger.sealed + 1))
        if owed - state.held[n] - state.table - sink.lost - sink.forgotten:
            return "a row that a sink is owed is gone, and nobody counted it"
        never_sent = set(range(sink.start + 1, sink.mark + 1)) - state.held[n] - sink.lost
        if never_sent - sink.forgotten:
            return "a mark has passed a row that was never sent"
        if never_sent & state.table:
            return "a mark has passed a row that could still be sent, and that no rule dropped"
    return ""


def _steps(state: State, rules: Rules) -> Iterator[State]:
    ledger = state.ledger
    if ledger.counter != state.witness:  # nothing else is done before the ledger is opened
        yield _open(state, rules)
        return
    if ledger.sealed < ROWS:
        new = ledger._replace(counter=ledger.counter + 1, sealed=ledger.sealed + 1)
        yield state._replace(ledger=new, witness=new.counter, table=state.table | {new.sealed})
    yield from _deliver(state)
    yield from _change_sinks(state, rules)
    yield from _retain(state, rules)
    if state.copy is None and not state.restored:
        yield state._replace(copy=ledger)
    if state.copy is not None:
        yield state._replace(ledger=state.copy, copy=None, restored=True)


def _open(state: State, rules: Rules) -> State:
    """The epoch in the table first, its floor after. What was published since the copy is found in the table's own
    history; the rows of it that are gone were delivered, or the floor tells of them."""
    epoch = state.epoch + 1
    floor = state.ledger.floor
    if rules.an_opening_takes_the_floor_from_the_table:
        floor = max(floor, state.property)
    sealed = max([state.ledger.sealed, floor, *state.table])
    ledger = state.ledger._replace(counter=state.witness + 1, sealed=sealed, floor=floor, epoch=epoch)
    if rules.an_opening_counts_what_the_copy_forgot:
        for n, sink in enumerate(ledger.sinks):
            if sink is not None and sink.mark < floor:
                forgotten = sink.forgotten | frozenset(range(sink.mark + 1, floor + 1))
                ledger = ledger._replace(sinks=_with(ledger.sinks, n, sink._replace(forgotten=forgotten)))
    return state._replace(ledger=ledger, witness=ledger.counter, epoch=epoch)


def _with(pair: tuple[Sink | None, Sink | None], n: int, sink: Sink | None) -> tuple[Sink | None, Sink | None]:
    return (sink, pair[1]) if n == 0 else (pair[0], sink)


def _deliver(state: State) -> Iterator[State]:
    ledger = state.ledger
    for n in SINKS:
        sink = ledger.sinks[n]
        if sink is None:
            continue
        if not sink.open and sink.mark < ledger.sealed:
            planned = _with(ledger.sinks, n, sink._replace(open=ledger.sealed))
            yield state._replace(ledger=ledger._replace(sinks=planned))
        if sink.open:
            rows = {r for r in range(sink.mark + 1, sink.open + 1) if r in state.table}
            held = state.held[n] | rows
            both = (held, state.held[1]) if n == 0 else (state.held[0], held)
            yield state._replace(held=both)  # and its process died before it could say so
            closed = _with(ledger.sinks, n, sink._replace(mark=sink.open, open=0))
            yield state._replace(ledger=ledger._replace(sinks=closed), held=both)


def _change_sinks(state: State, rules: Rules) -> Iterator[State]:
    ledger = state.ledger
    if ledger.sinks[1] is None and not state.held[1]:
        start = ledger.floor if rules.a_new_sink_starts_above_the_floor else 0
        added = _with(ledger.sinks, 1, Sink(start, start, 0, frozenset(), others=start))
        yield state._replace(ledger=ledger._replace(sinks=added))
    for n in SINKS:
        sink = ledger.sinks[n]
        if sink is not None and state.held[n] and not state.resent:
            yield _resent(state, n, sink, rules)
        if sink is not None and state.resent:
            recovered = _with(ledger.sinks, n, _recovered(sink, state.held[n], rules))
            yield state._replace(ledger=ledger._replace(sinks=recovered))


def _recovered(sink: Sink, held: frozenset[int], rules: Rules) -> Sink:
    """A person has the sink asked how far it is: what is promised is taken back, and the mark goes up to where all is
    there. Nothing that it acknowledged is missing, or it would be sent again."""
    reached = sink.start if rules.a_recovery_goes_by_where_the_lane_began else sink.others
    while reached + 1 in held:
        reached += 1
    return sink._replace(mark=max(sink.mark, reached), open=0)


def _resent(state: State, n: int, sink: Sink, rules: Rules) -> State:
    """A destination loses all that it had, and a person has it sent again: a new generation, from where the sink began.
    A copy of the ledger from before is of no use then, since the destination tells of a generation it does not know."""
    floor = state.ledger.floor
    may_be_gone = frozenset(range(sink.start + 1, floor + 1))
    forgotten = may_be_gone if rules.a_resend_counts_what_may_be_gone else frozenset()
    planned = max(sink.others, sink.mark, sink.open)
    mark = sink.start if rules.a_resend_sends_what_is_left_below_the_floor else max(sink.start, floor)
    sinks = _with(state.ledger.sinks, n, Sink(sink.start, mark, 0, frozenset(), forgotten, planned))
    held = (frozenset[int](), state.held[1]) if n == 0 else (state.held[0], frozenset[int]())
    return state._replace(ledger=state.ledger._replace(sinks=sinks), copy=None, held=held, resent=True)


def _reached(sink: Sink, rules: Rules) -> int:
    return sink.mark if rules.an_open_intent_holds_its_rows else max(sink.mark, sink.open)


def _retain(state: State, rules: Rules) -> Iterator[State]:
    ledger = state.ledger
    if len(state.runs) < RUNS_MAX:
        holding = [s for s in ledger.sinks if s is not None][: None if rules.every_sink_holds else 1]
        reached = min([ledger.sealed, *(_reached(s, rules) for s in holding)])
        yield from _begin(state, ledger, reached, rules)
        if ledger.sealed > reached:  # a person chose to drop what the sinks do not have
            counted = _dropped(ledger) if rules.a_drop_is_counted_before_rows_go else ledger
            yield from _begin(state, counted, ledger.sealed, rules)
    for n, run in enumerate(state.runs):
        others = state.runs[:n] + state.runs[n + 1 :]
        yield state._replace(runs=others)  # killed
        yield from _go_on(state, run, others, rules)


def _go_on(state: State, run: Retention, others: tuple[Retention, ...], rules: Rules) -> Iterator[State]:
    def then(step: str) -> tuple[Retention, ...]:
        return tuple(sorted((*others, run._replace(step=step))))

    if run.step == "raised":
        if rules.the_table_knows_the_floor_before_rows_go:
            known = max(state.property, run.up_to) if rules.the_property_never_goes_back else run.up_to
            yield state._replace(property=known, runs=then("told"))
        else:
            yield state._replace(runs=then("checked"))
    elif run.step == "told":
        stale = rules.looks_at_the_epoch_after_it_told_the_table and state.epoch != run.epoch
        yield state._replace(runs=others if stale else then("checked"))
    else:
        yield state._replace(table=frozenset(r for r in state.table if r > run.up_to), runs=others)


def _begin(state: State, ledger: Ledger, up_to: int, rules: Rules) -> Iterator[State]:
    if up_to <= ledger.floor:
        return
    number = ledger.counter + (1 if rules.raising_takes_a_number else 0)
    floor = up_to if rules.the_floor_is_raised_before_rows_go else ledger.floor
    new = ledger._replace(counter=number, floor=floor)
    run = Retention(up_to, ledger.epoch, "raised")
    runs = tuple(sorted((*state.runs, run)))
    yield state._replace(ledger=new, witness=max(state.witness, number), runs=runs)


def _dropped(ledger: Ledger) -> Ledger:
    """In the transaction that raises the floor: marks move, intents are closed, what is not there is counted."""
    sinks = ledger.sinks
    for n in SINKS:
        sink = sinks[n]
        if sink is not None and sink.mark < ledger.sealed:
            lost = sink.lost | frozenset(range(sink.mark + 1, ledger.sealed + 1))
            sinks = _with(sinks, n, sink._replace(mark=ledger.sealed, open=0, lost=lost))
    return ledger._replace(sinks=sinks)
