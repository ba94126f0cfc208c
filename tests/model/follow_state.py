"""What the model of a leader and its follower is made of. A block of the leader has one row, so a row is its number.
Odd numbers are in the first shard, even ones in the second; purges are in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explore import quickly_replaced


@quickly_replaced
class Item(NamedTuple):
    """In an offer: a segment, or a purge of one row."""

    lo: int
    hi: int
    purges: int = 0
    """The row; 0: a segment."""


@quickly_replaced
class Offer(NamedTuple):
    after: int
    upto: int
    """-1: not read yet, where an offer is two reads."""
    items: tuple[Item, ...]


@quickly_replaced
class Range(NamedTuple):
    """A record of the leader's ledger."""

    lo: int
    hi: int
    state: str
    """`reserved`, `published`, `abandoned` or `purge`."""
    purges: int = 0


@quickly_replaced
class LeaderLedger(NamedTuple):
    counter: int = 0
    ranges: tuple[Range, ...] = ()
    purging: int = 0
    """The row that a purge recorded and may have deleted."""
    told: int = 0
    """How far the follower says to be."""


@quickly_replaced
class Leader(NamedTuple):
    ledger: LeaderLedger = LeaderLedger()
    copy: LeaderLedger | None = None
    restored: bool = False
    witness: int = 0
    branches: frozenset[int] = frozenset()
    table: frozenset[int] = frozenset()
    purged: tuple[tuple[int, int], ...] = ()
    """On the table: the row, and the number that the purge took first."""
    ever: frozenset[int] = frozenset()
    """Rows that were in the table at some time."""
    retained: int = 0
    """Rows at or below it were deleted by a rule."""
    rows: int = 0
    gave_up: int = 0


@quickly_replaced
class Block(NamedTuple):
    """A record of the follower's ledger."""

    lo: int
    hi: int
    purges: int
    state: str
    """`reserved`, `staged`, `published` or `abandoned`."""
    fence: int = 0


@quickly_replaced
class Ledger(NamedTuple):
    bound: int = 0
    blocks: tuple[Block, ...] = ()
    epoch: int = 0
    behind: int = 0
    """Where the witness was when the ledger was found behind it; 0: never."""

    @property
    def expected(self) -> int:
        """What the witness says if nothing was restored."""
        return max(self.bound, self.behind)

    def get(self, lo: int) -> Block | None:
        return next((b for b in self.blocks if b.lo == lo), None)

    def put(self, block: Block) -> Ledger:
        return self._replace(blocks=tuple(sorted((*(b for b in self.blocks if b.lo != block.lo), block))))


@quickly_replaced
class Branch(NamedTuple):
    lo: int
    epoch: int
    fence: int
    rows: frozenset[int]


@quickly_replaced
class Applier(NamedTuple):
    at: str = "idle"
    lo: int = 0
    hi: int = 0
    fence: int = 0
    epoch: int = 0
    rows: frozenset[int] = frozenset()


@quickly_replaced
class State(NamedTuple):
    leader: Leader = Leader()
    offers: frozenset[Offer] = frozenset()
    """Under way; each may arrive any number of times, or never."""
    ledger: Ledger = Ledger()
    copy: Ledger | None = None
    restored: bool = False
    witness: int = 0
    epoch: int = 0
    """On the follower's table, as its floor is."""
    floor: int = 0
    table: frozenset[int] = frozenset()
    branches: tuple[Branch, ...] = ()
    appliers: tuple[Applier, ...] = (Applier(), Applier())
    arrived: frozenset[int] = frozenset()
    """Rows that were in the follower's table at some time."""
    mark: int = 0
    """How far a consumer of the follower has read, by its own record."""
    troubles: int = 0
    fault: str = ""


@dataclass(frozen=True, slots=True)
class World:
    rows: int = 2
    ingested: bool = False
    """Before it begins: the world is deeper then, and not larger."""
    gives_up: int = 1
    purges: int = 0
    retains: bool = False
    """The leader."""
    follower_retains: bool = False
    merges: bool = False
    restores: bool = False
    """The follower's ledger, once, from any copy or from nothing."""
    troubles: int = 1
    """How often the follower is restored, or killed between its witness or its table and its ledger."""
    leader_restores: bool = False
    offers: int = 1
    """Under way at a time; each may arrive again until it is forgotten."""
    appliers: int = 2
    takes: int = 2
    """How often a block is taken in an epoch."""


@dataclass(frozen=True, slots=True)
class Rules:
    # offers
    upto_lies_below_open_blocks: bool = True
    an_offer_is_one_read: bool = True
    a_cut_offer_ends_where_it_is_cut: bool = True
    a_range_begins_behind_after: bool = True
    a_purge_is_not_merged_away: bool = True
    # recording
    recorded_only_at_the_bound: bool = True
    the_witness_is_raised_before: bool = True
    recovery_never_abandons_an_item: bool = True
    the_seal_waits_for_every_shard: bool = True
    # applying
    fences: bool = True
    takes_only_what_the_table_lacks: bool = True
    stays_above_its_floor: bool = True
    a_publish_looks_for_its_own_rows: bool = True
    a_publish_looks_for_its_own_rows_only: bool = True
    a_branch_carries_its_fence: bool = True
    settling_removes_every_branch: bool = True
    staged_without_a_branch_is_taken_again: bool = True
    a_purge_waits_for_lower_blocks: bool = True
    # a restored follower
    behind_it_raises_the_epoch: bool = True
    behind_it_has_no_seal: bool = True
    fences_carry_the_epoch: bool = True
    # the leader
    a_follower_holds_the_floor: bool = True
    it_tells_its_seal: bool = True
    a_purge_that_died_is_finished: bool = True
    a_resync_rolls_nothing_forward: bool = True
    a_resync_takes_purges_back: bool = True
