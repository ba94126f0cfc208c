"""Which followers may be promoted: they are waited for, and have whatever sinks were promised (docs/adr/0071, rule
18)."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from strandline.core.types import Seq
from strandline.ledger.deliver import lanes
from strandline.ledger.ingest import blocks, datasets
from strandline.ledger.replicate import followers
from strandline.ledger.replicate.followers import Follower
from strandline.ledger.schema.replicate import follower


def wait_for_all(connection: sa.Connection) -> list[Follower]:
    """Waits for every follower that could become a member, and returns them. A follower that lacks a dataset cannot
    lead the lake."""
    found = [f for f in followers.list_followers(connection) if f.site_number is not None and f.datasets is None]
    new = [f.id for f in found if not f.waited_for]
    if new:
        connection.execute(follower.update().where(follower.c.id.in_(new)).values(waited_for=True))
    return found


def ready(connection: sa.Connection, found: Collection[Follower], *, sinks_wait: bool) -> frozenset[int]:
    """The numbers of those that have said in this term that they have everything that sinks were promised. If sinks do
    not wait for followers, nobody can say that: then those that have said how far they are. `connection` must be one of
    `read_at_once`."""
    lacking: set[int] = set()
    for d in datasets.list_datasets(connection):
        promised = lanes.highest_mark(connection, d.id) if sinks_wait else None
        if blocks.sealed(connection, d.id) is None:
            continue  # there is nothing to have
        told = {p.follower.id: p.number for p in followers.list_progress(connection, d)}
        lacking |= {f.id for f in found if (told.get(f.id) or Seq(0)) < (promised or Seq(1))}
    return frozenset(f.site_number for f in found if f.site_number is not None and f.id not in lacking and f.told_at)


def store(connection: sa.Connection, members: Collection[int]) -> None:
    """As the record says it."""
    live = (follower.c.removed_at.is_(None), follower.c.waited_for)
    named = follower.c.site_number.in_(list(members))
    connection.execute(follower.update().where(*live, named, ~follower.c.member).values(member=True))
    connection.execute(
        follower.update()
        .where(follower.c.member, sa.or_(~named, follower.c.site_number.is_(None)))
        .values(member=False)
    )
