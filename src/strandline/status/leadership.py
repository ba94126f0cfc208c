"""Who leads, according to this site's ledger and to the arbiter. For commands, API, pages and metrics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from strandline.core.sites.arbiter import LeaderRecord
from strandline.ledger.engine import Connection
from strandline.ledger.replicate import followers, sites

if TYPE_CHECKING:
    from strandline.replicate.arbiter.watch import ArbiterAnswer
    from strandline.replicate.facade import Replication


@dataclass(frozen=True, slots=True)
class ArbiterStatus:
    place: str
    trouble: str | None  # why its record could not be read
    record: LeaderRecord | None  # None: there is none, or the arbiter did not answer
    lease_seconds: float  # for how long a leader may take rows without it
    lease_seconds_left: float | None  # of this process; None: it has no lease


@dataclass(frozen=True, slots=True)
class CandidateStatus:
    """A follower of all datasets, which has a number of its own."""

    name: str
    number: int
    member: bool  # the arbiter's record names it: it may be promoted


@dataclass(frozen=True, slots=True)
class Leadership:
    role: str
    term: int
    number: int | None  # of this site; None: it begins no terms
    superseded_term: int | None  # another site leads in this higher term, and this one takes no more rows
    superseded_by: str | None  # that site's address or name
    promoting: bool  # a promotion of this site is under way
    claimed_term: int | None  # the term that it has taken
    candidates: tuple[CandidateStatus, ...]  # at a leader
    arbiter: ArbiterStatus | None  # None: there is none, or it was not asked

    @property
    def replaced(self) -> str | None:
        """Who leads in place of this site, as text; None if no other leader is known."""
        return sites.successor_text(self.term, self.superseded_term, self.superseded_by)


UNASKED = Leadership("leader", 1, None, None, None, False, None, (), None)


def read_leadership(connection: Connection, arbiter: ArbiterStatus | None) -> Leadership:
    site = sites.get(connection)
    known = () if site.follows else followers.list_followers(connection)
    return Leadership(
        site.role.value,
        site.term,
        site.own_number,
        site.superseded_term,
        site.superseded_by,
        site.promoting_term is not None,
        site.claimed_term,
        tuple(
            CandidateStatus(f.name, f.site_number, f.member)
            for f in known
            if f.site_number is not None and f.datasets is None
        ),
        arbiter,
    )


def ask_arbiter(replication: Replication) -> ArbiterStatus | None:
    """One call, which may take replication.arbiter_seconds_max. None without an arbiter."""
    from strandline.replicate.arbiter.watch import ask

    arbiter = replication.arbiter
    return None if arbiter is None else _status(replication, ask(arbiter))


def last_of_arbiter(replication: Replication) -> ArbiterStatus | None:
    """For servers: a recent answer of the arbiter, shared by all requests. None without an arbiter."""
    watch = replication.arbiter_watch
    return None if watch is None else _status(replication, watch.newest())


def _status(replication: Replication, found: ArbiterAnswer) -> ArbiterStatus:
    lease = replication.lease
    assert lease is not None  # a site with an arbiter has one
    return ArbiterStatus(found.place, found.trouble, found.record, lease.seconds, lease.seconds_left)


def hidden(found: Leadership) -> Leadership:
    """For readers who may see only some datasets: without names of other sites."""
    return replace(found, superseded_by=None, candidates=(), arbiter=None)
