"""A receiver whose ledger is restored from an older copy, explored in full: clients that repeat a body until it is
acknowledged, a door that spools and records, an intake that publishes batches, a reconciler, and a history of the
table that somebody expires. Copy and restore come at any moment.

What the ledger forgets must be found again in the warehouse, or the receiver must hold. Spool files name their body,
and a receipt beside the table names the bodies of a batch before the batch can be published.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explore import Explored, explore

BODIES = 2


class Rules(NamedTuple):
    door_asks_the_witness: bool = True
    """A receiver takes nothing, and answers nothing, while its ledger is behind the witness."""
    receipt_before_publishing: bool = True
    """The bodies of a batch are written down in the warehouse before the batch can be in the table."""
    opening_reads_receipts: bool = True
    """Whoever opens the ledger records the bodies of batches that the table has and the ledger does not."""
    opening_holds_when_unsure: bool = True
    """Where history or a receipt is gone, the receiver of the dataset holds."""
    opens_before_it_forms: bool = True
    """The intake opens a ledger that is behind before it puts bodies into a batch."""
    intake_looks_for_a_hold: bool = True
    """Immediately before it publishes, not only when it chooses what to do."""
    adopts_spooled_bodies: bool = True
    """Files that the ledger does not know are recorded by what they say of themselves."""
    adopts_a_copy: bool = True
    """Under a name of its own: whoever wrote the file may be about to record it, and removes it as a repeat."""
    leaves_what_may_be_in: bool = True
    """A file that a receipt names, of a batch that nobody knows to be published or not, is set aside."""
    puts_back_what_is_gone: bool = True
    """A file whose body is recorded under another name takes the place of that one, if it is gone and needed."""
    reconciler_leaves_bodies: bool = True
    """A file that names its body is the receiver's, even if the ledger does not know it."""


class World(NamedTuple):
    sends: int = 2
    batches: int = 2
    expires: bool = True
    """Then the receiver may hold, until a person who made sure that nobody repeats a body lets it go on."""
    restores: int = 1
    """From any copy; there are as many."""


class Ledger(NamedTuple):
    recorded: frozenset[tuple[int, int]] = frozenset()
    """Body and file."""
    placed: frozenset[tuple[int, int]] = frozenset()
    """Body and batch."""
    blocks: frozenset[int] = frozenset()
    """Batches that it knows to be in the table."""
    published: frozenset[int] = frozenset()
    """Batches that are settled, so that their files are removed."""
    counter: int = 0
    held: bool = False


class State(NamedTuple):
    ledger: Ledger = Ledger()
    copies: tuple[Ledger, ...] = ()
    restored: int = 0
    up: bool = False
    """The door is started, and has made sure of its ledger."""
    in_hand: tuple[int, int] | None = None
    """A body that a door has spooled and not recorded, and its file."""
    files: frozenset[tuple[int, int]] = frozenset()
    """Body and file, in the spool."""
    receipts: frozenset[tuple[int, frozenset[int]]] = frozenset()
    table: tuple[tuple[int, int, frozenset[int]], ...] = ()
    """Number, batch and bodies, in the order of publishing."""
    expired: int = 0
    """So many of the table's first commits are no longer in its history."""
    witness: int = 0
    acked: frozenset[int] = frozenset()
    unsure: frozenset[int] = frozenset()
    """Bodies that a person was told of: in the table, or in a file that was set aside."""
    sends: int = 0
    made_files: int = 0
    made_batches: int = 0
    fault: str = ""


def explored(world: World, rules: Rules) -> Explored[State]:
    return explore(State(), lambda s: steps(s, world, rules), lambda s: s.fault)


def steps(state: State, world: World, rules: Rules) -> Iterator[State]:
    progress = [*door(state, world, rules), *intake(state, world, rules), *adoption(state, rules)]
    for after in (*progress, *trouble(state, world, rules)):
        yield after._replace(fault=fault(after, world))
    no_more = state.made_batches == world.batches  # the world is small: what waits for a third batch is not lost
    if not progress and not state.ledger.held and not no_more and not state.acked <= in_table(state) | state.unsure:
        yield state._replace(fault="a body that was acknowledged never gets into the table")


def fault(state: State, world: World) -> str:
    bodies = [body for _, _, some in state.table for body in some]
    if len(bodies) != len(set(bodies)):
        return "a body is in the table twice"
    if any(b not in bodies and all(body != b for body, _ in state.files) for b in state.acked - state.unsure):
        return "a body that was acknowledged is gone"
    if state.ledger.held and not world.expires and world.restores == 1:  # two copies may contradict each other
        return "the receiver holds though everything can be known"
    known = {body for body, _ in state.ledger.recorded} | state.unsure
    if state.up and not state.ledger.held and not set(bodies) <= known:
        return "a sender is told that the table lacks what it holds"
    return ""


def in_table(state: State) -> set[int]:
    return {body for _, _, some in state.table for body in some}


def in_order(state: State) -> bool:
    return state.ledger.counter == state.witness


# --- the door ---


def door(state: State, world: World, rules: Rules) -> Iterator[State]:
    if not state.up:
        if in_order(state) or not rules.door_asks_the_witness:
            yield state._replace(up=True)
        return
    if state.in_hand is not None:
        yield from record(state)
    elif state.sends < world.sends:
        file = state.made_files + 1
        seen = max((body for body, _ in (*state.files, *state.ledger.recorded)), default=-1)
        for body in set(range(min(BODIES, max({seen, *in_table(state)}) + 2))) - state.acked:  # they are alike
            files = state.files | {(body, file)}
            yield state._replace(in_hand=(body, file), files=files, made_files=file, sends=state.sends + 1)


def record(state: State) -> Iterator[State]:
    assert state.in_hand is not None
    body, _ = state.in_hand
    after = state._replace(in_hand=None)
    if state.ledger.held:
        yield after._replace(files=state.files - {state.in_hand})
        return
    if any(known == body for known, _ in state.ledger.recorded):
        after = after._replace(files=state.files - {state.in_hand})
    else:
        after = after._replace(ledger=state.ledger._replace(recorded=state.ledger.recorded | {state.in_hand}))
    yield after._replace(acked=state.acked | {body})
    yield after  # the answer is lost: the client repeats


# --- the intake ---


def intake(state: State, world: World, rules: Rules) -> Iterator[State]:
    if not in_order(state):
        yield opened(state, rules)
    ledger = state.ledger
    placed = {body for body, _ in ledger.placed}
    waiting = {body for body, _ in ledger.recorded} - placed
    ready = in_order(state) or not rules.opens_before_it_forms
    if waiting and ready and not (ledger.held and rules.intake_looks_for_a_hold) and state.made_batches < world.batches:
        batch = state.made_batches + 1
        formed = ledger._replace(placed=ledger.placed | {(body, batch) for body in waiting})
        yield state._replace(ledger=formed, made_batches=batch)
    for batch in {batch for _, batch in ledger.placed} - ledger.published:
        bodies = frozenset(body for body, of in ledger.placed if of == batch)
        if batch in ledger.blocks:
            yield state._replace(ledger=ledger._replace(published=ledger.published | {batch}))
        elif ledger.held and rules.intake_looks_for_a_hold:
            pass
        elif rules.receipt_before_publishing and (batch, bodies) not in state.receipts:
            yield state._replace(receipts=state.receipts | {(batch, bodies)})
        elif in_order(state) and {f for f in ledger.recorded if f[0] in bodies} <= state.files:
            number = state.witness + 1
            committed = ledger._replace(counter=number, blocks=ledger.blocks | {batch})
            yield state._replace(ledger=committed, witness=number, table=(*state.table, (number, batch, bodies)))
    done = {f for f in ledger.recorded if any((f[0], batch) in ledger.placed for batch in ledger.published)}
    if done & state.files:
        yield state._replace(files=state.files - done)


def opened(state: State, rules: Rules) -> State:
    """One transaction of the ledger."""
    ledger = state.ledger
    unknown = [commit for commit in state.table if commit[0] > ledger.counter]
    told = [commit for commit in unknown if state.table.index(commit) >= state.expired]
    held = len(told) < len(unknown)
    ledger = ledger._replace(blocks=ledger.blocks | {batch for _, batch, _ in told})
    receipts = dict(state.receipts)
    for _, batch, _ in told:
        if any(of == batch for _, of in ledger.placed):
            continue  # the ledger knows its bodies, and finds it published
        bodies = receipts.get(batch)
        if bodies is None or not rules.opening_reads_receipts:
            held = True
            continue
        if any(body in bodies for body, _ in ledger.placed):
            held = True  # the same body waits in another batch
            continue
        known = {body for body, _ in ledger.recorded}
        ledger = ledger._replace(
            recorded=ledger.recorded | {(body, -batch) for body in bodies - known},
            placed=ledger.placed | {(body, batch) for body in bodies},
            published=ledger.published | {batch},
        )
    held = ledger.held or (held and rules.opening_holds_when_unsure)
    return state._replace(ledger=ledger._replace(counter=state.witness, held=held))


# --- files that the ledger does not know ---


def adoption(state: State, rules: Rules) -> Iterator[State]:
    """By whichever door is started; another may have the file in hand."""
    if not rules.adopts_spooled_bodies or not in_order(state):
        return
    known = {file for _, file in state.ledger.recorded}
    for body, file in state.files:
        if file in known:
            continue
        if (recorded := next((f for f in state.ledger.recorded if f[0] == body), None)) is not None:
            if (body, file) != state.in_hand:
                yield state._replace(files=state.files - {(body, file)} | put_back(state, recorded, rules))
            continue
        if state.ledger.held and body in may_be_in(state):
            continue
        name = state.made_files + 1 if rules.adopts_a_copy else file
        files = state.files - {(body, file)} | {(body, name)}
        ledger = state.ledger._replace(recorded=state.ledger.recorded | {(body, name)})
        yield state._replace(ledger=ledger, files=files, made_files=max(name, state.made_files))


def put_back(state: State, recorded: tuple[int, int], rules: Rules) -> set[tuple[int, int]]:
    """The file that the ledger names is gone: another copy of the ledger was in use, and recorded this one instead."""
    of = {batch for body, batch in state.ledger.placed if body == recorded[0]}
    needed = not of & (state.ledger.published | state.ledger.blocks) and recorded[0] not in state.unsure
    return {recorded} if rules.puts_back_what_is_gone and needed and recorded not in state.files else set()


def may_be_in(state: State) -> set[int]:
    """Bodies of batches that the ledger does not have as published, whether it knows the batch or not. By body: another
    copy of the ledger may have had it in another file."""
    return {body for batch, bodies in state.receipts if batch not in state.ledger.published for body in bodies}


def accepted(state: State, rules: Rules) -> State:
    """A person lets the receiver go on. What may be in the table already is set aside first."""
    unsure = may_be_in(state) | {body for number, _, some in state.table if number <= state.expired for body in some}
    if rules.leaves_what_may_be_in:
        state = state._replace(files=frozenset(f for f in state.files if f[0] not in may_be_in(state)))
    return state._replace(ledger=state.ledger._replace(held=False), unsure=state.unsure | unsure)


# --- what goes wrong ---


def trouble(state: State, world: World, rules: Rules) -> Iterator[State]:
    if len(state.copies) < world.restores and state.restored < world.restores and state.ledger not in state.copies:
        yield state._replace(copies=(*state.copies, state.ledger))
    for copy in state.copies if state.restored < world.restores else ():
        yield state._replace(ledger=copy, restored=state.restored + 1, up=False, in_hand=None)
    if world.expires and state.expired < len(state.table):
        yield state._replace(expired=len(state.table))  # commits of others are what is left of it
    if state.ledger.held and state.sends == world.sends and state.in_hand is None:
        yield accepted(state, rules)
    known = {file for _, file in state.ledger.recorded}
    if not rules.reconciler_leaves_bodies and in_order(state):
        swept = {f for f in state.files if f[1] not in known and f != state.in_hand}
        if swept:
            yield state._replace(files=state.files - swept)
