"""Datasets, and the last counts of foreign and unnumbered rows in their tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from strandline.core.errors import NoSuchDataset, RefusedError
from strandline.core.sites.replication import FIRST_TERM
from strandline.core.sites.terms import first_shard_of
from strandline.core.types import Checked, Dataset, DatasetId, DatasetUuid, History, ShardId, TableCounts
from strandline.ledger.engine import from_row, insert_into, upsert, utc_now
from strandline.ledger.ingest import sequence
from strandline.ledger.row_memo import RowMemo
from strandline.ledger.schema.core import dataset, table_check, table_count
from strandline.ledger.schema.replicate import site


def _dataset(row: Any) -> Dataset:
    return from_row(Dataset, row, deliver_by=tuple(json.loads(row.deliver_by)), history=History(row.history))


_LISTED = RowMemo(_dataset)


def add(
    connection: sa.Connection,
    *,
    name: str,
    table_uuid: str,
    deliver_by: tuple[str, ...] = (),
    adopted: bool = False,
    history: History = History.DELIVER,
    uuid: DatasetUuid | None = None,
    first_shard: ShardId | None = None,
    shards: int = 1,
) -> Dataset:
    """Adds a dataset; `RefusedError` for a taken name, and for taken shards. Without `uuid`, the dataset gets its
    table's. Without a first shard, it gets the next free shards."""
    if first_shard is None:
        first_shard = free_shard(connection, None, shards)
    elif (other := connection.scalar(sa.select(dataset.c.name).where(_overlaps(first_shard, shards)))) is not None:
        raise RefusedError(
            f"the shards of {name}, from {first_shard} on, belong to {other} at this site",
            hint="Two leaders of an older version have created a dataset each. Create this site again, in another "
            "folder and another warehouse: `strandline follow init LEADER`.",
        )
    added = connection.execute(
        insert_into(connection, dataset)
        .values(
            name=name,
            table_uuid=table_uuid,
            deliver_by=json.dumps(list(deliver_by)),
            adopted=adopted,
            history=history.value,
            created_at=utc_now(),
            uuid=uuid or table_uuid,
            first_shard=first_shard,
            shards=shards,
        )
        .on_conflict_do_nothing()
        .returning(dataset)
    ).one_or_none()
    if added is None:
        raise RefusedError(f"there is a dataset named {name} already")
    return _dataset(added)


def next_shard(connection: sa.Connection) -> ShardId:
    """The first shard above those of every dataset, dropped ones too, and in this site's own term or above: this
    site may lack the last datasets of the leader before it."""
    above_all = connection.scalar(sa.select(sa.func.max(dataset.c.first_shard + dataset.c.shards)))
    return ShardId(max(int(above_all or 0), lowest_shard(connection)))


def lowest_shard(connection: sa.Connection) -> ShardId:
    """The lowest shard that this site assigns in its term."""
    return first_shard_of(int(connection.scalar(sa.select(site.c.term)) or FIRST_TERM))


def free_shard(connection: sa.Connection, wanted: ShardId | None, shards: int) -> ShardId:
    """The first of so many shards that no dataset ever had: from `wanted` on, if they are free. Until this transaction
    ends, no other one gets shards."""
    sequence.lock(connection)
    if wanted is None or connection.execute(sa.select(dataset.c.id).where(_overlaps(wanted, shards))).first():
        return next_shard(connection)
    return wanted


def _overlaps(first: ShardId, shards: int) -> sa.ColumnElement[bool]:
    return (first < dataset.c.first_shard + dataset.c.shards) & (dataset.c.first_shard < first + shards)


def is_known_id(connection: sa.Connection, uuid: DatasetUuid) -> bool:
    """Whether a dataset has this id, or a dropped one had it."""
    return connection.execute(sa.select(dataset.c.id).where(dataset.c.uuid == uuid)).first() is not None


def find(connection: sa.Connection, name: str) -> Dataset | None:
    row = connection.execute(
        sa.select(dataset).where(dataset.c.name == name, dataset.c.dropped_at.is_(None))
    ).one_or_none()
    return None if row is None else _dataset(row)


def get(connection: sa.Connection, name: str) -> Dataset:
    stored = find(connection, name)
    if stored is None:
        names = ", ".join(d.name for d in list_datasets(connection)) or "none yet"
        raise NoSuchDataset(f"there is no dataset {name}", hint=f"Datasets here: {names}.")
    return stored


def list_datasets(connection: sa.Connection) -> list[Dataset]:
    rows = connection.execute(sa.select(dataset).where(dataset.c.dropped_at.is_(None)).order_by(dataset.c.name))
    return _LISTED.read(rows.all())


def has_any(connection: sa.Connection) -> bool:
    """Whether there is a dataset that was not dropped."""
    return (
        connection.execute(sa.select(dataset.c.id).where(dataset.c.dropped_at.is_(None)).limit(1)).first() is not None
    )


def list_dropped(connection: sa.Connection) -> list[Dataset]:
    """Dropped datasets, except those whose table is a dataset again."""
    live = sa.select(dataset.c.table_uuid).where(dataset.c.dropped_at.is_(None))
    rows = connection.execute(
        sa.select(dataset)
        .where(dataset.c.dropped_at.is_not(None), dataset.c.table_uuid.not_in(live))
        .order_by(dataset.c.id)
    )
    return [_dataset(r) for r in rows]


def mark_adopted(connection: sa.Connection, of: Dataset, history: History) -> Dataset:
    """Marks the dataset as adopted: its table no longer requires a sequence number, and its rows without one are
    counted."""
    connection.execute(dataset.update().where(dataset.c.id == of.id).values(adopted=True, history=history.value))
    return get(connection, of.name)


def mark_dropped(connection: sa.Connection, id: DatasetId) -> bool:
    """Marks the dataset as dropped; False if it is already. Its row stays locked until the transaction ends: whoever
    records a body or adds a sink for it waits, and then finds it dropped."""
    changed = connection.execute(
        dataset.update().where(dataset.c.id == id, dataset.c.dropped_at.is_(None)).values(dropped_at=utc_now())
    )
    return changed.rowcount == 1


def is_dropped(connection: sa.Connection, id: DatasetId) -> bool:
    return connection.execute(sa.select(dataset.c.dropped_at).where(dataset.c.id == id)).scalar() is not None


def counts(connection: sa.Connection, id: DatasetId) -> TableCounts | None:
    row = connection.execute(sa.select(table_count).where(table_count.c.dataset_id == id)).one_or_none()
    return None if row is None else _counts(row)


def counts_by_dataset(connection: sa.Connection) -> dict[DatasetId, TableCounts]:
    """The stored counts."""
    return dict(_COUNTED.read(connection.execute(sa.select(table_count)).all()))


def _counts(row: Any) -> TableCounts:
    return from_row(TableCounts, row, snapshot=row.snapshot_id, foreign=row.foreign_rows)


_COUNTED = RowMemo(lambda row: (DatasetId(row.dataset_id), _counts(row)))


def set_counts(connection: sa.Connection, new_counts: Mapping[DatasetId, TableCounts]) -> None:
    new = insert_into(connection, table_count)
    stored = {c.name: new.excluded[c.name] for c in table_count.c if c.name != "dataset_id"}
    connection.execute(
        new.on_conflict_do_update(index_elements=["dataset_id"], set_=stored),
        [
            {
                "dataset_id": id,
                "snapshot_id": counts.snapshot,
                "unnumbered": counts.unnumbered,
                "foreign_rows": counts.foreign,
                "counted_at": counts.counted_at,
                "twice": counts.twice,
                "twice_first": counts.twice_first,
                "foreign_from": counts.foreign_from,
            }
            for id, counts in new_counts.items()
        ],
    )


def forget_counts(connection: sa.Connection) -> None:
    """Deletes the counts after a resync: we own more sequence numbers than when the rows were counted."""
    connection.execute(table_count.delete())


def numbers_checked(connection: sa.Connection, id: DatasetId) -> Checked | None:
    row = connection.execute(sa.select(table_check).where(table_check.c.dataset_id == id)).one_or_none()
    return None if row is None else Checked(row.snapshot_id, row.beyond)


def set_numbers_checked(connection: sa.Connection, id: DatasetId, checked: Checked) -> None:
    """Stores which snapshot was checked. Only in the transaction that moves the counter above its sequence numbers."""
    upsert(connection, table_check, {"dataset_id": id}, snapshot_id=checked.snapshot, beyond=checked.beyond)
