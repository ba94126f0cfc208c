"""The progress of each follower, shard by shard, and what it lacks: a fixed number of queries for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from strandline.core.sites.replication import shard_ids
from strandline.core.types import Seq, ShardId, seq_or_none
from strandline.ledger.ingest import blocks, datasets
from strandline.ledger.replicate import followers
from strandline.ledger.replicate.followers import RegisteredFollower
from strandline.ledger.schema.core import block
from strandline.ledger.schema.replicate import follower, follower_mark, follower_seal


@dataclass(frozen=True, slots=True)
class ShardLag:
    """What a follower lacks of a shard. None: it has not reported its progress, or the leader has not counted the
    rows."""

    follower: RegisteredFollower
    dataset: str
    shard: ShardId
    mark: Seq | None
    seal: Seq | None  # of the dataset
    segments: int | None
    rows: int | None
    oldest: datetime | None  # when the first segment that it lacks was published; None: it lacks none, or nobody knows
    held_since: datetime | None  # since when retention keeps rows of the dataset for it
    dropped_upto: Seq | None  # a rule has deleted rows of the dataset up to here that it did not have


def read_lags(connection: sa.Connection) -> list[ShardLag]:
    """The lag of all followers, by follower, dataset and shard. `connection` must be one of `read_consistent`."""
    registered = followers.list_followers(connection)
    if not registered:
        return []
    own = followers.term(connection)
    marks = {(r.follower_id, r.shard): r for r in connection.execute(_LAGS, {"term": own})}
    seals = {(r.follower_id, r.dataset_id): r for r in connection.execute(sa.select(follower_seal))}
    live = datasets.list_datasets(connection)
    lags = []
    for one in registered:
        for d in live:
            if not one.follows(d.uuid):
                continue
            row = seals.get((one.id, d.id))
            seal = None if row is None or row.term != own else seq_or_none(row.seal or None)
            held = None if row is None else row.held_since
            dropped = None if row is None else seq_or_none(row.dropped_upto)
            for shard in shard_ids(d.first_shard, d.shards):
                lags.append(_lag(one, d.name, shard, (seal, held, dropped), marks.get((one.id, shard))))
    return lags


_OfDataset = tuple[Seq | None, datetime | None, Seq | None]  # seal, held since, dropped up to


def _lag(one: RegisteredFollower, dataset: str, shard: ShardId, whole: _OfDataset, row: Any | None) -> ShardLag:
    seal, held, dropped = whole
    if row is None:
        return ShardLag(one, dataset, shard, None, seal, None, None, None, held, dropped)
    rows = None if row.counted < row.segments else int(row.rows or 0)
    return ShardLag(one, dataset, shard, Seq(row.mark), seal, row.segments, rows, row.oldest, held, dropped)


_SEALED = blocks.sealed_of(follower_mark.c.dataset_id).scalar_subquery()
_LACKS = (
    (block.c.dataset_id == follower_mark.c.dataset_id)
    & (block.c.state == sa.literal_column("'published'"))
    & (block.c.hi > follower_mark.c.mark)
    & (block.c.hi <= _SEALED)
    & sa.or_(block.c.shard == follower_mark.c.shard, block.c.shard.is_(None))
)
_LAGS = (
    sa.select(
        *follower_mark.c["follower_id", "shard", "mark"],
        sa.func.count(block.c.id).label("segments"),
        sa.func.count(block.c.row_count).label("counted"),
        sa.cast(sa.func.sum(block.c.row_count), sa.BigInteger).label("rows"),
        sa.func.min(block.c.changed_at).label("oldest"),
    )
    .join_from(follower_mark, follower, follower.c.id == follower_mark.c.follower_id)
    .join(block, _LACKS, isouter=True)
    .where(follower.c.removed_at.is_(None), follower_mark.c.term == sa.bindparam("term"))
    .group_by(follower_mark.c.follower_id, follower_mark.c.shard, follower_mark.c.mark)
)
