"""What the model of delivery is made of: one lane, its ledger, its sink, a consumer, and deliverers on the way.

Everything is a tuple, since hundreds of thousands of these are compared. A range is (lo, hi), inclusive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

Range = tuple[int, int]
Held = tuple[int, frozenset[Range]]
"""Everything at or below the mark, and these objects."""


class Chunk(NamedTuple):
    id: int
    rows: Range
    state: str  # planned, landed, empty


class Intent(NamedTuple):
    after: int
    until: int
    chunks: tuple[Chunk, ...] = ()

    def settle(self, id: int, state: str) -> Intent:
        return self._replace(chunks=tuple(c._replace(state=state) if c.id == id else c for c in self.chunks))

    def landed(self) -> tuple[Range, ...]:
        return tuple(c.rows for c in self.chunks if c.state == "landed")

    def planned(self) -> tuple[Chunk, ...]:
        return tuple(c for c in self.chunks if c.state == "planned")


class Ledger(NamedTuple):
    mark: int = 0
    last: tuple[Range, ...] = ()
    """The ranges with rows of the last intent that had any."""
    intent: Intent | None = None
    token: int = 0
    ids: int = 0
    """The last id of a chunk; a restored ledger gives the same ones again."""
    stopped: bool = False


class Cut(NamedTuple):
    """An object at the sink, created once: how the rows after this mark of the sink are cut."""

    mark: int
    until: int
    ranges: tuple[Range, ...]


class Sink(NamedTuple):
    mark: int = 0
    objects: frozenset[Range] = frozenset()
    folder: int = 0
    """Files: only what lies in the folder of this token can be linked."""
    cuts: tuple[Cut, ...] = ()


class Deliverer(NamedTuple):
    at: str = "idle"
    token: int = 0
    ledger: int = 0
    intent: Intent | None = None
    last: tuple[Range, ...] = ()
    held_mark: int = 0
    held: frozenset[Range] = frozenset()
    chunk: Chunk | None = None


IDLE = Deliverer()


class State(NamedTuple):
    deliverers: tuple[Deliverer, ...] = (IDLE, IDLE)
    """By token: which of them it is makes no difference."""
    ledgers: tuple[Ledger, ...] = (Ledger(),)
    """The second is one that was replaced by a restored copy, and is still written to by those who knew it."""
    sink: Sink = Sink()
    sealed: int = 0
    deleted: int = 0
    """The row that a user deleted."""
    copy: Ledger | None = None
    restored: bool = False
    sink_copy: Sink | None = None
    sink_restored: bool = False
    leases: int = 0
    flying: tuple[int, Range] | None = None
    """An offer that nobody waits for any more: a request under way, or a task that ran twice."""
    consumed: frozenset[int] = frozenset()
    cursor: int = 0
    fault: str = ""

    # Most steps change one of the first three; this is several times as fast as `_replace`.

    def with_deliverer(self, index: int, deliverer: Deliverer) -> State:
        other = self[0][1 - index]
        pair = (deliverer, other) if deliverer.token < other.token else (other, deliverer)
        return State._make((pair, *self[1:]))

    def with_ledger(self, index: int, ledger: Ledger) -> State:
        ledgers = (*self[1][:index], ledger, *self[1][index + 1 :])
        return State._make((self[0], ledgers, *self[2:]))

    def with_sink(self, sink: Sink) -> State:
        return State._make((self[0], self[1], sink, *self[3:]))


@dataclass(frozen=True, slots=True)
class Rules:
    """Each can be taken away, to see what it is good for."""

    pins_the_cut: bool = True
    asks_what_is_held: bool = True
    subtracts: bool = True
    reads_marks_after_names: bool = True
    fences: bool = True
    asks_for_its_lease_after_fencing: bool = True
    takes_its_folder_away_before_the_mark: bool = True
    checks_the_token: bool = True
    a_lease_that_ran_out_is_none: bool = True
    marks_the_sink_first: bool = True
    stops_when_the_last_is_lacking: bool = True
    last_is_the_whole_intent: bool = True
    a_name_does_not_stand_for_the_mark: bool = True
    looks_again_before_the_mark: bool = True
    asks_before_it_calls_a_chunk_empty: bool = True
    records_empty_ranges: bool = True
    a_mark_within_a_range_is_a_conflict: bool = True
    fixes_the_cut_at_the_sink: bool = True
    the_cut_hangs_on_the_mark_of_the_sink: bool = True
    """And not on that of the ledger, which passes numbers of other lanes without a word to the sink."""
    looks_again_after_fixing_the_cut: bool = True
    lets_lie_what_it_put: bool = True


@dataclass(frozen=True, slots=True)
class World:
    """What can happen, and how often."""

    kind: str  # files, s3, postgres
    rows: int = 3
    leases: int = 2
    others: frozenset[int] = frozenset()
    """Numbers that are another lane's."""
    deletes: int = 0
    """The row that a user may delete; 0: none."""
    ledger_restored: bool = False
    both_ledgers_live: bool = False
    sink_restored: bool = False
    consumes: bool = True
    keeps_a_cursor: bool = True
    waits_for_the_mark: bool = True
    takes_away: bool = True
    tasks_run_twice: bool = False
    requests_linger: bool = True
    """S3, PostgreSQL: what a killed deliverer had sent may arrive later."""

    @property
    def keeps_ranges(self) -> bool:
        return self.kind == "postgres"


def overlap(a: Range, b: Range) -> bool:
    return a[0] <= b[1] and b[0] <= a[1]


def is_covered(rows: Range, mark: int, objects: Iterable[Range]) -> bool:
    return rows[1] <= mark or any(lo <= rows[0] and rows[1] <= hi for lo, hi in objects)


def rows_of(rows: Range, deleted: int, others: frozenset[int]) -> bool:
    return any(n != deleted and n not in others for n in range(rows[0], rows[1] + 1))


def is_lost(state: State, world: World, until: int) -> bool:
    """Whether a row that was said to be delivered can no more be seen by anyone."""
    seen = world.keeps_a_cursor and world.consumes
    objects = [o for o in state.sink.objects if not seen or o[1] > state.cursor]
    return any(
        n not in state.consumed
        and n != state.deleted
        and n not in world.others
        and not any(lo <= n <= hi for lo, hi in objects)
        for n in range(1, until + 1)
    )


def tilings(after: int, until: int, held: Held, subtracts: bool) -> Iterator[tuple[tuple[Range, str], ...]]:
    """The ways to cut what is beyond the mark: what is held is landed; a gap goes in one, or its first number alone."""
    found = sorted(o for o in held[1] if o[1] > max(after, held[0]) and o[0] <= until)
    if held[0] > after:
        found.insert(0, (after + 1, min(held[0], until)))
    if not subtracts and found:
        found = [(after + 1, found[-1][1])]
    for whole in (True, False):
        tiles: list[tuple[Range, str]] = []
        at = after + 1
        split = False
        for lo, hi in (*found, (until + 1, until + 1)):
            if at < lo:
                gap = (at, min(lo, until + 1) - 1)
                if whole or gap[0] == gap[1]:
                    tiles.append((gap, "planned"))
                else:
                    split = True
                    tiles += [((at, at), "planned"), ((at + 1, gap[1]), "planned")]
            if lo <= until:
                tiles.append(((max(lo, at), hi), "landed"))
            at = max(at, hi + 1)
        if whole or split:
            yield tuple(tiles)
