"""Bodies that a receiver took, and a site that takes over: what the receiver there must know, and must not.

One client sends one body, again and again, to whoever leads. Two sites take over from each other. A leader spools the
body, reserves a block for its batch, publishes it, and settles the batch. A follower records the block, is told which
bodies the batch has, stages the rows and publishes them; one of its appliers may stand still at any step. A leader that
was replaced may go on until it rejoins. Then it carries out the cut, and may lead again. A receiver of it may settle a
batch after all that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explore import Explored, explore

OPEN, STAGED, PUBLISHED, ABANDONED = "open", "staged", "published", "abandoned"


class Rules(NamedTuple):
    receipt_before_rows: bool = True
    """A follower records which bodies a batch has before its rows can be published."""
    receipt_has_the_fence: bool = True
    """And only as long as the block is its own: not after a cut or a promotion has abandoned it."""
    given_up_is_withdrawn: bool = True
    """A promotion forgets the bodies of batches that it gives up."""
    cut_out_is_withdrawn: bool = True
    """A cut forgets the bodies of batches that it cuts out."""
    only_settled_is_withdrawn: bool = True
    """Of a batch that the leader had not settled, the bodies still wait in its spool."""
    told_replaces_waiting: bool = True
    """A body that waits at a site and is in a batch of its leader waits no more."""
    settled_is_in_the_table: bool = True
    """A receiver settles a batch only while its block is published, whenever it gets to it."""
    unknown_holds: bool = True
    """A site that takes over holds its receiver if it has a batch of which it was not told the bodies."""


class World(NamedTuple):
    sends: int = 3
    batches: int = 3
    takeovers: int = 2
    tells: bool = True
    """False: a leader of an older version does not say which bodies a batch has."""


class Site(NamedTuple):
    leads: bool = False
    term: int = 1
    """In which it led last, or that of the cut that it has carried out."""
    waits: bool = False
    """The body is in its spool, and its ledger knows it."""
    aside: bool = False
    """As `waits`, but for a person."""
    placed: int = 0
    """The batch in which it waits."""
    told: frozenset[int] = frozenset()
    """Batches whose bodies the ledger knows as ingested."""
    blocks: tuple[tuple[int, str], ...] = ()
    in_hand: int = 0
    """A batch whose bodies an applier has asked for, and will record."""
    settling: int = 0
    """A batch whose receiver has seen it published, and will settle it."""
    held: bool = False

    @property
    def table(self) -> set[int]:
        return {batch for batch, state in self.blocks if state == PUBLISHED}

    @property
    def knows(self) -> bool:
        return self.waits or self.aside or bool(self.told)

    def state_of(self, batch: int) -> str:
        return dict(self.blocks).get(batch, "")

    def block(self, batch: int, state: str) -> Site:
        return self._replace(blocks=tuple(sorted((dict(self.blocks) | {batch: state}).items())))

    def abandoned(self, batches: set[int], rules: Rules, *, withdrawn: bool) -> Site:
        after = self
        for batch in batches:
            after = after.block(batch, ABANDONED)
        if withdrawn:
            after = after._replace(told=after.told - batches)
            if not rules.only_settled_is_withdrawn and after.placed in batches:
                after = after._replace(waits=False, aside=False)
        return after._replace(placed=0) if after.placed in batches else after


class State(NamedTuple):
    sites: tuple[Site, Site] = (Site(leads=True), Site())
    leader: int = 0
    """Of the highest term."""
    term: int = 1
    kept: frozenset[int] = frozenset()
    """The batches that the last take-over left."""
    sends: int = 0
    batches: int = 0
    acknowledged: bool = False
    in_files: bool = False
    """A cut has written the body's rows to files, and said so."""
    fault: str = ""


def explored(world: World, rules: Rules) -> Explored[State]:
    return explore(State(), lambda s: steps(s, world, rules), lambda s: s.fault)


def steps(state: State, world: World, rules: Rules) -> Iterator[State]:
    found = []
    for n, site in enumerate(state.sites):
        found += leading(state, n, world) if site.leads else following(state, n, world, rules)
        if site.in_hand:  # perhaps after a take-over
            found.append(_with(state, n, recorded(site, site.in_hand, rules)._replace(in_hand=0)))
        if site.settling:  # perhaps after the cut
            found.append(_with(state, n, settled(site, site.settling, rules)._replace(settling=0)))
    for after in found:
        yield after._replace(fault=after.fault or fault(after, world))


def fault(state: State, world: World) -> str:
    leader = state.sites[state.leader]
    if len(leader.table) > 1:
        return "a body is in the table twice"
    if leader.held and world.tells:
        return "the receiver holds though everything can be known"
    if not leader.held and not leader.told <= leader.table:
        return "a sender is told that its body is in, and it is not"
    anywhere = any(s.knows for s in state.sites)
    safe = anywhere or state.in_files or bool(leader.table)
    return "" if safe or not state.acknowledged else "a body that was acknowledged is nowhere"


def _with(state: State, n: int, site: Site, **others: int) -> State:
    sites = (site, state.sites[1]) if n == 0 else (state.sites[0], site)
    return state._replace(sites=sites, **others)


# --- a site that leads, or that has not heard yet that it does not ---


def leading(state: State, n: int, world: World) -> Iterator[State]:
    site = state.sites[n]
    if state.sends < world.sends and not site.held:
        taken = site if site.knows else site._replace(waits=True)
        yield _with(state, n, taken, sends=state.sends + 1)._replace(acknowledged=True)
        yield _with(state, n, taken, sends=state.sends + 1)  # the answer is lost
    if site.aside:
        yield _with(state, n, site._replace(aside=False, waits=True))  # `spool replay`
    if site.waits and not site.placed and not site.held and state.batches < world.batches:
        batch = state.batches + 1
        yield _with(state, n, site._replace(placed=batch).block(batch, OPEN), batches=batch)
    if site.placed and site.state_of(site.placed) == OPEN:
        yield _with(state, n, site.block(site.placed, PUBLISHED))
    if site.placed and site.state_of(site.placed) == PUBLISHED:
        yield _with(state, n, site._replace(settling=site.placed))
    if n != state.leader:
        yield _with(state, n, site._replace(leads=False))  # it rejoins


# --- a site that follows ---


def following(state: State, n: int, world: World, rules: Rules) -> Iterator[State]:
    site, leader = state.sites[n], state.sites[1 - n]
    if n == state.leader:
        return
    if site.term < state.term:  # nothing of the new leader before its cut
        if 1 - n == state.leader:
            out = {batch for batch, now in site.blocks if now != ABANDONED and batch not in state.kept}
            cut = site.abandoned(out, rules, withdrawn=rules.cut_out_is_withdrawn)
            in_files = state.in_files or bool(out & site.table)
            yield _with(state, n, cut._replace(term=state.term))._replace(in_files=in_files)
        return
    if leader.leads:
        for batch in leader.table:
            if not site.state_of(batch):
                yield _with(state, n, site.block(batch, OPEN))
    for batch, now in site.blocks:
        asked = batch in site.told or not world.tells
        may_ask = leader.leads and world.tells and batch not in site.told and not site.in_hand
        if may_ask and (now == OPEN or (now == PUBLISHED and not rules.receipt_before_rows)):
            yield _with(state, n, site._replace(in_hand=batch))
        if now == OPEN and (asked or not rules.receipt_before_rows):
            yield _with(state, n, site.block(batch, STAGED))
        if now == STAGED:
            yield _with(state, n, site.block(batch, PUBLISHED))
    if state.term <= world.takeovers:
        yield promoted(state, n, rules)


def settled(site: Site, batch: int, rules: Rules) -> Site:
    if rules.settled_is_in_the_table and site.state_of(batch) != PUBLISHED:
        return site
    return site._replace(placed=0, waits=False, told=site.told | {batch})


def recorded(site: Site, batch: int, rules: Rules) -> Site:
    if site.state_of(batch) == ABANDONED and rules.receipt_has_the_fence:
        return site
    told = site._replace(told=site.told | {batch})
    return told._replace(waits=False, aside=False, placed=0, settling=0) if rules.told_replaces_waiting else told


def promoted(state: State, n: int, rules: Rules) -> State:
    site = state.sites[n]
    for batch, now in site.blocks:
        if now == STAGED:
            site = site.block(batch, PUBLISHED)
    given_up = {batch for batch, now in site.blocks if now == OPEN}
    site = site.abandoned(given_up, rules, withdrawn=rules.given_up_is_withdrawn)
    unknown = not site.table <= site.told | {site.placed}
    waits = site.waits and not site.placed  # a batch that has a block is settled by the intake
    if waits:
        site = site._replace(waits=False, aside=True, settling=0)  # in no batch that a receiver could settle
    held = unknown and rules.unknown_holds
    after = _with(state, n, site._replace(leads=True, term=state.term + 1, held=held), leader=n, term=state.term + 1)
    return after._replace(kept=frozenset(site.table))
