"""Numbers that others write into a table, as a small state machine: two writers with a batch of one row each, either
free to stop for ever, somebody who inserts rows with any number at any moment, recovery, and readers, which may use a
stored count of foreign rows.

Where a block is placed is decided by `iceberg/metadata/block_placement.py` itself, with a small reach.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from strandline.core.types import BlockPlacement, Checked
from strandline.iceberg.metadata.block_placement import NumberSpan, is_near, place
from tests.model.explore import Explored, explore

FOREIGN = -1
REACH = 4
FAR = 9
"""A number that is out of reach until the counter has come near."""


@dataclass(frozen=True, slots=True)
class Writer:
    at: str = "idle"
    number: int = 0
    seen: frozenset[int] = frozenset()
    """Numbers in main when it looked."""
    place: BlockPlacement | None = None
    beyond: int | None = None


@dataclass(frozen=True, slots=True)
class Count:
    """The ledger's memory: main held no number twice when it was counted."""

    inserts: int
    """Foreign commits in main then; one more ends the count."""
    counter: int
    foreign_from: int | None
    """The lowest foreign number above the counter."""


@dataclass(frozen=True, slots=True)
class State:
    counter: int = 0
    main: tuple[tuple[int, int], ...] = ()
    """(number, whose), sorted."""
    branches: frozenset[tuple[int, int]] = frozenset()
    blocks: tuple[tuple[int, str, int], ...] = ()
    """(number, state, writer), sorted; states: reserved, published, abandoned."""
    checked: frozenset[int] = frozenset()
    """The ledger's memory: numbers that main held when it was last looked at."""
    beyond: int | None = None
    writers: tuple[Writer, ...] = (Writer(), Writer())
    inserts: int = 0
    count: Count | None = None
    wrong: str = ""

    def put(self, number: int, state: str, by: int) -> tuple[tuple[int, str, int], ...]:
        return tuple(sorted((*(b for b in self.blocks if b[0] != number), (number, state, by))))

    def with_writer(self, index: int, changed: Writer, **changes: object) -> State:
        writers = (*self.writers[:index], changed, *self.writers[index + 1 :])
        return replace(self, writers=writers, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Rules:
    placed_above_what_the_table_holds: bool = True
    memory_moves_with_the_counter: bool = True
    far_numbers_are_not_stepped_over: bool = True
    far_numbers_are_remembered: bool = True
    a_stale_look_is_repeated: bool = True
    history_decides_not_rows: bool = True
    readers_refuse_a_number_that_stands_twice: bool = True
    a_count_ends_where_a_block_may_have_a_foreign_number: bool = True
    numbers: tuple[int, ...] = (1, 2, 3, FAR)
    inserts_max: int = 2


def steps(state: State, rules: Rules) -> Iterator[State]:
    for index, writer in enumerate(state.writers):
        yield from _writer_steps(state, index, writer, rules)
    for number, kind, by in state.blocks:
        if kind == "reserved":
            yield _recovered(state, number, by, rules)
    if state.inserts < rules.inserts_max:
        for number in rules.numbers:
            yield replace(state, main=tuple(sorted((*state.main, (number, FOREIGN)))), inserts=state.inserts + 1)
    if (counted := _count(state, rules)) is not None:
        yield replace(state, count=counted)
    if state.counter < FAR:  # other datasets take numbers, too
        yield replace(state, counter=state.counter + 4) if state.counter == 4 else state


def _writer_steps(state: State, index: int, one: Writer, rules: Rules) -> Iterator[State]:
    match one.at:
        case "idle":
            yield _look(state, index, rules)
        case "looked":
            yield _reserve(state, index, one, rules)
        case "reserved" if (one.number, "reserved", index) in state.blocks:
            yield state.with_writer(index, replace(one, at="staged"), branches=state.branches | {(one.number, index)})
        case "staged" if (one.number, index) in state.branches:
            yield _published(state, one.number, index).with_writer(index, replace(one, at="done"))


def _look(state: State, index: int, rules: Rules) -> State:
    """What came since the last look, or everything, if the counter comes near to what was left out then."""
    numbers = frozenset(n for n, _ in state.main)
    near = is_near(Checked(None, state.beyond), state.counter, 1, skip_max=REACH)
    new = numbers if near else numbers - state.checked
    reach = REACH if rules.far_numbers_are_not_stepped_over else 1 << 20
    spans = [NumberSpan(n, n) for n in new if n > state.counter] if rules.placed_above_what_the_table_holds else []
    found = place(state.counter, 1, None, spans, lambda limit: (None, None), skip_max=reach)
    beyond = found.checked.beyond if near or state.beyond is None else min(state.beyond, found.checked.beyond or FAR)
    if not rules.far_numbers_are_remembered:
        beyond = None
    looked = Writer("looked", 0, numbers, found, beyond)
    early = {} if rules.memory_moves_with_the_counter else {"checked": numbers, "beyond": beyond}
    return state.with_writer(index, looked, **early)


def _reserve(state: State, index: int, one: Writer, rules: Rules) -> State:
    """One transaction: the counter, the block, and what was looked at."""
    found = one.place
    if found is None or (rules.a_stale_look_is_repeated and not found.fits(state.counter, 1)):
        return state.with_writer(index, Writer())
    number = max(state.counter, found.above) + 1
    wrong = ""
    if number in one.seen:
        wrong = f"a block was placed on {number}, which the table held already"
    if number > max(rules.numbers[:-1]) + 12:
        wrong = "one row used the sequence up"
    return state.with_writer(
        index,
        replace(one, at="reserved", number=number, seen=frozenset(), place=None),
        counter=number,
        blocks=state.put(number, "reserved", index),
        checked=state.checked | one.seen,
        beyond=one.beyond,
        wrong=wrong,
    )


def _published(state: State, number: int, by: int) -> State:
    main = state.main if (number, by) in state.main else tuple(sorted((*state.main, (number, by))))
    return replace(
        state, main=main, branches=state.branches - {(number, by)}, blocks=state.put(number, "published", by)
    )


def _recovered(state: State, number: int, by: int, rules: Rules) -> State:
    """The writer's lease ran out. Whether its rows landed is told by the history of main."""
    if not rules.history_decides_not_rows and any(n == number for n, _ in state.main):
        return replace(state, branches=state.branches - {(number, by)}, blocks=state.put(number, "published", by))
    if (number, by) in state.branches or (number, by) in state.main:
        return _published(state, number, by)
    return replace(state, counter=state.counter + 1, blocks=state.put(number, "abandoned", by))


def _count(state: State, rules: Rules) -> Count | None:
    """None if there is nothing to store: a block is open, a number stands twice, or the stored count is still right."""
    held = [n for n, _ in state.main]
    if any(kind == "reserved" for _, kind, _ in state.blocks) or len(set(held)) < len(held):
        return None
    if _is_count_right(state, rules):
        return None
    foreign = [n for n, whose in state.main if whose == FOREIGN and n > state.counter]
    return Count(state.inserts, state.counter, min(foreign, default=None))


def _is_count_right(state: State, rules: Rules) -> bool:
    """As `still_right` in `read/foreign_rows.py`."""
    known = state.count
    if known is None or known.inserts != state.inserts:
        return False
    if not rules.a_count_ends_where_a_block_may_have_a_foreign_number or known.foreign_from is None:
        return True
    since = [n for n, whose in state.main if whose != FOREIGN and n > known.counter]
    return all(n < known.foreign_from for n in since)


def explored(rules: Rules) -> Explored[State]:
    return explore(State(), lambda state: steps(state, rules), lambda state: _broken(state, rules))


def _broken(state: State, rules: Rules) -> str:
    """A reader looks at every moment: rows whose number a published block has."""
    if state.wrong:
        return state.wrong
    owned = {n: by for n, kind, by in state.blocks if kind == "published"}
    for number, by in owned.items():
        held = [whose for n, whose in state.main if n == number]
        if rules.readers_refuse_a_number_that_stands_twice and len(held) > 1 and not _is_count_right(state, rules):
            continue
        if FOREIGN in held:
            return "a reader was given a foreign row"
        if by not in held:
            return "a batch counts as published, and its row never came"
    return ""
