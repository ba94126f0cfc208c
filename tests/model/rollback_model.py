"""Who notices a rollback, as a small state machine. Blocks are published by processes that may sleep between any two of
their steps, maintenance moves the tag, and the owner of the table deletes, rolls back, expires everything that can be
expired, takes our tag away. The catalog, or the ledger, is copied and restored once. Somebody accepts a table as it is.

The decision is not modelled: it is `tables.lineage.judge` itself, on tiny tables. A block has one row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache

from strandline.core.types import (
    Anchor,
    BlockHead,
    BlockId,
    BlockKind,
    DatasetId,
    Published,
    Seq,
    SeqRange,
    ShardId,
    SnapshotId,
)
from strandline.iceberg.metadata.lineage import Holds, LineageVerdict, Links, Memory, NotKnown, RolledBack, judge
from strandline.iceberg.metadata.table_metadata import SETTLED_TAG, SnapshotView, TableView
from tests.model.explore import Explored, explore


@dataclass(frozen=True, slots=True)
class Snapshot:
    parent: int | None
    sequence: int
    blocks: frozenset[int]
    """Of which it has the row."""


@dataclass(frozen=True, slots=True)
class Table:
    """As one metadata file has it; snapshots are named by their place in `State.snapshots`."""

    present: frozenset[int] = frozenset()
    main: int | None = None
    tag: int | None = None
    last: int = 0
    ever: frozenset[int] = frozenset()
    """What earlier metadata files had."""


@dataclass(frozen=True, slots=True)
class Ledger:
    anchor: tuple[int, int] | None = None
    published: tuple[tuple[int, int], ...] = ()
    """Block and snapshot, newest first."""
    doubt: bool = False
    """A block was published while nothing told; shown until somebody accepts the table."""


@dataclass(frozen=True, slots=True)
class Process:
    at: str = "idle"
    known: Ledger = Ledger()
    table: Table = Table()
    """As it was read: for the publisher, what its commit replaces."""
    block: int = 0


@dataclass(frozen=True, slots=True)
class State:
    snapshots: tuple[Snapshot, ...] = ()
    table: Table = Table()
    ledger: Ledger = Ledger()
    publishers: tuple[Process, ...] = (Process(), Process())
    maintenance: Process = Process()
    reader: Process = Process()
    owed: frozenset[int] = frozenset()
    """Snapshots of blocks that were acknowledged, and that nobody gave up: main is to descend from them."""
    given_up: int = 0
    """Snapshots below it were made before somebody accepted the table without them."""
    set_back: bool = False
    """Somebody set main, or the whole catalog, back, and nobody has accepted it."""
    catalog_copy: Table | None = None
    ledger_copy: Ledger | None = None
    left: tuple[tuple[str, int], ...] = ()
    """How often each thing may still happen."""

    def spend(self, what: str) -> tuple[tuple[str, int], ...] | None:
        found = dict(self.left)
        if not found.get(what):
            return None
        return tuple(sorted((found | {what: found[what] - 1}).items()))


@dataclass(frozen=True, slots=True)
class Rules:
    tag_moves_only_forward: bool = True
    """Not where main does not descend from it: a publish on top would cover a rollback up."""
    ledger_remembers: bool = True
    ledger_is_read_first: bool = True
    publish_moves_the_tag: bool = True
    is_remote: bool = False
    """A REST catalog compares references that a commit sets, not all of the metadata."""
    tag_is_compared: bool = True
    has_log: bool = True
    doubt_is_recorded: bool = True
    happens: tuple[tuple[str, int], ...] = ()
    snapshots_max: int = 5
    publishers: int = 2


def view_of(snapshots: tuple[Snapshot, ...], table: Table) -> TableView:
    def seen(n: int) -> SnapshotView:
        one = snapshots[n]
        parent = None if one.parent is None else SnapshotId(one.parent)
        return SnapshotView(SnapshotId(n), parent, "append", None, 0, {}, one.sequence)

    refs = {"main": table.main, SETTLED_TAG: table.tag}
    return TableView(
        "uuid", "/", 2, {}, {name: SnapshotId(s) for name, s in refs.items() if s is not None},
        {SnapshotId(n): seen(n) for n in table.present}, {"fields": []}, 0, sequence=table.last,
    )  # fmt: skip


def memory_of(ledger: Ledger, rules: Rules) -> Memory:
    anchor = None if ledger.anchor is None or not rules.ledger_remembers else Anchor(*_typed(ledger.anchor))
    return Memory(anchor, [_published(b, s) for b, s in ledger.published])


def _typed(anchor: tuple[int, int]) -> tuple[SnapshotId, int]:
    return SnapshotId(anchor[0]), anchor[1]


@cache
def _published(block: int, snapshot: int) -> Published:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    head = BlockHead(
        BlockId(block),
        DatasetId(1),
        SeqRange(Seq(block), Seq(block)),
        BlockKind.BATCH,
        str(block),
        None,
        at,
        ShardId(0),
    )
    return Published(head, 1, SnapshotId(snapshot), at)


def verdict(state: State, table: Table, ledger: Ledger, rules: Rules) -> LineageVerdict:
    def earlier() -> Iterator[Links]:
        if rules.has_log:
            yield {
                SnapshotId(n): (None if (p := state.snapshots[n].parent) is None else SnapshotId(p),
                                state.snapshots[n].sequence)
                for n in table.ever
            }  # fmt: skip

    def all_have_rows(blocks: object) -> bool:
        held = frozenset() if table.main is None else state.snapshots[table.main].blocks
        return all(int(r.lo) in held for r in blocks)  # type: ignore[attr-defined]

    return judge(view_of(state.snapshots, table), memory_of(ledger, rules), earlier, all_have_rows)


def _descends(state: State, main: int | None, of: int) -> bool:
    while main is not None and main != of:
        main = state.snapshots[main].parent
    return main == of


def steps(state: State, rules: Rules) -> Iterator[State]:
    for n, one in enumerate(state.publishers):
        for after in _publisher(state, one, 1 + n, rules):
            changed, process = after
            others = (*state.publishers[:n], process, *state.publishers[n + 1 :])
            yield replace(changed, publishers=others)
    yield from _maintenance(state, rules)
    yield from _reader(state, rules)
    yield from _owner(state, rules)
    yield from _person(state)
    yield from _restored(state)


def _commit(state: State, table: Table, **changes: object) -> State:
    """One more metadata file."""
    return replace(state, table=replace(table, ever=table.ever | table.present, **changes))  # type: ignore[arg-type]


def _grow(state: State, parent: int | None, blocks: frozenset[int]) -> tuple[State, int, int]:
    sequence = state.table.last + 1
    made = Snapshot(parent, sequence, blocks)
    return replace(state, snapshots=(*state.snapshots, made)), len(state.snapshots), sequence


def _publisher(state: State, one: Process, block: int, rules: Rules) -> Iterator[tuple[State, Process]]:
    match one.at:
        case "idle" if rules.ledger_is_read_first:
            yield state, Process("knows", known=state.ledger, block=block)
        case "idle":
            yield state, Process("knows", table=state.table, block=block)
        case "knows" if rules.ledger_is_read_first:
            yield state, replace(one, at="looked", table=state.table)
        case "knows":
            yield state, replace(one, at="looked", known=state.ledger)
        case "looked":
            yield from _publish(state, one, rules)
        case "landed":
            yield _mark(state, one), Process("done")


def _publish(state: State, one: Process, rules: Rules) -> Iterator[tuple[State, Process]]:
    if not _as_read(state.table, one.table, rules):
        yield state, Process()  # looked at again
        return
    if len(state.snapshots) == rules.snapshots_max:
        return
    found = verdict(state, one.table, one.known, rules)
    moves = rules.publish_moves_the_tag
    moves &= not rules.tag_moves_only_forward or not isinstance(found, RolledBack)
    if isinstance(found, NotKnown) and rules.doubt_is_recorded:
        state = replace(state, ledger=replace(state.ledger, doubt=True))
    table = state.table
    before = frozenset() if table.main is None else state.snapshots[table.main].blocks
    grown, made, sequence = _grow(state, table.main, before | {one.block})
    landed = _commit(
        grown, table, present=table.present | {made}, main=made, last=sequence, tag=made if moves else table.tag
    )
    yield landed, replace(one, at="landed", table=replace(landed.table, ever=frozenset()))


def _as_read(now: Table, read: Table, rules: Rules) -> bool:
    if not rules.is_remote:
        return now == read
    return now.main == read.main and (now.tag == read.tag or not rules.tag_is_compared)


def _mark(state: State, one: Process) -> State:
    """Acknowledged: from here on it is owed. The ledger hears where the tag was, unless it knows of a newer one."""
    made = one.table.main
    assert made is not None
    ledger = _heard(state, state.ledger, one.table.tag)
    ledger = replace(ledger, published=((one.block, made), *ledger.published))
    return replace(state, ledger=ledger, owed=state.owed | ({made} if made >= state.given_up else set()))


def _heard(state: State, ledger: Ledger, tag: int | None) -> Ledger:
    if tag is None or (ledger.anchor is not None and ledger.anchor[1] >= state.snapshots[tag].sequence):
        return ledger
    return replace(ledger, anchor=(tag, state.snapshots[tag].sequence))


def _maintenance(state: State, rules: Rules) -> Iterator[State]:
    """The tag alone is moved; over REST, main is not compared."""
    one, table = state.maintenance, state.table
    match one.at:
        case "idle" if (left := state.spend("maintain")) is not None:
            yield replace(state, maintenance=Process("knows", state.ledger), left=left)
        case "knows":
            if isinstance(verdict(state, table, one.known, rules), Holds) and table.main not in (None, table.tag):
                yield replace(state, maintenance=replace(one, at="looked", table=table))
        case "looked":
            same = (table.tag == one.table.tag or not rules.tag_is_compared) if rules.is_remote else table == one.table
            if not same or one.table.main not in table.present:
                yield replace(state, maintenance=Process())
                return
            moved = _commit(state, table, tag=one.table.main)
            yield replace(moved, maintenance=Process("moved", table=replace(one.table, ever=frozenset())))
        case "moved":
            ledger = _heard(state, state.ledger, one.table.main)
            yield replace(state, ledger=ledger, maintenance=Process())


def _reader(state: State, rules: Rules) -> Iterator[State]:
    """A check whose two reads are apart."""
    match state.reader.at:
        case "idle" if (left := state.spend("read")) is not None:
            known = Process("knows", known=state.ledger, table=state.table)
            yield replace(state, reader=known, left=left)
        case "knows" if rules.ledger_is_read_first:
            yield replace(state, reader=replace(state.reader, at="looked", table=state.table))
        case "knows":
            yield replace(state, reader=replace(state.reader, at="looked", known=state.ledger))
        case "looked":
            yield replace(state, reader=Process())


def _owner(state: State, rules: Rules) -> Iterator[State]:
    table = state.table
    if table.main is None:
        return
    if (left := state.spend("delete")) is not None and len(state.snapshots) < rules.snapshots_max:
        grown, made, sequence = _grow(state, table.main, frozenset())
        yield replace(_commit(grown, table, present=table.present | {made}, main=made, last=sequence), left=left)
    if (left := state.spend("roll back")) is not None:
        for target in table.present - {table.main}:
            if state.snapshots[target].sequence < state.snapshots[table.main].sequence:
                back = _commit(state, table, main=target)
                yield replace(back, left=left, set_back=True)
    if (left := state.spend("expire")) is not None:
        kept = frozenset(s for s in (table.main, table.tag) if s is not None)
        if kept != table.present:
            yield replace(_commit(state, table, present=kept), left=left)
    if table.tag is not None and (left := state.spend("remove the tag")) is not None:
        yield replace(_commit(state, table, tag=None), left=left)


def _person(state: State) -> Iterator[State]:
    """Takes the table as it is: the tag first, the ledger then; the ledger forgets what was published before."""
    table = state.table
    if state.set_back and table.main is not None and (left := state.spend("accept")) is not None:
        tagged = _commit(state, table, tag=table.main)
        ledger = Ledger((table.main, max(table.last, state.snapshots[table.main].sequence)))
        yield replace(tagged, ledger=ledger, owed=frozenset(), given_up=len(state.snapshots), set_back=False, left=left)


def _restored(state: State) -> Iterator[State]:
    if state.catalog_copy is None and (left := state.spend("restore the catalog")) is not None:
        yield replace(state, catalog_copy=state.table, left=left)
    elif state.catalog_copy is not None and state.catalog_copy != state.table and _nobody_writes(state):
        yield replace(state, table=state.catalog_copy, catalog_copy=None, set_back=True)
    if state.ledger_copy is None and (left := state.spend("restore the ledger")) is not None:
        yield replace(state, ledger_copy=state.ledger, left=left)
    elif state.ledger_copy is not None:
        yield replace(state, ledger=state.ledger_copy, ledger_copy=None)


def _nobody_writes(state: State) -> bool:
    """Whoever brings an old catalog back stops first what commits to it."""
    return all(one.at in ("idle", "done") for one in (*state.publishers, state.maintenance))


def in_doubt() -> State:
    """Two blocks were published, main was set back to the first, and two commits later everything else was expired."""
    snapshots = (
        Snapshot(None, 1, frozenset({2})),
        Snapshot(0, 2, frozenset({2, 3})),
        Snapshot(0, 3, frozenset()),
        Snapshot(2, 4, frozenset()),
    )
    table = Table(frozenset({1, 3}), main=3, tag=1, last=4, ever=frozenset(range(4)))
    return State(snapshots, table, Ledger((1, 2), ((3, 1), (2, 0))), owed=frozenset({0, 1}), set_back=True)


def explored(rules: Rules, first: State | None = None) -> Explored[State]:
    if first is None:
        first = State(left=tuple(sorted(rules.happens)), publishers=(Process(),) * rules.publishers)
    return explore(first, lambda state: steps(state, rules), lambda state: broken(state, rules))


def broken(state: State, rules: Rules) -> str:
    if state.reader.at == "looked" and not state.set_back and not dict(state.left).get("accept", 1):
        pass  # a check that began before somebody accepted the table may still refuse it, once
    elif state.reader.at == "looked" and not state.set_back:
        found = verdict(state, state.reader.table, state.reader.known, rules)
        if isinstance(found, RolledBack):
            return "a check whose two reads are apart refuses a table that nobody rolled back"
    return _wrong(state, verdict(state, state.table, state.ledger, rules), rules)


def _wrong(state: State, found: LineageVerdict, rules: Rules) -> str:
    lacks = any(not _descends(state, state.table.main, s) for s in state.owed)
    # One that was marked after somebody accepted the table without it is missing all the same.
    marked = any(not _descends(state, state.table.main, s) for _, s in state.ledger.published)
    if isinstance(found, RolledBack) and not state.set_back and not lacks and not marked:
        return "refused, though nobody rolled back"
    if isinstance(found, Holds) and lacks and not state.ledger.doubt:
        return "a rollback is not noticed"
    if isinstance(found, NotKnown) and rules.has_log:
        return "nothing tells, although every metadata file is there"
    return ""
