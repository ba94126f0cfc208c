"""Which followers may be promoted: sinks wait for them, and they have everything that sinks were promised
(docs/adr/0071, rule 18)."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from strandline.core.sites.arbiter import Member
from strandline.core.types import Seq
from strandline.ledger.deliver import lanes
from strandline.ledger.ingest import blocks, datasets
from strandline.ledger.replicate import followers
from strandline.ledger.replicate.followers import FollowerId, RegisteredFollower
from strandline.ledger.schema.replicate import follower

# It has a number, and nobody is removing it. A follower that lacks a dataset cannot lead the lake.
_CANDIDATE = (
    follower.c.removed_at.is_(None),
    follower.c.site_number.is_not(None),
    follower.c.datasets.is_(None),
    ~follower.c.leaving,
)


def wait_for_all(connection: sa.Connection) -> None:
    """Makes sinks wait for every follower that could become a member."""
    connection.execute(follower.update().where(*_CANDIDATE, ~follower.c.waited_for).values(waited_for=True))


def candidates(connection: sa.Connection) -> dict[Member, RegisteredFollower]:
    """The followers that sinks wait for, that could be members, and that have reported which site they are."""
    ids = {FollowerId(r.id) for r in connection.execute(sa.select(follower.c.id).where(*_CANDIDATE))}
    return {
        Member(f.site_number, f.instance): f
        for f in followers.list_followers(connection)
        if f.id in ids and f.waited_for and f.site_number is not None and f.instance is not None
    }


def choose(connection: sa.Connection, before: Collection[Member], *, sinks_wait: bool) -> frozenset[Member]:
    """The members from now on: candidates that have reported in this term, and have everything that sinks were
    promised. If sinks do not wait for followers, candidates may lack some of that. A member stays one while a dataset
    is new to it. `connection` must be one of `read_consistent`."""
    by_member = candidates(connection)
    lacking: set[FollowerId] = set()
    silent = {f.id for f in by_member.values() if f.reported_at is None}
    for d in datasets.list_datasets(connection):
        if blocks.sealed(connection, d.id) is None:
            continue  # no follower can lack anything of it
        reported = {p.follower.id: p.number for p in followers.list_progress(connection, d)}
        promised = (lanes.highest_watermark(connection, d.id) if sinks_wait else None) or Seq(0)
        lacking |= {f.id for f in by_member.values() if (reported.get(f.id) or Seq(0)) < promised}
        silent |= {f.id for f in by_member.values() if reported.get(f.id) is None}
    return frozenset(m for m, f in by_member.items() if f.id not in lacking and (m in before or f.id not in silent))


def store(connection: sa.Connection, members: Collection[Member]) -> None:
    """Stores the members of the arbiter's record."""
    named = {f.id for m, f in candidates(connection).items() if m in members}
    is_named = follower.c.id.in_(named)
    connection.execute(follower.update().where(is_named, ~follower.c.member).values(member=True))
    connection.execute(follower.update().where(follower.c.member, ~is_named).values(member=False))


def stored(connection: sa.Connection) -> frozenset[Member]:
    """The members that the ledger has stored, if they still are candidates."""
    return frozenset(m for m, f in candidates(connection).items() if f.member)
