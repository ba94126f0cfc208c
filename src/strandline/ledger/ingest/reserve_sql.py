"""The SQL that takes sequence numbers and inserts the block that gets them.

Every writer waits for the counter's row. So it is locked for as few statements as possible, and they are built once.
"""

from __future__ import annotations

import sqlite3
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from strandline.core.errors import BatchEnded
from strandline.ledger.ingest import sequence
from strandline.ledger.schema import core
from strandline.ledger.schema.core import block
from strandline.ledger.schema.receive import receive_batch

_NEW_DATASET: sa.BindParameter[int] = sa.bindparam("new_dataset", type_=sa.BigInteger)
_NEW_BATCH: sa.BindParameter[str] = sa.bindparam("new_batch", type_=sa.Text)


def first_shard(dataset: int | sa.ColumnElement[int]) -> sa.ScalarSelect[int]:
    """A subquery, for blocks whose writer names no shard."""
    return sa.select(core.dataset.c.first_shard).where(core.dataset.c.id == dataset).scalar_subquery()


def _insert_with_numbers_from(insert: Any, source: Any) -> Any:
    at: sa.BindParameter[datetime] = sa.bindparam("new_at", type_=block.c.reserved_at.type)
    values: dict[str, Any] = {
        "dataset_id": _NEW_DATASET,
        "lo": source.c.last - sequence.COUNT + 1,
        "hi": source.c.last,
        "kind": sa.bindparam("new_kind", type_=sa.Text),
        "batch_id": _NEW_BATCH,
        "digest": sa.bindparam("new_digest", type_=sa.Text),
        "state": sa.literal_column("'reserved'"),
        "fence": sa.literal_column("1"),
        "lease_until": sa.bindparam("new_lease", type_=block.c.lease_until.type),
        "reserved_at": at,
        "changed_at": at,
        "shard": sa.func.coalesce(sa.bindparam("new_shard", type_=sa.BigInteger), first_shard(_NEW_DATASET)),
    }
    return (
        insert(block)
        .from_select(list(values), sa.select(*values.values()).where(sa.true()))
        .on_conflict_do_nothing(index_elements=["dataset_id", "batch_id"], index_where=sa.text("state <> 'abandoned'"))
        .returning(block.c.id, block.c.shard)
    )


_TAKE_UNLESS_KNOWN = sequence.TAKE.where(
    ~sa.exists().where(
        block.c.dataset_id == _NEW_DATASET,
        block.c.batch_id == _NEW_BATCH,
        block.c.state != sa.literal_column("'abandoned'"),
    )
)
_INSERT_AFTER_TAKING = _insert_with_numbers_from(sqlite.insert, core.sequence)
_SQLITE = sqlite.dialect(paramstyle="named")
_RENDERED = [s.compile(dialect=_SQLITE) for s in (_TAKE_UNLESS_KNOWN, _INSERT_AFTER_TAKING)]
_SQLITE_TAKE, _SQLITE_INSERT = map(str, _RENDERED)
_CONSTANTS = {name: value for r in _RENDERED for name, value in r.params.items() if value is not None}
_LAST = [c.name for c in sequence.TAKE.exported_columns].index("last")
_MICROS = core.UtcMicros()


@cache
def _take_and_insert() -> sa.Select[Any]:
    """For PostgreSQL. Built when it is needed, because otherwise every command would pay for the import."""
    from sqlalchemy.dialects import postgresql

    taken = _TAKE_UNLESS_KNOWN.cte("taken")
    inserted = _insert_with_numbers_from(postgresql.insert, taken).cte("inserted")
    return sa.select(taken.c.last, inserted.c.id, inserted.c.shard).select_from(taken.outerjoin(inserted, sa.true()))


# Triggers, which fire while the counter is locked. They refuse a batch that has ended, a dataset whose resync was
# postponed, and a site that follows another one or was superseded by it.
_BATCH_ENDED = "an_ended_batch_gets_no_block"
_RESYNC_POSTPONED = "no_block_before_a_postponed_resync"
_NO_LEADER = ("a_follower_takes_no_batch", "a_superseded_leader_takes_no_batch")


class ResyncPostponed(Exception):
    """The dataset gets no block before its resync."""


class SiteFollows(Exception):
    """The site is a follower, whose blocks are its leader's, or another site leads in its place."""


class Placed(NamedTuple):
    last: int  # the counter's new value
    id: int | None  # of the new block; None if another caller with the same batch was faster
    shard: int | None


def place(connection: sa.Connection, new: dict[str, Any]) -> Placed | None:
    """Takes sequence numbers and inserts their block. Returns None, and takes no number, if the batch has a block.
    Raises `BatchEnded`, `ResyncPostponed` and `SiteFollows`."""
    try:
        return _place(connection, new)
    except (sqlite3.IntegrityError, sa.exc.IntegrityError) as e:
        if _RESYNC_POSTPONED in str(e):
            raise ResyncPostponed from e
        if any(name in str(e) for name in _NO_LEADER):
            raise SiteFollows from e
        if _BATCH_ENDED in str(e):
            raise _ended(new["new_batch"]) from e
        raise


def check_unfinished(connection: sa.Connection, dataset: int, batch_id: str) -> None:
    """Raises `BatchEnded` unless the ledger has this batch, unfinished. The caller has locked the counter. A receiver
    that started before the ledger was restored may hold a batch that the ledger does not have, and whose bodies may be
    in another batch."""
    unfinished = connection.execute(_UNFINISHED, {"batch": batch_id, "dataset": dataset}).first()
    if unfinished is None:
        raise _ended(batch_id)


def _ended(batch_id: str) -> BatchEnded:
    return BatchEnded(
        f"batch {batch_id} was divided, set aside, given up or forgotten meanwhile",
        hint="Its rows are not lost: other batches have them. `strandline status` shows what waits.",
    )


_UNFINISHED = sa.select(receive_batch.c.id).where(
    receive_batch.c.batch_id == sa.bindparam("batch"),
    receive_batch.c.dataset_id == sa.bindparam("dataset"),
    receive_batch.c.published_at.is_(None),
    receive_batch.c.ended_at.is_(None),
)


def _place(connection: sa.Connection, new: dict[str, Any]) -> Placed | None:
    if connection.dialect.name == "postgresql":
        both = connection.execute(_take_and_insert(), new).one_or_none()
        return None if both is None else Placed(both.last, both.id, both.shard)
    # SQLite changes one table per statement. Nothing comes between the two, because it has one writer at a time. Its
    # transactions are so short that SQLAlchemy would double their time, so the SQL is rendered once.
    raw: sqlite3.Connection = connection.connection.dbapi_connection  # type: ignore[assignment]
    bound = (
        _CONSTANTS
        | new
        | {name: _MICROS.process_bind_param(new[name], connection.dialect) for name in ("new_at", "new_lease")}
    )
    taken = raw.execute(_SQLITE_TAKE, bound).fetchone()
    if taken is None:
        return None
    inserted = raw.execute(_SQLITE_INSERT, bound).fetchone()
    return Placed(taken[_LAST], *(inserted or (None, None)))
