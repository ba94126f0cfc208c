"""What the model of a take-over is made of: three sites, an arbiter, one sink. A block has one row, and a number is ten
times its term and a count, so that the cut of a term comes before its rows. Site s takes the terms s, s + 3, s + 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explore import quickly_replaced

SITES = (0, 1, 2)
FIRST_TERM = 3


@quickly_replaced
class Cut(NamedTuple):
    above: int
    """Where the seal of the promoted site was."""
    keeps: frozenset[int]
    """Of what lies above, only these rows stay."""


@quickly_replaced
class Block(NamedTuple):
    number: int
    state: str
    """`open`, `staged`, `done` or `gone` (abandoned)."""
    cut: Cut | None = None


@quickly_replaced
class Site(NamedTuple):
    role: str = "follower"
    """Or `leader`."""
    term: int = FIRST_TERM
    """Of its own, or of the leader whose cut it recorded last."""
    bound: int = FIRST_TERM * 10
    """A leader's counter."""
    blocks: tuple[Block, ...] = ()
    table: frozenset[int] = frozenset()
    files: frozenset[int] = frozenset()
    """Rows that a cut set aside."""
    late: frozenset[int] = frozenset()
    """Staged rows that a process still has in hand, whatever the ledger says since."""
    mark: int = 0
    """How far a consumer has read here."""
    asked: int = 0
    """The term that a person wants this site to replace."""
    claimed: int = 0
    """The term that it took in the arbiter, until it leads."""
    holds: bool = False
    """By its own clock it has the lease."""
    waits_for: frozenset[int] = frozenset()
    told: tuple[int, ...] = (0, 0, 0)
    promised: int = 0
    """How far sinks may have been sent to."""
    instance: int = 0
    """Counts how often the site was made again, of nothing, under the number of the one that was lost."""
    heard: tuple[int, ...] = (0, 0, 0)
    """The instance of each site that `told` is of."""
    limit: int = 0
    """What a process has read of the limit of promises, and not promised yet. Only without the rule about it."""
    tending: int | None = None
    """A process has found that this instance of a follower may be a member, and has not put that yet."""
    removing: int = 0
    """1: a person removes a follower; 2: it is written off."""

    def get(self, number: int) -> Block | None:
        return next((b for b in self.blocks if b.number == number), None)

    def put(self, *blocks: Block) -> Site:
        numbers = {b.number for b in blocks}
        kept = (b for b in self.blocks if b.number not in numbers)
        return self._replace(blocks=tuple(sorted((*kept, *blocks), key=lambda b: b.number)))


@quickly_replaced
class Record(NamedTuple):
    """What the arbiter holds; written by conditional put."""

    term: int = FIRST_TERM
    site: int = 0
    leads: bool = True
    """False: it has taken the term, and the leader before it is not yet replaced."""
    before: int = 0
    """The term that it replaces."""
    members: frozenset[tuple[int, int]] = frozenset({(1, 0), (2, 0)})
    """Each with its instance."""
    fresh: bool = True
    """The lease has not run out since the record changed."""


@quickly_replaced
class State(NamedTuple):
    sites: tuple[Site, ...]
    record: Record = Record()
    sink: frozenset[int] = frozenset()
    acked: frozenset[int] = frozenset()
    writes: int = 0
    promotes: int = 0
    changes: int = 0
    lost: int = 0
    restored: int = 0
    fault: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class World:
    writes: int = 2
    promotes: int = 1
    members: int = 0
    """How often somebody begins to remove a follower, to wait for it again, or to write it as member."""
    lost: int = 0
    """How often that follower's disk is lost, and the site is made again."""
    restored: int = 0
    """How often the arbiter is restored from its first copy, when all sites have heard of the leader since."""
    candidates: tuple[int, ...] = (1, 2)
    arbiter: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    # the arbiter
    promote_waits_for_the_lease: bool = True
    promote_is_for_members: bool = True
    promote_replaces_the_term_that_was_asked: bool = True
    promote_needs_the_cut_of_the_last_leader: bool = True
    it_leads_in_the_record_before_it_leads: bool = True
    an_older_record_names_no_members: bool = True
    a_claim_that_does_not_lead_can_be_replaced: bool = True
    a_lost_claim_ends: bool = True
    the_commit_point_asks_for_the_lease: bool = True
    terms_belong_to_sites: bool = True
    # members
    sinks_wait_for_members: bool = True
    waited_for_before_member: bool = True
    a_member_has_what_was_promised: bool = True
    written_off_before_it_is_not_waited_for: bool = True
    who_is_removed_is_no_candidate: bool = True
    a_refused_put_is_computed_anew: bool = True
    seals_count_in_their_own_term: bool = True
    a_promise_reads_its_limit_itself: bool = True
    a_member_is_one_instance: bool = True
    a_site_made_again_tells_anew: bool = True
    # the cut
    a_cut_keeps_what_lies_above_the_seal: bool = True
    recording_a_cut_settles_nothing: bool = True
    a_cut_does_not_wait_for_what_it_cuts_out: bool = True
    a_cut_waits_for_lower_blocks: bool = True
    a_cut_sets_rows_aside: bool = True
    a_cut_ends_late_publishers: bool = True
    a_promotion_carries_out_recorded_cuts: bool = True
    a_promotion_settles_cuts_in_its_transaction: bool = True
    a_promotion_needs_no_leader_for_that: bool = True
    followers_pass_cuts_on: bool = True
