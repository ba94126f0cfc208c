"""Batches of received bodies that are divided, set aside and replayed, as a small state machine: two bodies, two
intakes that may stop for ever or wake up late, recovery, a person, and a ledger that is copied and restored once.

A batch is named by its way: `X` holds both bodies, `X0` and `X1` are its halves, `X00` is `X0` replayed. Leases are
left out: whoever likes takes any batch, and ends any batch, as far as the ledger lets it. An intake that is dead is one
that never goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.model.explore import Explored, explore

BODIES = {"X": "ab", "X0": "a", "X1": "b", "X00": "a"}
ENDED = ("divided", "aside", "replayed", "discarded")


@dataclass(frozen=True, slots=True, order=True)
class Block:
    number: int
    state: str
    batch: str
    fence: int = 0


@dataclass(frozen=True, slots=True)
class Ledger:
    counter: int = 0
    epoch: int = 0
    blocks: tuple[Block, ...] = ()
    batches: tuple[tuple[str, str], ...] = (("X", "open"),)

    def block_of(self, batch: str) -> Block | None:
        return next((b for b in self.blocks if b.batch == batch and b.state != "abandoned"), None)

    def block_at(self, number: int) -> Block | None:
        return next((b for b in self.blocks if b.number == number), None)

    def put(self, block: Block) -> Ledger:
        kept = tuple(b for b in self.blocks if b.number != block.number)
        return replace(self, blocks=tuple(sorted((*kept, block))))

    def batch(self, name: str) -> str | None:
        return dict(self.batches).get(name)

    def with_batches(self, **changed: str) -> Ledger:
        return replace(self, batches=tuple(sorted((dict(self.batches) | changed).items())))


@dataclass(frozen=True, slots=True, order=True)
class Intake:
    at: str = "idle"
    batch: str = ""
    number: int = 0
    fence: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class State:
    ledger: Ledger = Ledger()
    witness: int = 0
    epoch: int = 0
    """As the table says."""
    main: tuple[tuple[int, str], ...] = ()
    branches: frozenset[tuple[int, str]] = frozenset()
    files_gone: frozenset[str] = frozenset()
    given_up: frozenset[str] = frozenset()
    intakes: tuple[Intake, ...] = (Intake(), Intake())
    copy: Ledger | None = None
    restored: bool = False
    reserved: int = 0
    """Blocks, so far."""

    def intake(self, index: int, changed: Intake, **changes: object) -> State:
        both = tuple(sorted((*self.intakes[:index], changed, *self.intakes[index + 1 :])))
        return replace(self, intakes=both, **changes)  # type: ignore[arg-type]

    def took(self, ledger: Ledger, count: int) -> dict[str, object]:
        """The counter and the witness move together."""
        moved = replace(ledger, counter=ledger.counter + count)
        return {"ledger": moved, "witness": max(self.witness, moved.counter)}


@dataclass(frozen=True, slots=True)
class Rules:
    ended_only_while_no_block_has_it: bool = True
    an_ended_batch_gets_no_block: bool = True
    a_batch_that_the_ledger_has_forgotten_gets_no_block: bool = True
    relatives_count_as_the_same_batch: bool = True
    divided_again_after_a_restore: bool = True
    blocks_max: int = 3
    restores: bool = False
    """A ledger is copied and restored once. That makes the model large: then nobody sets a body aside."""


def related(one: str, other: str) -> bool:
    """Whether they can share a body."""
    return one.startswith(other) or other.startswith(one)


def _same(rules: Rules, one: str, other: str) -> bool:
    return related(one, other) if rules.relatives_count_as_the_same_batch else one == other


def steps(state: State, rules: Rules) -> Iterator[State]:
    for index, intake in enumerate(state.intakes):
        yield from _intake(state, index, intake, rules)
    yield from _others(state, rules)
    yield from _endings(state, rules)
    if rules.restores and not state.restored:
        if state.copy is None:
            yield replace(state, copy=state.ledger)
        elif state.copy != state.ledger:
            yield _restored(state, state.copy, rules)


def _intake(state: State, index: int, one: Intake, rules: Rules) -> Iterator[State]:
    ledger = state.ledger
    match one.at:
        case "idle":
            for name, kind in ledger.batches:
                if kind == "open":
                    yield state.intake(index, Intake("taken", name))
        case "taken":
            yield from _reserve(state, index, one, rules)
        case "reserved":
            if not state.files_gone & set(BODIES[one.batch]):
                branch = (one.number, one.batch)
                yield state.intake(index, replace(one, at="staged"), branches=state.branches | {branch})
            held = ledger.block_at(one.number)
            if held == Block(one.number, "reserved", one.batch, one.fence):  # it failed, and gives up
                gone = state.took(ledger.put(replace(held, state="abandoned")), 1)
                yield state.intake(index, Intake(), **gone)
        case "staged":
            yield _commit(state, index, one)
        case "publishing":
            yield from _publish(state, index, one)


def _reserve(state: State, index: int, one: Intake, rules: Rules) -> Iterator[State]:
    ledger, kind = state.ledger, state.ledger.batch(one.batch)
    known = ledger.block_of(one.batch)
    if known is not None and known.state == "published":
        if kind == "open":
            gone = state.files_gone | set(BODIES[one.batch])
            settled = ledger.with_batches(**{one.batch: "published"})
            yield state.intake(index, Intake(), ledger=settled, files_gone=gone)
        return
    if known is not None:  # another has it under way: what becomes of that is awaited
        return
    ended = kind in ENDED and rules.an_ended_batch_gets_no_block
    if ended or (kind is None and rules.a_batch_that_the_ledger_has_forgotten_gets_no_block):
        yield state.intake(index, Intake())
        return
    if state.reserved >= rules.blocks_max:
        return
    new = Block(ledger.counter + 1, "reserved", one.batch)
    taken = replace(one, at="reserved", number=new.number, fence=0)
    yield state.intake(index, taken, reserved=state.reserved + 1, **state.took(ledger.put(new), 1))


def _commit(state: State, index: int, one: Intake) -> State:
    """The commit point: compare and set, on state and fence."""
    held = state.ledger.block_at(one.number)
    if held == Block(one.number, "reserved", one.batch, one.fence):
        marked = state.ledger.put(replace(held, state="staged"))
        return state.intake(index, replace(one, at="publishing", epoch=state.ledger.epoch), ledger=marked)
    return state.intake(index, Intake())


def _publish(state: State, index: int, one: Intake) -> Iterator[State]:
    """Two steps: main, and then the ledger. Either may be done by another."""
    branch, held = (one.number, one.batch), state.ledger.block_at(one.number)
    if branch in state.branches and one.epoch == state.epoch:
        yield replace(state, main=tuple(sorted((*state.main, branch))), branches=state.branches - {branch})
    if branch in state.main and held is not None and held.state == "staged" and held.batch == one.batch:
        done = state.ledger.put(replace(held, state="published"))
        yield state.intake(index, Intake("taken", one.batch), ledger=done)


def _others(state: State, rules: Rules) -> Iterator[State]:
    """Recovery, which settles what was left and removes branches that are nobody's."""
    ledger = state.ledger
    for block in ledger.blocks:
        branch = (block.number, block.batch)
        if block.state == "reserved":
            held = any(_same(rules, block.batch, name) for _, name in state.main)
            kind = "staged" if branch in state.branches and not held else "abandoned"
            kind = "published" if branch in state.main else kind
            changed = replace(block, state=kind, fence=block.fence + 1)
            yield replace(state, **state.took(ledger.put(changed), int(kind == "abandoned")))  # type: ignore[arg-type]
        if block.state == "staged":
            main = tuple(sorted({*state.main, branch}))
            done = ledger.put(replace(block, state="published"))
            if branch in state.branches or branch in state.main:
                yield replace(state, ledger=done, main=main, branches=state.branches - {branch})
    for branch in state.branches:
        owner = ledger.block_at(branch[0])
        if owner is None or owner.state == "abandoned":
            yield replace(state, branches=state.branches - {branch})


def _endings(state: State, rules: Rules) -> Iterator[State]:
    ledger = state.ledger
    for name, kind in ledger.batches:
        if kind == "open":
            if ledger.block_of(name) is not None and rules.ended_only_while_no_block_has_it:
                continue
            if name == "X":
                yield replace(state, ledger=ledger.with_batches(X="divided", X0="open", X1="open"))
            elif not rules.restores:
                yield replace(state, ledger=ledger.with_batches(**{name: "aside"}))
        elif kind == "aside":
            if f"{name}0" in BODIES:
                yield replace(state, ledger=ledger.with_batches(**{name: "replayed", f"{name}0": "open"}))
            bodies = frozenset(BODIES[name])
            yield replace(
                state,
                ledger=ledger.with_batches(**{name: "discarded"}),
                files_gone=state.files_gone | bodies,
                given_up=state.given_up | bodies,
            )


def _restored(state: State, copy: Ledger, rules: Rules) -> State:
    """The old copy. If the witness tells that it is old, it is opened: branches in the gap are rolled forward, batches
    are taken back from main."""
    if state.witness == copy.counter:
        return replace(state, ledger=copy, restored=True, given_up=frozenset())
    gap = {b for b in state.branches if b[0] > copy.counter}
    main = state.main
    for number, name in sorted(gap):
        newer = any(_same(rules, name, other) and n > number for n, other in gap)
        if not newer and not any(_same(rules, name, other) for _, other in main):
            main = tuple(sorted((*main, (number, name))))
    ledger = replace(copy, epoch=state.ledger.epoch + 1, counter=max(state.witness, copy.counter) + 1)
    ledger = replace(
        ledger,
        blocks=tuple(replace(b, fence=b.fence + 1) if b.state in ("reserved", "staged") else b for b in ledger.blocks),
    )
    for number, name in main:
        if number > copy.counter:
            held = ledger.block_of(name)
            if held is not None and held.state == "reserved":
                ledger = ledger.put(replace(held, state="abandoned"))
            ledger = ledger.put(Block(number, "published", name))
            if rules.divided_again_after_a_restore:
                ledger = _divided_again(ledger, name)
    return replace(
        state,
        ledger=ledger,
        witness=ledger.counter,
        epoch=ledger.epoch,
        main=main,
        branches=state.branches - gap,
        restored=True,
        given_up=frozenset(),
    )


def _divided_again(ledger: Ledger, name: str) -> Ledger:
    """What main holds under a part's name tells that those above it were divided, or replayed."""
    for length in range(1, len(name)):
        above = name[:length]
        if ledger.batch(above) in ("open", "aside"):
            parts = {part: "open" for part in BODIES if part[:-1] == above}
            held = ledger.block_of(above)
            if held is not None and held.state != "published":
                ledger = ledger.put(replace(held, state="abandoned"))
            ledger = ledger.with_batches(**{above: "divided"}, **parts)
    return ledger


def explored(rules: Rules) -> Explored[State]:
    return explore(State(), lambda state: steps(state, rules), _broken)


def _broken(state: State) -> str:
    held = [body for _, name in state.main for body in BODIES[name]]
    if len(held) != len(set(held)):
        return "a body is in the table twice"
    if state.given_up & set(held):
        return "a body that was given up is in the table"
    if not state.restored and state.files_gone - set(held) - state.given_up:
        return "a body is neither in the table nor in the spool"
    return ""
