"""The progress of a follower, shard by shard, and what it has recorded and not applied: a fixed number of queries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from strandline.core.sites.replication import shard_ids
from strandline.core.types import DatasetId, Seq, ShardId, seq_or_none
from strandline.ledger.ingest import blocks
from strandline.ledger.replicate import following
from strandline.ledger.replicate.following import Followed
from strandline.ledger.schema.core import block
from strandline.ledger.schema.replicate import followed_dataset


@dataclass(frozen=True, slots=True)
class FollowedShard:
    of: Followed
    shard: ShardId
    mark: Seq  # its items are applied up to here; 0: none of them
    seal: Seq | None  # of the dataset
    open_items: int
    open_rows: int | None  # in them; None if the leader has not counted those of one
    oldest: datetime | None  # when the first of them was recorded


def read_followed(connection: sa.Connection) -> list[FollowedShard]:
    """All followed shards, by dataset and shard. `connection` must be one of `read_consistent`."""
    followed = following.list_followed(connection)
    if not followed:
        return []
    marks = following.applied_upto(connection, [f.dataset for f in followed])
    seals = {DatasetId(r.dataset_id): seq_or_none(r.seal) for r in connection.execute(_SEALS)}
    opened: dict[int, list[Any]] = {}
    for row in connection.execute(_OPEN):
        opened.setdefault(row.dataset_id, []).append(row)
    shards = []
    for f in sorted(followed, key=lambda f: f.dataset.name):
        id = f.dataset.id
        for shard in shard_ids(f.dataset.first_shard, f.dataset.shards):
            # Purges and cuts have no shard: they are in all.
            own = [r for r in opened.get(id, ()) if r.shard in (shard, None)]
            shards.append(_shard(f, shard, marks[shard], seals.get(id), own))
    return shards


def count_open(connection: sa.Connection) -> dict[DatasetId, int]:
    """How many items are recorded and not applied, by dataset."""
    query = sa.select(block.c.dataset_id, sa.func.count()).where(_IS_OPEN, block.c.offered)
    return {DatasetId(id): count for id, count in connection.execute(query.group_by(block.c.dataset_id))}


def _shard(f: Followed, shard: ShardId, mark: Seq, seal: Seq | None, opened: list[Any]) -> FollowedShard:
    counted = all(r.counted == r.segments for r in opened)
    return FollowedShard(
        f,
        shard,
        mark,
        seal,
        sum(r.items for r in opened),
        sum(int(r.rows or 0) for r in opened) if counted else None,
        min((r.oldest for r in opened), default=None),
    )


# Literals: with parameters, SQLite does not use the partial indexes of blocks by state.
_IS_OPEN = block.c.state.in_([sa.literal_column(f"'{state}'", sa.Text) for state in blocks.OPEN_STATES])
_IS_SEGMENT = block.c.item == sa.literal_column("'segment'", sa.Text)
_OPEN = (
    sa.select(
        block.c.dataset_id,
        block.c.shard,
        sa.func.count().label("items"),
        sa.func.sum(sa.case((_IS_SEGMENT, 1), else_=0)).label("segments"),
        sa.func.count(block.c.offered_rows).label("counted"),
        sa.cast(sa.func.sum(block.c.offered_rows), sa.BigInteger).label("rows"),
        sa.func.min(block.c.reserved_at).label("oldest"),
    )
    .where(_IS_OPEN, block.c.offered)
    .group_by(block.c.dataset_id, block.c.shard)
)
_SEALS = sa.select(
    followed_dataset.c.dataset_id, blocks.sealed_of(followed_dataset.c.dataset_id).scalar_subquery().label("seal")
)
