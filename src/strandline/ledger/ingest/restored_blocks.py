"""The blocks that a resync stores: batches that it finds in the tables, and ranges whose resync is postponed; and the
fencing of processes that hold open blocks."""

from __future__ import annotations

import sqlalchemy as sa

from strandline.core.types import BlockKind, DatasetId, Reserved, SeqRange, ShardId, SnapshotId
from strandline.ledger.engine import insert_into, utc_now
from strandline.ledger.ingest.blocks import IS_POSTPONED, OPEN_STATES, change_block, read_blocks
from strandline.ledger.ingest.reserve_sql import first_shard
from strandline.ledger.schema.core import block


def fence_open_blocks(connection: sa.Connection) -> int:
    """Fences off the processes that held an open block before the ledger was restored."""
    changed = connection.execute(
        block.update().where(block.c.state.in_(OPEN_STATES)).values(fence=block.c.fence + 1, changed_at=utc_now())
    )
    return int(changed.rowcount)


def insert_published(
    connection: sa.Connection,
    dataset: DatasetId,
    rows: SeqRange,
    *,
    kind: BlockKind,
    batch_id: str,
    digest: str | None = None,
    row_count: int | None = None,
    snapshot: SnapshotId | None = None,
    shard: ShardId | None = None,
) -> bool:
    """Stores a block that the table's history shows, in the dataset's first shard unless another is given. False if the
    ledger has its batch or its `lo`."""
    values = {"digest": digest, "row_count": row_count, "snapshot_id": snapshot, "shard": shard}
    return _insert(connection, dataset, rows, kind, batch_id, state="published", **values)


def _insert(
    connection: sa.Connection, dataset: DatasetId, rows: SeqRange, kind: BlockKind, batch_id: str, **values: object
) -> bool:
    """False if the ledger has the batch or a block with the same `lo`."""
    fixed = {"dataset_id": dataset, "lo": rows.lo, "hi": rows.hi, "kind": kind.value, "batch_id": batch_id, "fence": 1}
    if values.get("shard") is None:
        values["shard"] = first_shard(dataset)
    now = utc_now()
    inserted = connection.execute(
        insert_into(connection, block)
        .values(**fixed, **values, reserved_at=now, changed_at=now)
        .on_conflict_do_nothing()
        .returning(block.c.id)
    )
    return inserted.one_or_none() is not None


def postpone(connection: sa.Connection, dataset: DatasetId, rows: SeqRange, batch_id: str) -> None:
    """Reserves a range of our sequence numbers until a resync can find out which of them the dataset has. As an open
    block, it holds back the seal."""
    _insert(connection, dataset, rows, BlockKind.RECOVERED, batch_id, state="reserved", lease_until=utc_now())


def postponed(connection: sa.Connection, dataset: DatasetId | None = None) -> list[Reserved]:
    """The ranges for which the resync of datasets was postponed, lowest first."""
    query = sa.select(block).where(*IS_POSTPONED).order_by(block.c.lo)
    if dataset is not None:
        query = query.where(block.c.dataset_id == dataset)
    return [b for b in read_blocks(connection, query) if isinstance(b, Reserved)]


def has_postponed(dataset: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    """Whether a dataset has postponed ranges, as a condition. The dataset may be a column of another query."""
    return sa.exists().where(block.c.dataset_id == dataset, *IS_POSTPONED).correlate_except(block)


def settle_postponed(connection: sa.Connection, postponed: Reserved) -> None:
    change_block(connection, postponed.head, "reserved", None, state="published", lease_until=None)
