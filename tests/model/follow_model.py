"""A leader and its follower, explored in full: offers that come late, twice or cut short, two appliers of which either
may have been given up for dead and goes on, a follower whose ledger is lost or restored from a copy, and a leader that
purges, retains, merges its records and is restored itself.

Up to its seal the follower has the leader's rows, each once, but for those that were purged or that a rule deleted.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model import follow_leader
from tests.model.explore import Explored, explore
from tests.model.follow_state import (
    Applier,
    Block,
    Branch,
    Leader,
    LeaderLedger,
    Ledger,
    Offer,
    Range,
    Rules,
    State,
    World,
)

FENCES_MAX = 9
"""A block that is taken so often is taken for ever."""


def explored(world: World, rules: Rules, states_max: int = 3_000_000) -> Explored[State]:
    return explore(_first(world), lambda s: steps(s, world, rules), lambda s: s.fault, states_max)


def _first(world: World) -> State:
    appliers = (Applier(),) * world.appliers
    if not world.ingested:
        return State(appliers=appliers)
    rows = range(1, world.rows + 1)
    ledger = LeaderLedger(world.rows, tuple(Range(n, n, "published") for n in rows))
    leader = Leader(ledger, witness=world.rows, table=frozenset(rows), ever=frozenset(rows), rows=world.rows)
    return State(leader, appliers=appliers)


def steps(state: State, world: World, rules: Rules) -> Iterator[State]:
    progress = [s for s in _progress(state, world, rules) if s != state]
    leader = (state._replace(leader=after) for after in follow_leader.steps(state.leader, world, rules))
    for after in (*progress, *leader, *_others(state, world, rules)):
        yield after if after.fault else _noticed(after, rules)
    if not progress and _is_at_rest(state.leader, rules):
        if seal(state.ledger, rules) != follow_leader.sealed(state.leader.ledger):
            yield state._replace(fault="the follower stands still")
        if any(row in state.table - state.leader.table for row, _ in state.leader.purged):
            yield state._replace(fault="a purged row stays")


def _is_at_rest(leader: Leader, rules: Rules) -> bool:
    in_order = leader.ledger.counter == leader.witness
    reserved = any(r.state == "reserved" for r in leader.ledger.ranges)
    return in_order and not reserved and not list(follow_leader.finish_purge(leader, rules))


def _noticed(state: State, rules: Rules) -> State:
    """A consumer reads at once what is sealed, and the leader is told at once: later would be less dangerous."""
    end = seal(state.ledger, rules)
    if end is None or state.witness > state.ledger.expected:
        return state
    if fault := _fault(state, end):
        return state._replace(fault=fault)
    leader, told = state.leader, end if rules.it_tells_its_seal else state.ledger.bound
    if told > leader.ledger.told and leader.ledger.counter == leader.witness:
        leader = leader._replace(ledger=leader.ledger._replace(told=told))
    return state._replace(mark=max(state.mark, end), leader=leader)


def _progress(state: State, world: World, rules: Rules) -> Iterator[State]:
    if state.witness > state.ledger.expected:
        yield from _opened(state, world, rules)
    else:
        yield from _offered(state, world, rules)
        yield from _recorded(state, world, rules)
    for n, applier in enumerate(state.appliers):
        for after, then in _apply(state, applier, world, rules):
            others = (*state.appliers[:n], *state.appliers[n + 1 :])
            yield after._replace(appliers=tuple(sorted((*others, then))))


def seal(ledger: Ledger, rules: Rules) -> int | None:
    open_blocks = [b.lo for b in ledger.blocks if b.state in ("reserved", "staged")]
    lowest = min(open_blocks, default=ledger.bound + 1)
    if rules.behind_it_has_no_seal and min(lowest, ledger.bound + 1) <= ledger.behind:
        return None
    if rules.the_seal_waits_for_every_shard:
        return _settled(ledger.blocks)
    return max(_settled(tuple(b for b in ledger.blocks if b.purges or b.lo % 2 == shard)) for shard in (0, 1))


def _settled(blocks: tuple[Block, ...]) -> int:
    below = min((b.lo for b in blocks if b.state in ("reserved", "staged")), default=1 << 40)
    return max((b.hi for b in blocks if b.state == "published" and b.hi < below), default=0)


def _fault(state: State, end: int) -> str:
    ledger, leader = state.ledger, state.leader
    if state.table - leader.ever:
        return "a row that the leader never published"
    if any(b.lo <= a.hi for a, b in zip(ledger.blocks, ledger.blocks[1:], strict=False)):
        return "an item is recorded twice"
    if end < state.mark and not (state.restored and any(b.state != "published" for b in ledger.blocks)):
        return "the seal moved back"
    purged = {row for row, _ in leader.purged}
    if any(row <= end and row not in state.arrived for row in leader.ever - purged):
        return "a row never reached the follower"
    if any(state.floor < row <= end and row not in state.table for row in leader.table - purged):
        return "a row is missing below the seal"
    if any(b.purges in state.table and b.state == "published" and b.lo <= end for b in ledger.blocks):
        return "a purged row is below the seal"
    return ""


# --- offers ---


def _offered(state: State, world: World, rules: Rules) -> Iterator[State]:
    ledger = state.leader.ledger
    if ledger.counter == state.leader.witness:
        for offer in follow_leader.offers(ledger, state.ledger.bound, rules):
            if offer not in state.offers:
                for lost in state.offers if len(state.offers) == world.offers else (None,):
                    yield state._replace(offers=state.offers - {lost} | {offer})
    for offer in state.offers:
        if offer.upto < 0:
            whole = offer._replace(upto=follow_leader.upto(ledger, rules))
            yield state._replace(offers=state.offers - {offer} | {whole})


def _recorded(state: State, world: World, rules: Rules) -> Iterator[State]:
    """One transaction, the witness before it."""
    ledger = state.ledger
    for offer in state.offers:
        fits = offer.after == ledger.bound if rules.recorded_only_at_the_bound else True
        if offer.upto <= ledger.bound or not fits:
            continue
        blocks = (*ledger.blocks, *_blocks(ledger, offer))
        after = ledger._replace(bound=offer.upto, blocks=tuple(sorted(blocks)))
        witness = max(state.witness, offer.upto) if rules.the_witness_is_raised_before else state.witness
        if state.troubles < world.troubles:
            yield state._replace(witness=witness, troubles=state.troubles + 1)  # killed between the two
        yield state._replace(ledger=after, witness=witness)


def _blocks(ledger: Ledger, offer: Offer) -> Iterator[Block]:
    for item in offer.items:
        if ledger.get(item.lo) is None:
            yield Block(item.lo, item.hi, item.purges, "reserved")


def _opened(state: State, world: World, rules: Rules) -> Iterator[State]:
    """A ledger behind its witness. Whatever was open is taken again: nobody was promised anything of it."""
    epoch = state.epoch + 1 if rules.behind_it_raises_the_epoch else state.epoch
    if state.troubles < world.troubles:
        yield state._replace(epoch=epoch, troubles=state.troubles + 1)  # killed between the two
    blocks = tuple(
        b if b.state == "published" else b._replace(state="reserved", fence=b.fence + 1) for b in state.ledger.blocks
    )
    ledger = state.ledger._replace(blocks=blocks, epoch=epoch, behind=state.witness)
    yield state._replace(epoch=epoch, ledger=ledger)


# --- apply ---


def _apply(state: State, applier: Applier, world: World, rules: Rules) -> Iterator[tuple[State, Applier]]:
    behind = state.witness > state.ledger.expected
    match applier.at:
        case "idle":
            if not behind:
                yield from _take(state, world, rules)
        case "taken":
            yield _write(state, applier, rules)
        case "written":
            yield _commit_point(state, applier, rules)  # without asking the witness: nobody was promised anything
        case "staged":
            yield _publish(state, applier, rules)
        case "confirm":
            if not behind:
                yield _confirm(state, applier, rules), Applier()
        case "purging":
            gone = state.table if state.epoch != applier.epoch else state.table - applier.rows
            yield state._replace(table=gone), applier._replace(at="purged")
        case "purged":
            if not behind:
                yield _moved(state, applier, "published", rules), Applier()


def _take(state: State, world: World, rules: Rules) -> Iterator[tuple[State, Applier]]:
    """A new fence for a block that is reserved; whoever had it before may go on."""
    ledger = state.ledger
    for block in ledger.blocks:
        applier = Applier("staged", block.lo, block.hi, block.fence, ledger.epoch)
        if block.state == "staged":
            yield state, applier  # anyone may publish
        in_hand = any(a.lo == block.lo for a in state.appliers if a.at != "idle")
        if block.state != "reserved" or (in_hand and block.fence >= world.takes + 2 * ledger.epoch):
            continue
        taken = block._replace(fence=block.fence + 1)
        after = state._replace(ledger=ledger.put(taken))
        applier = applier._replace(fence=taken.fence)
        if not block.purges:
            yield after, applier._replace(at="taken")
        elif not rules.a_purge_waits_for_lower_blocks or all(
            b.state == "published" for b in ledger.blocks if b.lo < block.lo
        ):
            gone = frozenset({block.purges}) - state.leader.table
            yield after, applier._replace(at="purging", rows=gone)
        if not rules.recovery_never_abandons_an_item:
            yield state._replace(ledger=ledger.put(block._replace(state="abandoned"))), Applier()


def _content(state: State, lo: int, hi: int, rules: Rules) -> frozenset[int]:
    """What the leader has of the range now, and what of it is wanted."""
    rows = frozenset(r for r in state.leader.table if lo <= r <= hi)
    if rules.takes_only_what_the_table_lacks:
        rows -= state.table
    return frozenset(r for r in rows if r > state.floor) if rules.stays_above_its_floor else rows


def _write(state: State, applier: Applier, rules: Rules) -> tuple[State, Applier]:
    rows = _content(state, applier.lo, applier.hi, rules)
    then = applier._replace(at="written", rows=rows)
    if not rows:
        return _without_branches(state, applier, rules), then
    others = state.branches
    if not rules.a_branch_carries_its_fence:
        others = tuple(b for b in others if b.lo != applier.lo)
    others = tuple(b for b in others if not _is_of(b, applier))
    branch = Branch(applier.lo, applier.epoch, applier.fence, rows)
    return state._replace(branches=tuple(sorted((*others, branch)))), then


def _without_branches(state: State, applier: Applier, rules: Rules) -> State:
    """Before a block is settled: a restored ledger may have forgotten that it let another applier pass."""
    every = rules.settling_removes_every_branch
    kept = (b for b in state.branches if b.lo != applier.lo or not (every or _is_of(b, applier)))
    return state._replace(branches=tuple(kept))


def _is_of(branch: Branch, applier: Applier) -> bool:
    return (branch.lo, branch.epoch, branch.fence) == (applier.lo, applier.epoch, applier.fence)


def _moved(state: State, applier: Applier, to: str, rules: Rules) -> State:
    """Compare-and-set on state and fence."""
    block = state.ledger.get(applier.lo)
    if block is None or block.state != "reserved":
        return state
    if rules.fences and block.fence != applier.fence:
        return state
    if rules.fences_carry_the_epoch and state.ledger.epoch != applier.epoch:
        return state
    return state._replace(ledger=state.ledger.put(block._replace(state=to)))


def _commit_point(state: State, applier: Applier, rules: Rules) -> tuple[State, Applier]:
    after = _moved(state, applier, "staged" if applier.rows else "published", rules)
    if after != state:
        return after, applier._replace(at="staged", rows=frozenset()) if applier.rows else Applier()
    block = state.ledger.get(applier.lo)
    if block is not None and block.state == "staged" and block.fence == applier.fence:
        return state, Applier()
    return state._replace(branches=tuple(b for b in state.branches if not _is_of(b, applier))), Applier()


def _publish(state: State, applier: Applier, rules: Rules) -> tuple[State, Applier]:
    """One commit of the table: the rows in, the branch gone. Only under the table's epoch."""
    if state.epoch != applier.epoch:
        return state, Applier()
    then = applier._replace(at="confirm")
    branch = next((b for b in state.branches if _is_of(b, applier)), None)
    after = _without_branches(state, applier, rules)
    if branch is None:
        return after, then
    clash = state.table & branch.rows if rules.a_publish_looks_for_its_own_rows else frozenset()
    if not rules.a_publish_looks_for_its_own_rows_only:
        clash = frozenset(r for r in state.table if applier.lo <= r <= applier.hi)
    if clash:
        return after, then
    fault = ""
    if branch.rows & state.table:
        fault = "a row is in the table twice"
    elif any(row <= state.mark for row in branch.rows - {row for row, _ in state.leader.purged}):
        fault = "a row came in below a mark"
    table, arrived = state.table | branch.rows, state.arrived | branch.rows
    return after._replace(table=table, arrived=arrived, fault=fault), then


def _confirm(state: State, applier: Applier, rules: Rules) -> State:
    """No branch any more: it was published, or its branch went with a ledger that is gone."""
    block = state.ledger.get(applier.lo)
    if block is None or block.state != "staged" or block.fence != applier.fence:
        return state
    if not _content(state, block.lo, block.hi, Rules()):
        return state._replace(ledger=state.ledger.put(block._replace(state="published")))
    if block.fence > FENCES_MAX:
        return state._replace(fault="the follower stands still")
    again = "reserved" if rules.staged_without_a_branch_is_taken_again else "held"
    return state._replace(ledger=state.ledger.put(block._replace(state=again, fence=block.fence + 1)))


# --- what else happens at the follower ---


def _others(state: State, world: World, rules: Rules) -> Iterator[State]:
    ledger = state.ledger
    end = seal(ledger, rules)
    if world.follower_retains and not state.floor and end and state.witness <= ledger.expected:
        up_to = min(end, state.mark)
        yield state._replace(floor=up_to, table=frozenset(r for r in state.table if r > up_to))
    if not world.restores or state.restored or state.troubles == world.troubles:
        return
    if state.copy is None and ledger.bound:
        yield state._replace(copy=ledger)
    for older in (state.copy, Ledger()):
        if older is not None and older != ledger:
            yield state._replace(ledger=older, copy=None, restored=True, troubles=state.troubles + 1)
