"""A take-over, explored in full: a leader that is cut off or stopped and goes on later, two followers that may be
promoted at the same time, an arbiter with a lease and members, and an old leader that rejoins.

With an arbiter, and sinks that wait for all members, no sink holds a row that the promoted site has not; no row that
was acknowledged is gone without a file of it; and sites that follow have what the leader has.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from tests.model.explore import Explored, explore
from tests.model.takeover_state import FIRST_TERM, SITES, Block, Cut, Record, Rules, Site, State, World

WRITTEN_OFF = 2
"""The follower that is a member and is not, in turns, and the one that is lost and made again."""

_NO_LEADER: dict[str, Any] = {
    "waits_for": frozenset(), "told": (0, 0, 0), "heard": (0, 0, 0), "promised": 0, "limit": 0, "tending": None,
    "removing": 0,
}  # fmt: skip


def explored(world: World, rules: Rules, states_max: int = 3_000_000) -> Explored[State]:
    leader = Site(role="leader", holds=True, waits_for=frozenset({1, 2}))
    first = State((leader, Site(), Site()))
    return explore(first, lambda s: steps(s, world, rules), lambda s: s.fault, states_max)


def steps(state: State, world: World, rules: Rules) -> Iterator[State]:
    progress = [s for s in _progress(state, world, rules) if s != state]
    for after in (*progress, *_persons_and_clients(state, world, rules)):
        yield after if after.fault else _noticed(after, world, rules)  # the same state comes from several others
    if not progress and world.arbiter and (fault := _stands_still(state)):
        yield state._replace(fault=fault)


def _progress(state: State, world: World, rules: Rules) -> Iterator[State]:
    """What sites do by themselves."""
    for n, site in enumerate(state.sites):
        yield from _publish(state, n, site)
        if site.role == "leader":
            yield from _lead(state, n, site, world, rules)
        if site.role == "follower":
            yield from _follow(state, n, site, rules)
            yield from _promote(state, n, site, world, rules)


def _with(state: State, n: int, site: Site) -> State:
    return state._replace(sites=(*state.sites[:n], site, *state.sites[n + 1 :]))


def seal(site: Site) -> int:
    return _seal(site.blocks, site.bound)


@lru_cache(100_000)
def _seal(blocks: tuple[Block, ...], bound: int) -> int:
    below = min((b.number for b in blocks if b.state in ("open", "staged")), default=bound + 1)
    return max((b.number for b in blocks if b.state == "done" and b.number < below), default=0)


# --- what must not be ---


@lru_cache(100_000)
def _noticed(state: State, world: World, rules: Rules) -> State:
    """Consumers read at once what is sealed, and leaders are told at once."""
    sites = list(state.sites)
    for n, site in enumerate(sites):
        end = seal(site)
        if end < site.mark:
            return state._replace(fault="a seal moved back")
        sites[n] = site._replace(mark=end)
    for n, leader in enumerate(sites):
        if leader.role == "leader":
            told = tuple(_told(sites[f], leader, f, rules) for f in SITES)
            sites[n] = leader._replace(told=told)
    state = state._replace(sites=tuple(sites))
    return state._replace(fault=_fault(state) if world.arbiter else _fault_of_terms(state))


def _told(follower: Site, leader: Site, n: int, rules: Rules) -> int:
    counts = follower.term == leader.term or not rules.seals_count_in_their_own_term
    if follower.instance != leader.heard[n]:
        return leader.told[n]  # a site that was made again begins to tell later
    return max(leader.told[n], seal(follower)) if follower.role == "follower" and counts else leader.told[n]


def _leaders(state: State) -> list[Site]:
    return [s for s in state.sites if s.role == "leader"]


def _leader(state: State) -> Site | None:
    """The one that the arbiter names, once it leads."""
    site = state.sites[state.record.site]
    return site if site.role == "leader" and site.term == state.record.term else None


def _fault_of_terms(state: State) -> str:
    terms = [s.term for s in _leaders(state)]
    return "two sites lead in one term" if len(terms) != len(set(terms)) else ""


def _fault(state: State) -> str:
    if fault := _fault_of_terms(state):
        return fault
    everywhere = frozenset[int]().union(*(s.table | s.files for s in state.sites))
    if state.acked - everywhere:
        return "a row that was acknowledged is nowhere"
    leader = _leader(state)
    if leader is None:
        return ""
    if state.sink - leader.table:
        return "a sink holds a row that the leader has not"
    for site in state.sites:
        if site.role == "follower" and site.term == leader.term and _cut_is_done(site):
            end = min(seal(site), seal(leader))
            if {r for r in site.table if r <= end} != {r for r in leader.table if r <= end}:
                return "a follower differs from its leader"
    return ""


def _cut_is_done(site: Site) -> bool:
    return site.term == FIRST_TERM or seal(site) >= site.term * 10


def _stands_still(state: State) -> str:
    if any(s.claimed for s in state.sites):
        return "a promotion stands still"
    leader = _leader(state)
    if leader is None:
        return ""
    if any(b.state in ("open", "staged") for b in leader.blocks):
        return "a leader stands still"
    if any(seal(s) != seal(leader) for s in state.sites if s.role == "follower"):
        return "a follower stands still"
    return ""


# --- ingest and delivery ---


def _publish(state: State, n: int, site: Site) -> Iterator[State]:
    """Whoever staged a block publishes it, when it goes on: the ledger is asked only after."""
    for number in site.late:
        after = site._replace(late=site.late - {number}, table=site.table | {number})
        block = site.get(number)
        acked = state.acked
        fault = ""
        if number <= site.mark and number not in site.table:
            fault = "a row came in below a mark"
        if block is not None and block.state in ("staged", "done"):
            after = after.put(block._replace(state="done"))
            if site.role == "leader":
                acked |= {number}
        yield _with(state, n, after)._replace(acked=acked, fault=fault)


def _lead(state: State, n: int, site: Site, world: World, rules: Rules) -> Iterator[State]:
    record = state.record
    if record.term > site.term:  # it hears of that, stops, and a person lets it rejoin
        yield _with(state, n, _rejoined(site))
    ours = record.term == site.term and record.site == n
    if record.term < site.term and world.restored:  # the arbiter was restored
        anew = Record(site.term, n, before=record.term, members=frozenset())
        yield _with(state, n, site._replace(holds=True))._replace(record=anew)
    if ours and not (record.fresh and record.leads and site.holds):
        yield _with(state, n, site._replace(holds=True))._replace(record=record._replace(fresh=True, leads=True))
    fault = "a write passes after another site leads" if any(s.term > site.term for s in _leaders(state)) else ""
    for block in site.blocks:
        if block.state == "open" and (site.holds or not rules.the_commit_point_asks_for_the_lease):
            staged = site.put(block._replace(state="staged"))
            yield _with(state, n, staged._replace(late=site.late | {block.number}))._replace(fault=fault)
    yield from _deliver(state, n, site, world, rules)
    yield from _hear(state, n, site, rules)


def _hear(state: State, n: int, site: Site, rules: Rules) -> Iterator[State]:
    """The first word of a site that was made again."""
    for m, follower in enumerate(state.sites):
        if follower.role == "follower" and follower.instance != site.heard[m]:
            told = 0 if rules.a_site_made_again_tells_anew else site.told[m]
            heard = (*site.heard[:m], follower.instance, *site.heard[m + 1 :])
            yield _with(state, n, site._replace(told=(*site.told[:m], told, *site.told[m + 1 :]), heard=heard))


def _deliver(state: State, n: int, site: Site, world: World, rules: Rules) -> Iterator[State]:
    """The sink refuses nobody here: with members to wait for it does not have to."""
    until = seal(site)
    if rules.sinks_wait_for_members:
        until = min([until, *(site.told[f] for f in site.waits_for)])
    if not rules.a_promise_reads_its_limit_itself:
        if until != site.limit:
            yield _with(state, n, site._replace(limit=until))
        until = site.limit
    rows = frozenset(r for r in site.table if r <= until)
    if rows - state.sink or until > site.promised:
        after = _with(state, n, site._replace(promised=max(until, site.promised)))
        if world.members:
            yield after  # promised, and not sent yet
        yield after._replace(sink=state.sink | rows)


# --- follow ---


def _follow(state: State, n: int, site: Site, rules: Rules) -> Iterator[State]:
    if site.claimed:
        return
    for m, leader in enumerate(state.sites):
        if m == n or leader.role != "leader" or leader.term < site.term:
            continue
        if leader.bound > site.bound:
            yield from _record(state, n, site, leader, rules)
        if leader.term == site.term:
            for block in site.blocks:
                if block.state == "open" and block.number in leader.table:
                    staged = site.put(block._replace(state="staged"))
                    yield _with(state, n, staged._replace(late=site.late | {block.number}))
    yield from _carry_out(state, n, site, rules)


def _record(state: State, n: int, site: Site, leader: Site, rules: Rules) -> Iterator[State]:
    """An offer from its bound on: whole, up to what is open at the leader."""
    upto = min((b.number - 1 for b in leader.blocks if b.state in ("open", "staged")), default=leader.bound)
    if upto <= site.bound:
        return
    items = [b for b in leader.blocks if site.bound < b.number <= upto and b.state == "done"]
    if not rules.followers_pass_cuts_on:
        items = [b for b in items if b.cut is None or b.number == leader.term * 10]
    after = site._replace(bound=upto, term=leader.term)
    after = after.put(*(item._replace(state="open") for item in items))
    if not rules.recording_a_cut_settles_nothing:
        cuts = [b for b in items if b.cut is not None]
        doomed = [b for b in after.blocks if b.cut is None and any(_is_cut_out(b.number, cut) for cut in cuts)]
        after = after.put(*(b._replace(state="gone") for b in doomed if b.state in ("open", "staged")))
    yield _with(state, n, after)


def _is_cut_out(number: int, block: Block) -> bool:
    assert block.cut is not None
    return block.cut.above < number < block.number and number not in block.cut.keeps


def _carry_out(state: State, n: int, site: Site, rules: Rules) -> Iterator[State]:
    for block in _open_cuts(site):
        if not rules.a_cut_waits_for_lower_blocks or not _waits_for(site, block, ("open", "staged"), rules):
            yield _with(state, n, _carried_out(site, block, rules))


def _open_cuts(site: Site) -> list[Block]:
    return [b for b in site.blocks if b.cut is not None and b.state == "open"]


def _waits_for(site: Site, cut: Block, states: tuple[str, ...], rules: Rules) -> list[Block]:
    lower = [b for b in site.blocks if b.number < cut.number and b.state in states]
    if rules.a_cut_does_not_wait_for_what_it_cuts_out:  # nor for what a later one does, that is recorded, too
        cuts = [c for c in _open_cuts(site) if c.number >= cut.number]
        lower = [b for b in lower if b.cut is not None or not any(_is_cut_out(b.number, c) for c in cuts)]
    return lower


def _carried_out(site: Site, block: Block, rules: Rules) -> Site:
    others = frozenset(r for r in site.table if _is_cut_out(r, block))
    doomed = [b for b in site.blocks if b.cut is None and _is_cut_out(b.number, block)]
    after = site.put(*(b._replace(state="gone") for b in doomed))
    after = after.put(block._replace(state="done"))._replace(table=site.table - others)
    if rules.a_cut_sets_rows_aside:
        after = after._replace(files=site.files | others)
    if rules.a_cut_ends_late_publishers:  # by the epoch of the table
        after = after._replace(late=frozenset(r for r in after.late if not _is_cut_out(r, block)))
    return after


def _rejoined(site: Site) -> Site:
    """One transaction; its counter is its bound. What is open stays so until the cut is carried out."""
    return site._replace(role="follower", holds=False, **_NO_LEADER)


# --- promote ---


def _promote(state: State, n: int, site: Site, world: World, rules: Rules) -> Iterator[State]:
    record = state.record
    if site.asked and not site.claimed:
        yield from _take_the_term(state, n, site, world, rules)
    if not site.claimed:
        return
    lost = record.term != site.claimed
    if lost and rules.a_lost_claim_ends:
        yield _with(state, n, site._replace(claimed=0, asked=0))
    if rules.it_leads_in_the_record_before_it_leads and not (record.leads and not lost):
        if not lost:
            yield state._replace(record=record._replace(leads=True, fresh=True))
        return  # without the rule it may have looked before, and go on only now
    if not rules.a_promotion_settles_cuts_in_its_transaction:
        for block in _open_cuts(site):
            if not _waits_for(site, block, ("staged",), rules):
                yield _with(state, n, _carried_out(site, block, rules))
    needed = ("staged",) if rules.a_promotion_needs_no_leader_for_that else ("open", "staged")
    cuts = _open_cuts(site)
    staged = [b.number for b in site.blocks if b.state == "staged"]  # what a cut cuts out is published by nobody
    to_publish = any(not any(_is_cut_out(number, cut) for cut in cuts) for number in staged)
    waits = any(_waits_for(site, cut, needed, rules) for cut in cuts) or to_publish
    if not waits and (rules.a_promotion_settles_cuts_in_its_transaction or not cuts):
        yield _with(state, n, _leading(site, record, rules))


def _take_the_term(state: State, n: int, site: Site, world: World, rules: Rules) -> Iterator[State]:
    record = state.record
    if not world.arbiter:  # a person says that the leader is stopped, and may be wrong
        yield _with(state, n, _leading(site._replace(claimed=_next_term(site.term, n, rules)), record, rules))
        return
    asks_for_another = record.term != site.asked and rules.promote_replaces_the_term_that_was_asked
    if asks_for_another or (not _is_member(site, n, record, rules) and rules.promote_is_for_members):
        yield _with(state, n, site._replace(asked=0))
        return
    if record.fresh and rules.promote_waits_for_the_lease:
        return
    last = record.term if record.leads or not rules.a_claim_that_does_not_lead_can_be_replaced else record.before
    if site.term > last and rules.an_older_record_names_no_members:
        yield _with(state, n, site._replace(asked=0))
        return
    if site.term < last and rules.promote_needs_the_cut_of_the_last_leader:
        blocked = not record.leads and site.term == record.before
        fault = "a claim that never led keeps everybody from leading" if blocked else ""
        yield _with(state, n, site._replace(asked=0))._replace(fault=fault)
        return
    term = _next_term(max(record.term, site.term), n, rules)
    taken = Record(term, n, leads=False, before=last, members=record.members)
    fault = "" if record.term == site.asked else "a leader was replaced that nobody asked to replace"
    yield _with(state, n, site._replace(claimed=term))._replace(record=taken, fault=fault)


def _is_member(site: Site, n: int, record: Record, rules: Rules) -> bool:
    if rules.a_member_is_one_instance:
        return (n, site.instance) in record.members
    return n in {number for number, _ in record.members}


def _next_term(term: int, n: int, rules: Rules) -> int:
    return next(t for t in range(term + 1, term + 4) if t % 3 == n or not rules.terms_belong_to_sites)


def _leading(site: Site, record: Record, rules: Rules) -> Site:
    """One transaction."""
    number = site.claimed * 10
    above = seal(site)
    if rules.a_promotion_carries_out_recorded_cuts:
        for block in _open_cuts(site):
            site = _carried_out(site, block, rules)
    keeps = frozenset(r for r in site.table if r > above)
    cut = Cut(above, keeps if rules.a_cut_keeps_what_lies_above_the_seal else frozenset())
    given_up = [b._replace(state="gone") for b in site.blocks if b.state == "open"]
    after = site.put(*given_up, Block(number, "done", cut))
    return after._replace(
        role="leader",
        term=site.claimed,
        bound=number,
        asked=0,
        claimed=0,
        **_NO_LEADER | {"waits_for": frozenset(number for number, _ in record.members) - {site.claimed % 3}},
    )


# --- persons, clients, time ---


def _persons_and_clients(state: State, world: World, rules: Rules) -> Iterator[State]:
    record = state.record
    if any(s.asked for s in state.sites):  # time passes; the holder's own clock runs out first
        holder = state.sites[record.site]
        if holder.holds:
            yield _with(state, record.site, holder._replace(holds=False))
        elif record.fresh:
            yield state._replace(record=record._replace(fresh=False))
    for n, site in enumerate(state.sites):
        if site.role == "leader" and state.writes < world.writes:
            after = site._replace(bound=site.bound + 1).put(Block(site.bound + 1, "open"))
            yield _with(state, n, after)._replace(writes=state.writes + 1)
        if site.role == "follower" and not site.asked and state.promotes < world.promotes and n in world.candidates:
            asked = _with(state, n, site._replace(asked=record.term))
            yield asked._replace(promotes=state.promotes + 1)
        if site.role == "leader" and n != WRITTEN_OFF and world.members:
            yield from _change_members(state, n, site, world, rules)
        if site.role == "follower" and n == WRITTEN_OFF and not site.claimed and state.lost < world.lost:
            yield _with(state, n, Site(instance=site.instance + 1))._replace(lost=state.lost + 1)
    if state.restored < world.restored and _all_follow(state):
        yield state._replace(record=Record(), restored=state.restored + 1)


def _all_follow(state: State) -> bool:
    """Whoever has not heard of the last leader cannot know that the record is older: a person must not restore it
    before."""
    leader = _leader(state)
    return leader is not None and all(s.term == leader.term and not s.asked for s in state.sites)


def _change_members(state: State, n: int, site: Site, world: World, rules: Rules) -> Iterator[State]:
    """One follower is removed, waited for, or written as member: each by a process of its own, in steps."""
    if state.record.term != site.term:
        return
    yield from _go_on_changing(state, n, site, rules)
    if state.changes == world.members:
        return
    counted = state._replace(changes=state.changes + 1)
    is_waited_for = WRITTEN_OFF in site.waits_for
    has_what_was_promised = site.told[WRITTEN_OFF] >= site.promised or not rules.a_member_has_what_was_promised
    is_candidate = has_what_was_promised and not (site.removing and rules.who_is_removed_is_no_candidate)
    if is_candidate and (is_waited_for or not rules.waited_for_before_member):
        yield _with(counted, n, site._replace(tending=site.heard[WRITTEN_OFF]))
    if is_waited_for and not site.removing:
        yield _with(counted, n, site._replace(removing=1))
        if not rules.written_off_before_it_is_not_waited_for:
            yield _with(counted, n, site._replace(removing=2))
    if not is_waited_for:
        yield _with(counted, n, site._replace(waits_for=site.waits_for | {WRITTEN_OFF}))


def _go_on_changing(state: State, n: int, site: Site, rules: Rules) -> Iterator[State]:
    record = state.record
    others = frozenset(m for m in record.members if m[0] != WRITTEN_OFF)
    if site.tending is not None:
        member = record._replace(members=others | {(WRITTEN_OFF, site.tending)})
        yield _with(state, n, site._replace(tending=None))._replace(record=member)
    if site.removing == 1:
        # The put of whoever tends is refused by now.
        tending = None if rules.a_refused_put_is_computed_anew else site.tending
        after = _with(state, n, site._replace(removing=2, tending=tending))
        yield after._replace(record=record._replace(members=others))
    if site.removing == 2:
        yield _with(state, n, site._replace(removing=0, waits_for=site.waits_for - {WRITTEN_OFF}))
