"""A promotion by force, explored in full: of a site that is no member, of one that has not recorded the last cut, and
of one whose ledger was restored and is behind its witness. Sites, arbiter and clients are those of `takeover_model`.

What the leader took and this site has not is lost, and the sink may have it: that is reported. But the rest holds: no
seal moves back, no row comes in below a mark, who follows has what the leader has, and the sink, or whoever reads with
a token, has not gone past a row that the leader has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tests.model import takeover_model as base
from tests.model.explore import Explored, explore
from tests.model.takeover_model import seal
from tests.model.takeover_state import FIRST_TERM, SITES, Block, Cut, Record, Site, State
from tests.model.takeover_state import Rules as TakeOverRules
from tests.model.takeover_state import World as TakeOverWorld


class Forced(NamedTuple):
    base: State
    sent: int = 0
    """How far the sink is, by its own record. A token of a reader is the same."""
    forcing: frozenset[int] = frozenset()
    """Sites whose promotion is by force."""
    looked: frozenset[int] = frozenset()
    """They have seen that the record lets them lead, and may stand still before they do."""
    copies: tuple[Site | None, ...] = (None, None, None)
    """Of the ledgers."""
    behind: tuple[int, ...] = (0, 0, 0)
    """Where the witness stood when the ledger was found behind it; 0: it is not behind."""
    forces: int = 0
    restores: int = 0
    fault: str = ""


@dataclass(frozen=True, slots=True)
class World:
    take_over: TakeOverWorld
    forced: tuple[int, ...] = (2,)
    members: tuple[int, ...] = (1,)
    restores: int = 0
    stalls: bool = False
    ingested: bool = False
    """The site that is forced has a row, and the other follower has not: a world that is deeper, and not larger."""


@dataclass(frozen=True, slots=True)
class Rules:
    take_over: TakeOverRules = field(default_factory=TakeOverRules)
    who_has_a_cut_that_the_leader_lacks_does_not_follow: bool = True
    a_lane_in_a_term_that_the_leader_lacks_stops: bool = True
    a_site_behind_keeps_what_its_table_has: bool = True
    a_site_behind_cuts_from_0: bool = True
    a_site_behind_has_raised_its_epoch: bool = True
    a_site_behind_waits_for_the_term_of_its_witness: bool = True
    # Tried instead of the first one, and worse.
    who_has_a_cut_that_the_leader_lacks_begins_at_0: bool = False


def explored(world: World, rules: Rules, states_max: int = 3_000_000) -> Explored[Forced]:
    leader = Site(role="leader", holds=True, waits_for=frozenset(world.members))
    record = Record(members=frozenset((n, 0) for n in world.members))
    first = Forced(State((leader, Site(), Site()), record))
    if world.ingested:
        row = FIRST_TERM * 10 + 1
        has = Block(row, "done"), frozenset({row})
        sites = [
            s._replace(bound=row, blocks=has[:1], table=has[1], mark=row) if n in (0, *world.forced) else s
            for n, s in enumerate(first.base.sites)
        ]
        first = first._replace(base=State(tuple(sites), record, acked=has[1]))
    return explore(first, lambda s: steps(s, world, rules), lambda s: s.fault, states_max)


def steps(state: Forced, world: World, rules: Rules) -> Iterator[Forced]:
    progress = [s for s in _progress(state, world, rules) if s != state]
    for after in (*progress, *_persons(state, world, rules)):
        yield after if after.fault or after.base.fault else _noticed(after)
    if not progress and (fault := _stands_still(state)):
        yield state._replace(fault=fault)


def _progress(state: Forced, world: World, rules: Rules) -> Iterator[Forced]:
    for n, site in enumerate(state.base.sites):
        yield from _taken(state, base._publish(state.base, n, site))
        if site.role == "leader":
            for after in base._lead(state.base, n, site, world.take_over, rules.take_over):
                yield _delivered(state, n, after, rules)
        else:
            yield from _follow(state, n, site, rules)
            yield from _promote(state, n, site, world, rules)


def _taken(state: Forced, found: Iterator[State]) -> Iterator[Forced]:
    for after in found:
        yield state._replace(base=after, fault=after.fault)


def _with(state: Forced, n: int, site: Site) -> Forced:
    return state._replace(base=base._with(state.base, n, site))


def _changed(values: tuple[int, ...], n: int, value: int) -> tuple[int, ...]:
    return (*values[:n], value, *values[n + 1 :])


def terms(site: Site) -> list[int]:
    """Of the leaders whose cuts it has recorded, or was one of."""
    return [FIRST_TERM, *(b.number // 10 for b in site.blocks if b.cut is not None)]


# --- sinks ---


def _delivered(state: Forced, n: int, after: State, rules: Rules) -> Forced:
    """The sink gets what lies above its own mark, whatever a leader takes it to have."""
    before = state.base
    if after.sink == before.sink and after.sites[n].promised == before.sites[n].promised:
        return state._replace(base=after, fault=after.fault)
    stops = rules.a_lane_in_a_term_that_the_leader_lacks_stops
    if stops and not _knows_the_term(state.sent, before.sites[n]):
        return state
    rows = frozenset(r for r in after.sink - before.sink if r > state.sent)
    sent = max(state.sent, after.sites[n].promised) if after.sink != before.sink else state.sent
    return state._replace(base=after._replace(sink=before.sink | rows), sent=sent, fault=after.fault)


def _knows_the_term(number: int, leader: Site) -> bool:
    return number == 0 or number // 10 in terms(leader)


# --- follow ---


def _follow(state: Forced, n: int, site: Site, rules: Rules) -> Iterator[Forced]:
    if site.claimed:
        return
    for m, leader in enumerate(state.base.sites):
        if m == n or leader.role != "leader" or leader.term < _term(state, n, rules):
            continue
        is_strange = _term(state, n, rules) not in terms(leader)
        begins_at_0 = is_strange and rules.who_has_a_cut_that_the_leader_lacks_begins_at_0
        if is_strange and not begins_at_0 and rules.who_has_a_cut_that_the_leader_lacks_does_not_follow:
            continue
        if leader.bound > site.bound:
            for after in base._record(state.base, n, site, leader, rules.take_over):
                recorded = state._replace(base=after)
                yield _begun_at_0(recorded, n, leader) if begins_at_0 else recorded
        if leader.term == site.term:
            for block in site.blocks:
                if block.state == "open" and block.number in leader.table:
                    staged = site.put(block._replace(state="staged"))
                    yield _with(state, n, staged._replace(late=site.late | {block.number}))
            yield from _caught_up(state, n, site, leader)
    yield from _taken(state, base._carry_out(state.base, n, site, rules.take_over))


def _begun_at_0(state: Forced, n: int, leader: Site) -> Forced:
    site = state.base.sites[n]
    lacks = [r for r in leader.table - site.table if r <= site.bound]
    again = site.put(*(Block(r, "open") for r in lacks))
    return _with(state, n, again)._replace(behind=_changed(state.behind, n, site.bound))


def _term(state: Forced, n: int, rules: Rules) -> int:
    """That it has been in, whatever became of its ledger: the witness has a number of that term."""
    witnessed = state.behind[n] // 10 if rules.a_site_behind_waits_for_the_term_of_its_witness else 0
    return max(state.base.sites[n].term, witnessed)


def _caught_up(state: Forced, n: int, site: Site, leader: Site) -> Iterator[Forced]:
    """As ADR 70 has it; a leader has no number above its bound."""
    is_open = any(b.state in ("open", "staged") for b in site.blocks)
    if state.behind[n] and not is_open and site.bound >= min(state.behind[n], leader.bound):
        yield state._replace(behind=_changed(state.behind, n, 0))


# --- promote ---


def _promote(state: Forced, n: int, site: Site, world: World, rules: Rules) -> Iterator[Forced]:
    by_force = n in state.forcing
    if state.behind[n] and not by_force:
        return
    own = rules.take_over
    if by_force:
        own = replace(own, promote_is_for_members=False, promote_needs_the_cut_of_the_last_leader=False)
    for after in base._promote(state.base, n, site, world.take_over, own):
        if after.sites[n].role == "leader" and not world.stalls:
            yield _led(state, n, by_force, rules)
        elif after.sites[n].role == "leader":
            yield state._replace(looked=state.looked | {n})
        elif not (after.sites[n].asked or after.sites[n].claimed):
            ended = state._replace(base=after, forcing=state.forcing - {n})
            yield ended if n not in state.looked else state  # it stands still behind its look
        else:
            yield state._replace(base=after, fault=after.fault)
    if n in state.looked:
        yield _led(state, n, by_force, rules)._replace(looked=state.looked - {n})


def _led(state: Forced, n: int, by_force: bool, rules: Rules) -> Forced:
    """The transaction. Nobody is a member of a term that begins."""
    record, site = state.base.record, state.base.sites[n]
    if record.term == site.claimed:
        record = record._replace(members=frozenset())
    if not state.behind[n]:
        led = base._leading(site, record, rules.take_over)
    else:
        led = _led_behind(site, record, rules)
    after = _with(state, n, led._replace(waits_for=frozenset()))
    after = after._replace(base=after.base._replace(record=record))
    return after._replace(forcing=state.forcing - {n}, behind=_changed(state.behind, n, 0))


def _led_behind(site: Site, record: Record, rules: Rules) -> Site:
    """Of its ledger nothing counts but what its table confirms."""
    own = site
    if rules.a_site_behind_keeps_what_its_table_has:
        known = {b.number: b for b in site.blocks if b.cut is None}
        own = site.put(*(known.get(r, Block(r, "done"))._replace(state="done") for r in site.table))
    led = base._leading(own, record, rules.take_over)
    above = 0 if rules.a_site_behind_cuts_from_0 else seal(site)
    kept = led.table if rules.a_site_behind_keeps_what_its_table_has else frozenset(
        b.number for b in led.blocks if b.state == "done" and b.cut is None
    )  # fmt: skip
    number = led.term * 10
    return led.put(Block(number, "done", Cut(above, frozenset(r for r in kept if above < r))))


# --- what must not be ---


def _noticed(state: Forced) -> Forced:
    sites = list(state.base.sites)
    for n, site in enumerate(sites):
        if state.behind[n]:
            continue  # it has no seal
        end = seal(site)
        if end < site.mark:
            return state._replace(fault="a seal moved back")
        sites[n] = site._replace(mark=end)
    for n, leader in enumerate(sites):
        if leader.role == "leader":
            told = tuple(
                leader.told[f] if state.behind[f] else base._told(sites[f], leader, f, TakeOverRules()) for f in SITES
            )
            sites[n] = leader._replace(told=told)
    after = state._replace(base=state.base._replace(sites=tuple(sites)))
    return after._replace(fault=_fault(after))


def _fault(state: Forced) -> str:
    found = state.base
    if fault := base._fault_of_terms(found):
        return fault
    everywhere = frozenset[int]().union(*(s.table | s.files for s in found.sites))
    if found.acked - everywhere:
        return "a row that was acknowledged is nowhere"
    leader = base._leader(found)
    if leader is None:
        return ""
    if any(not _is_given_up(r, leader) for r in found.sink - leader.table):
        return "a sink holds a row that the leader has not"
    if _knows_the_term(state.sent, leader) and any(r <= state.sent for r in leader.table - found.sink):
        return "a sink has gone past a row that the leader has"
    for n, site in enumerate(found.sites):
        if site.role == "follower" and site.term == leader.term and base._cut_is_done(site) and not state.behind[n]:
            end = min(seal(site), seal(leader))
            if {r for r in site.table if r <= end} != {r for r in leader.table if r <= end}:
                return "a follower differs from its leader"
    return ""


def _is_given_up(row: int, leader: Site) -> bool:
    """By a cut of its chain: it is reported, and never sent again."""
    return any(b.cut is not None and base._is_cut_out(row, b) for b in leader.blocks)


def _stands_still(state: Forced) -> str:
    found = state.base
    if any(s.claimed for s in found.sites):
        return "a promotion stands still"
    leader = base._leader(found)
    if leader is None:
        return ""
    if any(b.state in ("open", "staged") for b in leader.blocks):
        return "a leader stands still"
    followers = [(n, s) for n, s in enumerate(found.sites) if s.role == "follower" and s.term in terms(leader)]
    if any(seal(s) != seal(leader) or state.behind[n] for n, s in followers):
        return "a follower stands still"
    return ""


# --- persons ---


def _persons(state: Forced, world: World, rules: Rules) -> Iterator[Forced]:
    found = state.base
    yield from _taken(state, base._persons_and_clients(found, world.take_over, TakeOverRules()))
    for n in world.forced:
        site = found.sites[n]
        if site.role != "follower" or site.claimed:
            continue
        if not site.asked and not state.forces:
            asked = _with(state, n, site._replace(asked=found.record.term))
            yield asked._replace(forces=1, forcing=state.forcing | {n})
        if world.restores and not state.restores:
            if state.copies[n] is None and (site.blocks or site.bound != FIRST_TERM * 10):
                yield state._replace(copies=(*state.copies[:n], site, *state.copies[n + 1 :]))
            yield _restored(state, n, site, state.copies[n] or Site(), rules)


def _restored(state: Forced, n: int, site: Site, copy: Site, rules: Rules) -> Forced:
    """The ledger is that of the copy, and behind its witness: it puts back what is open, and raises the epoch."""
    if copy.bound == site.bound:
        return state  # not noticed, and harmless: ADR 70, rule 12
    late = frozenset[int]() if rules.a_site_behind_has_raised_its_epoch else site.late
    opened = tuple(b._replace(state="open") if b.state == "staged" else b for b in copy.blocks)
    after = site._replace(term=copy.term, bound=copy.bound, blocks=opened, asked=0, late=late)
    return _with(state, n, after)._replace(restores=1, behind=_changed(state.behind, n, site.bound))
