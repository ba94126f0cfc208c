"""Whom this site follows, its progress, and whether its leader answers: one read model for commands, API, pages and
metrics.

A follower knows its lag only while its leader answers. What is unknown is None, never 0.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from strandline.core.settings.lake_config import LakeConfig
from strandline.core.text.masking import masked
from strandline.ledger.engine import Connection, Ledger, utc_now
from strandline.ledger.replicate import cuts, leader_contact, sites
from strandline.ledger.replicate.cuts import CutFolder, PurgeGivenUp
from strandline.ledger.replicate.leader_contact import FollowStep
from strandline.status.followers import FollowerStatus, read_followers
from strandline.status.leadership import UNASKED, ArbiterStatus, Leadership, hidden, read_leadership

if TYPE_CHECKING:
    from strandline.ledger.replicate.following_report import FollowedShard

PURGES_MAX = 20  # named at once; the others are when these are settled
QUIET_AFTER = timedelta(seconds=60)  # Spark starts, or a large batch is applied, in less


@dataclass(frozen=True, slots=True)
class LeaderStatus:
    """The leader of this site, according to the last passes of the follower."""

    address: str  # a URL, or the path of its settings file
    answered_at: datetime | None  # within some seconds; None: never
    is_quiet: bool  # no answer lately
    failing_since: datetime | None  # None: the last pass did not fail
    failed_step: str | None  # ask, apply, tell
    error: str | None
    next_step: str | None


@dataclass(frozen=True, slots=True)
class FollowedStatus:
    """One shard of one dataset at this site."""

    dataset: str
    shard: int
    applied: int  # its items are applied up to here; 0: none of them
    bound: int  # the leader's items up to here are on record; 0: none of them
    sealed: int | None  # up to here this site has everything of the dataset
    leader_sealed: int | None  # the leader's seal, as last reported; None: it has none, or has not reported it
    is_behind: bool  # the ledger was lost or restored: no seal before it has caught up
    open_items: int  # recorded, and not applied yet
    open_rows: int | None  # in them
    lag_segments: int | None
    lag_rows: int | None
    lag_seconds: float | None


@dataclass(frozen=True, slots=True)
class PurgeStatus:
    """A purge of an earlier leader that the present leader does not know."""

    dataset: str
    number: int  # the sequence number that it took
    first: int  # rows between these may be at the leader and not here
    last: int


@dataclass(frozen=True, slots=True)
class SiteStatus:
    role: str = "leader"
    term: int = 1
    wait_for: str = "none"  # none, all: whether sinks of this site wait for its followers
    leader: LeaderStatus | None = None  # None at a leader
    shards: tuple[FollowedStatus, ...] = ()  # what it follows
    purges_given_up: tuple[PurgeStatus, ...] = ()  # until the leader has purged the same rows


LEADS = SiteStatus()


@dataclass(frozen=True, slots=True)
class ReplicationStatus:
    lake: str
    site: SiteStatus
    followers: tuple[FollowerStatus, ...]
    leadership: Leadership = UNASKED
    set_aside: tuple[CutFolder, ...] = ()  # rows and bodies of this site that a later leader has not; newest first


def load_replication(
    config: LakeConfig, ledger: Ledger, lake: str, arbiter: ArbiterStatus | None = None
) -> ReplicationStatus:
    """`arbiter`: its answer, if it was asked."""
    with ledger.read_consistent() as connection:
        return ReplicationStatus(
            lake,
            read_site(config, connection),
            read_followers(connection),
            read_leadership(connection, arbiter),
            tuple(cuts.list_cut_folders(connection)),
        )


def only_of(found: ReplicationStatus, datasets: Collection[str]) -> ReplicationStatus:
    """Only what concerns these datasets. The leader's errors are left out: they may name other datasets."""
    return replace(
        found,
        site=site_of(found.site, datasets),
        followers=tuple(f for f in found.followers if f.dataset in datasets),
        leadership=hidden(found.leadership),
        set_aside=tuple(s for s in found.set_aside if s.dataset in datasets),
    )


def site_of(site: SiteStatus, datasets: Collection[str]) -> SiteStatus:
    shards = tuple(s for s in site.shards if s.dataset in datasets)
    purges = tuple(p for p in site.purges_given_up if p.dataset in datasets)
    if site.leader is None:
        return replace(site, shards=shards, purges_given_up=purges)
    hidden = replace(site.leader, error=None, next_step=None)
    return replace(site, leader=hidden, shards=shards, purges_given_up=purges)


def read_site(config: LakeConfig, connection: Connection) -> SiteStatus:
    """In a fixed number of queries; at a leader in one."""
    site, wait_for = sites.get(connection), config.settings.deliver.wait_for
    if not site.follows:
        return SiteStatus(site.role.value, site.term, wait_for)
    from strandline.ledger.replicate.following_report import read_followed  # only the status of a follower pays for it

    now, contact = utc_now(), leader_contact.get(connection)
    failure = contact.failure
    patience = QUIET_AFTER + timedelta(seconds=config.settings.follow.poll_seconds)
    is_quiet = contact.answered_at is None or now - contact.answered_at > patience
    is_quiet = is_quiet or (failure is not None and failure.step is FollowStep.ASK)
    leader = LeaderStatus(
        masked(site.leader or ""),
        contact.answered_at,
        is_quiet,
        None if failure is None else failure.since,
        None if failure is None else failure.step.value,
        None if failure is None else failure.error,
        None if failure is None else failure.hint,
    )
    followed = read_followed(connection)
    shards = tuple(_shard(s, now, is_quiet=is_quiet) for s in followed)
    given_up = cuts.purges_given_up(connection, list({s.of.dataset: None for s in followed}))
    purges = tuple(map(_purge, given_up[:PURGES_MAX]))
    return SiteStatus(site.role.value, site.term, wait_for, leader, shards, purges)


def _purge(p: PurgeGivenUp) -> PurgeStatus:
    return PurgeStatus(p.dataset.name, p.number, p.ranges[0].lo, p.ranges[-1].hi)


def _shard(s: FollowedShard, now: datetime, *, is_quiet: bool) -> FollowedStatus:
    # A leader that does not answer may have more, and one with a seal above the bound has.
    is_known = not is_quiet and s.of.is_offered and s.of.bound >= (s.of.leader_seal or 0)
    seconds = None
    if is_known:
        seconds = 0.0 if s.oldest is None else max(0.0, (now - s.oldest).total_seconds())
    return FollowedStatus(
        s.of.dataset.name,
        s.shard,
        s.mark,
        s.of.bound,
        s.seal,
        s.of.leader_seal,
        s.of.witnessed is not None,
        s.open_items,
        s.open_rows,
        s.open_items if is_known else None,
        s.open_rows if is_known else None,
        seconds,
    )
