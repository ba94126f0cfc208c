"""The ingest protocol as a small state machine, explored in full: every interleaving of two writers that offer other
rows under one batch id, of recovery, of a sink that delivers what is sealed, and of a ledger that is copied and
restored once, with every writer free to stop for ever. A resync may find that the table cannot be read, and postpone
the dataset.

One state is a value; `steps` gives all that can happen next. Blocks have one row, so a block is its number. The digest
of the rows is the writer's index; the ledger gets it when they are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.model.explore import Explored, explore

# (number, state, fence, digest), sorted; states: reserved, staged, published, abandoned, recovered
Blocks = tuple[tuple[int, str, int, int | None], ...]


def _order(block: tuple[int, str, int, int | None]) -> tuple[int, str]:
    return block[:2]


@dataclass(frozen=True, slots=True)
class Ledger:
    counter: int = 0
    blocks: Blocks = ()
    postponed: tuple[tuple[int, int], ...] = ()  # ranges over which the dataset is not opened yet

    def get(self, number: int) -> tuple[str, int] | None:
        return next(((s, f) for n, s, f, _ in self.blocks if n == number and s != "recovered"), None)

    def digest_of(self, number: int) -> int | None:
        return next((d for n, s, _, d in self.blocks if n == number and s != "recovered"), None)

    def put(self, number: int, state: str, fence: int, digest: int | None = None) -> Ledger:
        """A digest that is known stays."""
        known = self.digest_of(number)
        kept = tuple(b for b in self.blocks if b[0] != number or b[1] == "recovered")
        block = (number, state, fence, digest if known is None else known)
        return replace(self, blocks=tuple(sorted((*kept, block), key=_order)))

    def of_batch(self) -> tuple[int, str, int, int | None] | None:
        return next((b for b in self.blocks if b[1] in ("reserved", "staged", "published")), None)


@dataclass(frozen=True, slots=True)
class Process:
    """A writer or recoverer: where it is, and the block that it thinks it holds."""

    at: str = "idle"
    number: int = 0
    fence: int = 0
    digest: int = 0  # of the rows that it offers


@dataclass(frozen=True, slots=True)
class State:
    ledger: Ledger = Ledger()
    witness: int = 0
    branches: frozenset[int] = frozenset()
    main: tuple[int, ...] = ()  # the batch's rows in main, by number, in the order they came
    written: tuple[tuple[int, int], ...] = ()  # by number: the digest of the rows that were written under it
    answered: bool = False  # a writer was told that its rows are in, and main has others
    processes: tuple[Process, ...] = (Process(), Process())
    copy: Ledger | None = None
    restored: bool = False
    reused: bool = False
    mark: int = 0  # how far a sink has delivered, by its own record, which no restore takes back
    late: bool = False  # a row came into main at or below the mark: the sink will never see it

    def digest_of(self, number: int) -> int | None:
        """Of the rows on a branch or in main, as the snapshot itself says."""
        return dict(self.written).get(number)

    def with_process(self, index: int, process: Process, **changes: object) -> State:
        processes = (*self.processes[:index], process, *self.processes[index + 1 :])
        return replace(self, processes=processes, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Rules:
    commit_point_asks_the_witness: bool = True
    abandoning_takes_a_number: bool = True
    one_batch_rolls_forward_once: bool = True
    nothing_rolls_forward_below_a_mark: bool = True
    a_postponed_dataset_takes_nothing: bool = True
    a_postponed_dataset_holds_the_seal: bool = True
    the_branch_names_the_digest: bool = True
    a_repeat_is_compared_when_its_block_is_settled: bool = True
    numbers_max: int = 4
    fence_max: int = 3


def steps(state: State, rules: Rules) -> Iterator[State]:
    for index, process in enumerate(state.processes):
        yield from _process_steps(state, index, process, rules)
    if state.witness == state.ledger.counter and (settled := _settled(state.ledger, rules)) > state.mark:
        yield replace(state, mark=settled)
    if state.ledger.postponed:
        yield _complete(state, rules)
    if state.copy is None:
        yield replace(state, copy=state.ledger)
    elif not state.restored:
        yield replace(state, ledger=state.copy, restored=True)


def _named(state: State, number: int, rules: Rules) -> int | None:
    return state.digest_of(number) if rules.the_branch_names_the_digest else None


def _answer(state: State, index: int, process: Process, rules: Rules, /, **changes: object) -> State:
    """The batch is published: the writer's rows are in, or it is refused because they are others."""
    after = replace(state, **changes)  # type: ignore[arg-type]
    known = after.ledger.digest_of(process.number)
    if rules.a_repeat_is_compared_when_its_block_is_settled and known not in (None, process.digest):
        return after.with_process(index, replace(process, at="refused"))
    is_other = after.digest_of(process.number) not in (None, process.digest)
    return after.with_process(index, replace(process, at="done"), answered=after.answered or is_other)


def _settled(ledger: Ledger, rules: Rules) -> int:
    """As far as the seal can be, if other batches were published in between."""
    is_open = [n - 1 for n, s, _, _ in ledger.blocks if s in ("reserved", "staged")]
    if rules.a_postponed_dataset_holds_the_seal:
        is_open += [lo - 1 for lo, _ in ledger.postponed]
    return min(is_open, default=ledger.counter)


def _waits(state: State, rules: Rules) -> bool:
    return bool(state.ledger.postponed) and rules.a_postponed_dataset_takes_nothing


def _into_main(state: State, number: int) -> State:
    return replace(state, main=(*state.main, number), late=state.late or number <= state.mark)


def _process_steps(state: State, index: int, process: Process, rules: Rules) -> Iterator[State]:
    match process.at:
        case "idle":
            yield from _offer(state, index, rules)
        case "reserved":
            staged = state.branches | {process.number}
            written = tuple(sorted({**dict(state.written), process.number: process.digest}.items()))
            yield state.with_process(index, replace(process, at="written"), branches=staged, written=written)
        case "written":
            yield from _commit_point(state, index, process, rules)
        case "staged":
            yield _publish(state, index, process)
        case "published":
            yield _settle(state, index, process, rules)
        case "recovering":
            yield from _recover(state, index, process, rules)


def _offer(state: State, index: int, rules: Rules) -> Iterator[State]:
    """Reserve a block for the batch, or go on with the one it has."""
    if _waits(state, rules):
        return
    ledger = state.ledger
    known = ledger.of_batch()
    if known is not None:
        number, kind, fence, digest = known
        mine = state.processes[index].digest
        if not rules.a_repeat_is_compared_when_its_block_is_settled and digest not in (None, mine):
            return  # it was compared once, with what the ledger knew when the batch was offered
        if kind == "staged":
            yield state.with_process(index, Process("staged", number, fence, mine))
        elif kind == "reserved" and fence < rules.fence_max:  # its lease may have run out: take it over
            taken = ledger.put(number, "reserved", fence + 1)
            yield state.with_process(index, Process("recovering", number, fence + 1, mine), ledger=taken)
        elif kind == "published":
            yield _answer(state, index, Process("done", number, 0, mine), rules)
        return
    if state.witness != ledger.counter:
        yield from _open(state, rules)
        return
    if state.witness >= rules.numbers_max:
        return
    number = state.witness + 1
    yield replace(state, witness=number)  # killed between witness and commit
    taken = replace(ledger, counter=number).put(number, "reserved", 1)
    reused = state.reused or number in state.main or number in state.branches
    mine = state.processes[index].digest
    yield state.with_process(index, Process("reserved", number, 1, mine), ledger=taken, witness=number, reused=reused)


def _commit_point(state: State, index: int, process: Process, rules: Rules) -> Iterator[State]:
    if rules.commit_point_asks_the_witness and state.witness != state.ledger.counter:
        yield from _open(state, rules)
        return
    if _waits(state, rules):
        return
    found = state.ledger.get(process.number)
    if found == ("reserved", process.fence):
        marked = state.ledger.put(process.number, "staged", process.fence, process.digest)
        yield state.with_process(index, replace(process, at="staged"), ledger=marked)
    elif found is not None and found[0] == "staged":
        yield state.with_process(index, replace(process, at="staged"))
    elif found is not None and found[0] == "published":
        yield _answer(state, index, process, rules)
    elif found is None or found[0] == "abandoned":
        yield state.with_process(index, _idle(process), branches=state.branches - {process.number})
    else:
        yield state.with_process(index, _idle(process))  # another fence: leave everything


def _publish(state: State, index: int, process: Process) -> State:
    """One commit: into main unless it is there, and the branch goes."""
    number = process.number
    after = replace(process, at="published")
    if number not in state.branches:
        return state.with_process(index, after)
    if number not in state.main:
        state = _into_main(state, number)
    return state.with_process(index, after, branches=state.branches - {number})


def _idle(process: Process) -> Process:
    return Process(digest=process.digest)


def _settle(state: State, index: int, process: Process, rules: Rules) -> State:
    found = state.ledger.get(process.number)
    if found is None or found[0] != "staged" or process.number not in state.main:
        return state.with_process(index, _idle(process))
    marked = state.ledger.put(process.number, "published", found[1])
    return _answer(state, index, process, rules, ledger=marked)


def _recover(state: State, index: int, process: Process, rules: Rules) -> Iterator[State]:
    """Look at main and the branch, and act on the ledger by compare-and-set."""
    if state.witness != state.ledger.counter:
        yield from _open(state, rules)
        return
    if _waits(state, rules):
        return
    number, ledger = process.number, state.ledger
    if ledger.get(number) != ("reserved", process.fence):
        yield state.with_process(index, _idle(process))
    elif number in state.main:
        marked = ledger.put(number, "published", process.fence, _named(state, number, rules))
        yield _answer(state, index, process, rules, ledger=marked)
    elif number in state.branches and not state.main and _may_roll_forward(state, number, rules):
        marked = ledger.put(number, "staged", process.fence, _named(state, number, rules))
        yield state.with_process(index, replace(process, at="staged"), ledger=marked)
    else:
        taken = state.witness + 1 if rules.abandoning_takes_a_number else state.witness
        if taken <= rules.numbers_max:
            given_up = replace(ledger, counter=taken).put(number, "abandoned", process.fence)
            yield state.with_process(index, _idle(process), ledger=given_up, witness=taken)


def _may_roll_forward(state: State, number: int, rules: Rules) -> bool:
    return number > state.mark or not rules.nothing_rolls_forward_below_a_mark


def _open(state: State, rules: Rules) -> Iterator[State]:
    """The resync, under the lock. Where the table cannot be read, its part of it is postponed."""
    last = max(state.witness, state.ledger.counter) + 1
    if last > rules.numbers_max + 2:
        return
    lo = state.ledger.counter + 1
    pending = (*state.ledger.postponed, (lo, last))
    ledger = Ledger(last, _fenced(state.ledger.blocks), pending)
    later = replace(state, ledger=ledger, witness=last)
    yield later
    for _ in pending:
        later = _complete(later, rules)
    yield later


def _fenced(blocks: Blocks) -> Blocks:
    return tuple((n, s, f + 1 if s in ("reserved", "staged") else f, d) for n, s, f, d in blocks)


def _complete(state: State, rules: Rules) -> State:
    """The resync of the dataset over the lowest range that it was postponed for. Takes no number."""
    ledger = state.ledger
    (lo, hi), *others = ledger.postponed
    gap = range(lo, hi + 1)
    candidates = sorted((n for n in state.branches if n in gap), reverse=True)
    published = any(s == "published" for _, s, _, _ in ledger.blocks)
    for number in candidates[:1] if rules.one_batch_rolls_forward_once else candidates:
        if not _may_roll_forward(state, number, rules):
            continue
        if (not state.main and not published) or not rules.one_batch_rolls_forward_once:
            state = replace(_into_main(state, number), branches=state.branches - {number})
    for number in (n for n in state.main if n in gap):
        known = ledger.of_batch()
        if known is not None and known[1] == "reserved":
            ledger = ledger.put(known[0], "abandoned", known[2])
        if ledger.of_batch() is None:
            ledger = ledger.put(number, "published", 1, _named(state, number, rules))
    blocks = tuple(sorted({*ledger.blocks, (lo, "recovered", 1, None)}, key=_order))
    return replace(state, ledger=Ledger(ledger.counter, blocks, tuple(others)))


def explored(rules: Rules) -> Explored[State]:
    offered = (Process(), Process(digest=1))
    return explore(State(processes=offered), lambda state: steps(state, rules), _broken)


def _broken(state: State) -> str:
    if len(state.main) > 1:
        return "the batch is in main twice"
    if state.reused:
        return "a number was used again"
    if state.answered:
        return "other rows were taken for a repeat of the batch"
    return "a row came in below a mark" if state.late else ""
