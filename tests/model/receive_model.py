"""Receivers of two bodies, one of which its client may send twice, and a ledger that is put back from an older copy:
bodies go from the spool through batches into the table, by processes that may stop anywhere and go on much later.
Receivers are stopped when the ledger is put back; whoever ingests may run on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explore import Explored, explore

BODIES = (0, 1)
ATTEMPTS = (2, 1)
BATCHES_MAX = 2
WORKERS_MAX = 2

File = tuple[int, int]
"""A body, and which attempt of its client's."""


class Record(NamedTuple):
    file: File
    batch: int = 0
    """0: it waits."""


class Ledger(NamedTuple):
    counter: int = 0
    epoch: int = 0
    records: tuple[Record | None, Record | None] = (None, None)
    batches: frozenset[tuple[int, bool]] = frozenset()
    """Ids, and whether it is known that they are published."""
    reserved: frozenset[int] = frozenset()
    published: frozenset[int] = frozenset()
    """What the door knows."""


class List(NamedTuple):
    batch: int
    files: frozenset[File]
    numbers: bool


class Worker(NamedTuple):
    """Whoever has a batch in hand."""

    batch: int
    files: frozenset[File]
    step: str


class State(NamedTuple):
    ledger: Ledger = Ledger()
    copy: Ledger | None = None
    restored: bool = False
    witness: int = 0
    files: frozenset[File] = frozenset()
    lists: frozenset[List] = frozenset()
    table: tuple[tuple[int, frozenset[File]], ...] = ()
    """Batches that are in main, with what is in them."""
    history: frozenset[int] = frozenset()
    """Those of them whose snapshot was not expired."""
    workers: tuple[Worker, ...] = ()
    sent: tuple[int, int] = (0, 0)
    answered: frozenset[int] = frozenset()
    settled: int = 0
    """The epoch that receivers have settled; -1 when they were started again."""
    ran_on: int = 0
    """The epoch that those settled who ran on."""
    formed: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    a_file_says_whose_it_is: bool = True
    a_batch_is_listed_before_it_is_reserved: bool = True
    lists_come_before_files: bool = True
    what_was_never_published_is_offered: bool = True
    """Where a list cannot be taken over, because one of its bodies is in another batch since."""
    a_list_is_taken_over_under_its_own_id: bool = True
    forming_asks_the_witness: bool = True
    the_batch_is_looked_for_before_the_commit: bool = True
    receivers_settle_before_they_record: bool = True


def explored(rules: Rules) -> Explored[State]:
    return explore(State(), lambda state: _steps(state, rules), _broken)


def _broken(state: State) -> str:
    there = [body for _, files in state.table for body, _ in files]
    if len(there) != len(set(there)):
        return "a body is in the table twice"
    kept = {body for body, _ in state.files}
    if state.answered - set(there) - kept:
        return "a body that was answered is gone"
    level = state.ledger.counter == state.witness and state.settled == state.ledger.epoch
    if level and any(state.ledger.records[body] is None for body in state.answered):
        return "a body that was answered is not known"
    return ""


def _steps(state: State, rules: Rules) -> Iterator[State]:
    yield from _receive(state, rules)
    yield from _form(state, rules)
    for n, worker in enumerate(state.workers):
        others = state.workers[:n] + state.workers[n + 1 :]
        yield state._replace(workers=others)  # killed
        yield from _work(state, worker, others, rules)
    if state.ledger.counter != state.witness:
        yield _opened(state)
    elif state.settled != state.ledger.epoch or state.ran_on != state.ledger.epoch:
        yield _settled(state, rules)
    if state.copy is None and not state.restored:
        yield state._replace(copy=state.ledger)
    if state.copy is not None:
        yield state._replace(ledger=state.copy, copy=None, restored=True, settled=-1)
    noted = {entry.batch for entry in state.lists if entry.numbers}
    if state.history and state.history <= noted:
        yield state._replace(history=frozenset())  # expired


# Bodies.


def _receive(state: State, rules: Rules) -> Iterator[State]:
    for body in BODIES:
        if state.sent[body] < ATTEMPTS[body]:
            file = (body, state.sent[body])
            sent = tuple(n + (b == body) for b, n in zip(BODIES, state.sent, strict=True))
            spooled = state._replace(files=state.files | {file}, sent=(sent[0], sent[1]))
            yield spooled  # and died before it was recorded
            level = state.ledger.counter == state.witness and state.settled == state.ledger.epoch
            if level or not rules.receivers_settle_before_they_record:
                yield _recorded(spooled, file)._replace(answered=state.answered | {body})


def _recorded(state: State, file: File) -> State:
    """What its identity decides: it is new, or a repeat, and then its file is nobody's."""
    records = state.ledger.records
    if records[file[0]] is not None:
        named = {r.file for r in records if r is not None}
        return state if file in named else state._replace(files=state.files - {file})
    return state._replace(ledger=state.ledger._replace(records=_with(records, Record(file))))


def _with(records: tuple[Record | None, Record | None], record: Record) -> tuple[Record | None, Record | None]:
    return (record, records[1]) if record.file[0] == 0 else (records[0], record)


# Batches.


def _form(state: State, rules: Rules) -> Iterator[State]:
    ledger = state.ledger
    if len(state.workers) == WORKERS_MAX:
        return
    for batch, published in ledger.batches:  # one that was left is taken up
        held = {w.batch for w in state.workers if w.step != "died"}
        if not published and batch not in held:
            files = frozenset(r.file for r in ledger.records if r is not None and r.batch == batch)
            yield _hired(state, Worker(batch, files, "formed"))
    level = ledger.counter == state.witness or not rules.forming_asks_the_witness
    if not level or ledger.epoch not in (state.settled, state.ran_on) or state.formed == BATCHES_MAX:
        return
    waiting = [r for r in ledger.records if r is not None and not r.batch]
    if waiting:
        batch = state.formed + 1
        records = ledger.records
        for record in waiting:
            records = _with(records, record._replace(batch=batch))
        formed = ledger._replace(records=records, batches=ledger.batches | {(batch, False)})
        worker = Worker(batch, frozenset(r.file for r in waiting), "formed")
        yield _hired(state._replace(ledger=formed, formed=batch), worker)


def _hired(state: State, worker: Worker) -> State:
    return state._replace(workers=tuple(sorted((*state.workers, worker), key=_order)))


def _order(worker: Worker) -> tuple[int, list[File], str]:
    return worker.batch, sorted(worker.files), worker.step


def _work(state: State, worker: Worker, others: tuple[Worker, ...], rules: Rules) -> Iterator[State]:
    ledger, batch, free = state.ledger, worker.batch, state._replace(workers=others)

    def then(step: str, after: State = free) -> State:
        return _hired(after, worker._replace(step=step))

    known = batch in {id for id, _ in ledger.batches}
    match worker.step:
        case "formed" if ledger.counter == state.witness:
            if batch in ledger.published:
                yield then("published")
            elif rules.a_batch_is_listed_before_it_is_reserved:
                yield then("listed", _listed(free, worker, numbers=False))
            else:
                yield then("listed")
        case "listed" if ledger.counter == state.witness:
            if batch in ledger.published:
                yield then("published")
            elif batch in ledger.reserved:  # by another, or before a copy was made: its block is settled first
                yield then("reserved")
            elif worker.files <= state.files:  # they are read when the rows are staged
                number = ledger.counter + 1
                taken = ledger._replace(counter=number, reserved=ledger.reserved | {batch})
                yield then("reserved", free._replace(ledger=taken, witness=number))
        case "reserved" if known or not rules.the_batch_is_looked_for_before_the_commit:
            yield then("checked")
        case "checked" if batch in ledger.published:
            yield then("published")
        case "checked" if batch in ledger.reserved and ledger.counter == state.witness:
            done = ledger._replace(published=ledger.published | {batch})
            there = batch in {id for id, _ in state.table}  # the same block twice is one commit
            added = () if there else ((batch, worker.files),)
            table = tuple(sorted((*state.table, *added), key=lambda entry: entry[0]))
            yield then("published", free._replace(ledger=done, table=table, history=state.history | {batch}))
        case "published":
            yield then("noted", _listed(free, worker, numbers=True))
        case "noted" if known:
            batches = frozenset((id, published or id == batch) for id, published in ledger.batches)
            yield then("settled", free._replace(ledger=ledger._replace(batches=batches)))
        case "settled":
            yield free._replace(files=state.files - worker.files)


def _listed(state: State, worker: Worker, *, numbers: bool) -> State:
    there = {entry.batch: entry for entry in state.lists}
    if worker.batch in there and not numbers:
        return state
    others = frozenset(entry for entry in state.lists if entry.batch != worker.batch)
    return state._replace(lists=others | {List(worker.batch, worker.files, numbers)})


# A ledger that was put back.


def _opened(state: State) -> State:
    """What is in the tables' history is known again; what was only reserved can never be committed."""
    known = state.ledger.published | state.history
    ledger = state.ledger._replace(
        counter=state.witness + 1, epoch=state.ledger.epoch + state.witness + 1, published=known, reserved=frozenset()
    )
    return state._replace(ledger=ledger, witness=ledger.counter)


def _settled(state: State, rules: Rules) -> State:
    if rules.lists_come_before_files:
        state, in_doubt = _take_over(state, rules)
        state = _offer(state, in_doubt, rules)
    else:
        state, _ = _take_over(_offer(state, frozenset(), rules), rules)
    return state._replace(settled=state.ledger.epoch, ran_on=state.ledger.epoch)


def _take_over(state: State, rules: Rules) -> tuple[State, frozenset[File]]:
    in_doubt: frozenset[File] = frozenset()
    for entry in sorted(state.lists, key=lambda entry: entry.batch):
        if entry.batch in {id for id, _ in state.ledger.batches}:
            continue
        records, fits = state.ledger.records, True
        for file in entry.files:
            known = records[file[0]]
            fits &= known is None or (known.file == file and not known.batch)
            place = entry.batch if rules.a_list_is_taken_over_under_its_own_id else 0
            records = _with(records, Record(file, place))
        if not fits:
            if not rules.what_was_never_published_is_offered or entry.numbers or entry.batch in state.ledger.published:
                in_doubt |= entry.files
            continue
        ledger = state.ledger._replace(records=records)
        if rules.a_list_is_taken_over_under_its_own_id:
            published = entry.numbers or entry.batch in ledger.published
            ledger = ledger._replace(
                batches=ledger.batches | {(entry.batch, published)},
                published=ledger.published | ({entry.batch} if published else set()),
            )
        state = state._replace(ledger=ledger)
    return state, in_doubt


def _offer(state: State, in_doubt: frozenset[File], rules: Rules) -> State:
    if rules.a_file_says_whose_it_is:
        for file in sorted(state.files - in_doubt):
            state = _recorded(state, file)
    return state
