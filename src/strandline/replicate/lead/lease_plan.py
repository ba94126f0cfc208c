"""The arbiter's record with which a leader renews its lease. Pure. Rules have the numbers of docs/adr/0071."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from strandline.core.sites.arbiter import LeaderRecord, Member


@dataclass(frozen=True, slots=True)
class LeadingSite:
    """The site that leads, by its own ledger."""

    lake: str
    term: int
    number: int
    name: str
    address: str | None
    lease_seconds: float


@dataclass(frozen=True, slots=True)
class Replaced:
    """Another site has a higher term. This one must not commit rows, even if the other does not lead yet."""

    by: LeaderRecord


@dataclass(frozen=True, slots=True)
class Contradicts:
    """Two sites have the same term, so both have the same site number."""

    by: LeaderRecord


Members = Callable[[frozenset[Member]], frozenset[Member]]


def renewed(
    site: LeadingSite, record: LeaderRecord | None, members: Members = lambda m: m
) -> LeaderRecord | Replaced | Contradicts:
    """The record that renews the lease, with the members that `members` makes of the current ones."""
    if record is None:
        return _first(site, None, members(frozenset()))
    if record.term > site.term:
        return Replaced(record)
    if record.term < site.term:  # this site took over without an arbiter; members are those of its own term
        return _first(site, record.term, members(frozenset()))
    if record.site != site.number:
        return Contradicts(record)
    # Processes of one site may have different settings. A site that takes over must wait for the longest lease.
    lease = max(site.lease_seconds, record.lease_seconds)
    return replace(
        record, name=site.name, address=site.address, leads=True, members=members(record.members), lease_seconds=lease
    )


def _first(site: LeadingSite, before: int | None, members: frozenset[Member]) -> LeaderRecord:
    return LeaderRecord(
        site.lake, site.term, site.number, site.name, site.address, True, before, members, site.lease_seconds
    )
