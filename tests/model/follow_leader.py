"""The leader in the model of replication: ingest, abandoned blocks, purge, retention, merged records, a ledger that is
restored from a copy, and what it offers. That ingest itself is sound is the matter of another model.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.follow_state import Item, Leader, LeaderLedger, Offer, Range, Rules, World

LIVE = ("published", "purge")


def sealed(ledger: LeaderLedger) -> int:
    below = _below_open(ledger)
    return max((r.hi for r in ledger.ranges if r.state in LIVE and r.hi <= below), default=0)


def _below_open(ledger: LeaderLedger) -> int:
    return min((r.lo - 1 for r in ledger.ranges if r.state == "reserved"), default=ledger.counter)


def upto(ledger: LeaderLedger, rules: Rules) -> int:
    return _below_open(ledger) if rules.upto_lies_below_open_blocks else ledger.counter


def offers(ledger: LeaderLedger, after: int, rules: Rules) -> Iterator[Offer]:
    """Whole, and cut short."""
    end = upto(ledger, rules)
    if end <= after:
        return
    items = tuple(_item(r, after, rules) for r in ledger.ranges if r.state in LIVE and after < r.hi <= end)
    yield Offer(after, end if rules.an_offer_is_one_read else -1, items)
    for n in range(1, len(items)):
        cut = items[n - 1].hi if rules.a_cut_offer_ends_where_it_is_cut else end
        yield Offer(after, cut, items[:n])


def _item(record: Range, after: int, rules: Rules) -> Item:
    lo = max(record.lo, after + 1) if rules.a_range_begins_behind_after else record.lo
    return Item(lo, record.hi, record.purges)


def steps(leader: Leader, world: World, rules: Rules) -> Iterator[Leader]:
    if leader.ledger.counter != leader.witness:
        yield _resynced(leader, rules)
        return
    yield from _ingest(leader, world)
    yield from _begin_purge(leader, world)
    yield from finish_purge(leader, rules)
    yield from _retain(leader, world, rules)
    yield from _merge(leader, world, rules)
    if world.leader_restores and leader.copy is None:
        yield leader._replace(copy=leader.ledger)
    if leader.copy is not None and not leader.restored and leader.copy != leader.ledger:
        yield leader._replace(ledger=leader.copy, restored=True)


def _take(leader: Leader, *records: Range, ledger: LeaderLedger | None = None) -> Leader:
    """One more number."""
    before = ledger or leader.ledger
    number = before.counter + 1
    ranges = tuple(sorted((*before.ranges, *records)))
    return leader._replace(ledger=before._replace(counter=number, ranges=ranges), witness=number)


def _put(ledger: LeaderLedger, record: Range) -> LeaderLedger:
    return ledger._replace(ranges=tuple(sorted((*(r for r in ledger.ranges if r.lo != record.lo), record))))


def _ingest(leader: Leader, world: World) -> Iterator[Leader]:
    ledger = leader.ledger
    if leader.rows < world.rows:
        number = ledger.counter + 1
        yield _take(leader, Range(number, number, "reserved"))._replace(rows=leader.rows + 1)
    for record in ledger.ranges:
        if record.state != "reserved":
            continue
        row = record.lo
        staged = row in leader.branches
        if world.leader_restores and not staged:
            yield leader._replace(branches=leader.branches | {row})
        if staged or not world.leader_restores:
            yield leader._replace(
                ledger=_put(ledger, record._replace(state="published")),
                branches=leader.branches - {row},
                table=leader.table | {row},
                ever=leader.ever | {row},
            )
        if leader.gave_up < world.gives_up and row not in leader.table:
            abandoned = _put(ledger, record._replace(state="abandoned"))
            yield _take(leader, ledger=abandoned)._replace(gave_up=leader.gave_up + 1)


def _begin_purge(leader: Leader, world: World) -> Iterator[Leader]:
    ledger = leader.ledger
    if ledger.purging or len(leader.purged) >= world.purges:
        return
    for row in leader.table:
        if row <= sealed(ledger):
            begun = _take(leader, ledger=ledger._replace(purging=row))
            yield begun._replace(purged=(*leader.purged, (row, begun.witness)))


def finish_purge(leader: Leader, rules: Rules) -> Iterator[Leader]:
    ledger = leader.ledger
    row = ledger.purging
    if not row or ledger.counter != leader.witness:
        return
    if row in leader.table:
        yield leader._replace(table=leader.table - {row})
    elif rules.a_purge_that_died_is_finished:
        number = ledger.counter + 1
        yield _take(leader, Range(number, number, "purge", row), ledger=ledger._replace(purging=0))
    else:
        yield leader._replace(ledger=ledger._replace(purging=0))


def _retain(leader: Leader, world: World, rules: Rules) -> Iterator[Leader]:
    if not world.retains or leader.retained:
        return
    up_to = sealed(leader.ledger)
    if rules.a_follower_holds_the_floor:
        up_to = min(up_to, leader.ledger.told)
    if any(row <= up_to for row in leader.table):
        yield _take(leader)._replace(table=frozenset(r for r in leader.table if r > up_to), retained=up_to)


def _merge(leader: Leader, world: World, rules: Rules) -> Iterator[Leader]:
    """Two neighbours become one record."""
    ranges = leader.ledger.ranges
    kinds = ("published",) if rules.a_purge_is_not_merged_away else LIVE
    for n in range(len(ranges) - 1 if world.merges else 0):
        one, other = ranges[n], ranges[n + 1]
        if one.state == "published" and other.state in kinds:
            merged = (*ranges[:n], Range(one.lo, other.hi, "published"), *ranges[n + 2 :])
            yield leader._replace(ledger=leader.ledger._replace(ranges=merged))


def _resynced(leader: Leader, rules: Rules) -> Leader:
    """The ledger is behind the witness: the numbers between become one recovered range."""
    ledger, table, branches = leader.ledger, leader.table, leader.branches
    gap = range(ledger.counter + 1, leader.witness + 1)
    in_doubt = {r.lo for r in ledger.ranges if r.state == "reserved"} | {n for n in branches if n in gap}
    if not rules.a_resync_rolls_nothing_forward:
        table |= branches & in_doubt
    for record in ledger.ranges:
        if record.state == "reserved":
            found = "published" if record.lo in table else "abandoned"
            ledger = _put(ledger, record._replace(state=found))
    forgotten = [row for row, number in leader.purged if number in gap]
    if forgotten and rules.a_resync_takes_purges_back:
        ledger = ledger._replace(purging=forgotten[-1])
    after = leader._replace(table=table, branches=branches - in_doubt, ever=leader.ever | table)
    # It ends with a number of its own, above any that a follower has: else the follower's seal would stay behind.
    recovered = Range(gap[0], gap[-1] + 1, "published")
    return _take(after, recovered, ledger=ledger._replace(counter=leader.witness))
