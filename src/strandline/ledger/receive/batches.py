"""Batches of received bodies: which bodies are ingested together, in which order, and whether they are published.

A batch is stored with its bodies and their places before any of it is ingested. It keeps its id, by which `ingest`
knows the rows. A lease spares two receivers the same work. It is not a fence, and none is needed: a process that
ingests a batch, even twice, gets its one block. `ended_batches.py` has the batches that cannot be ingested.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any, NewType

import sqlalchemy as sa

from strandline.core import batch_names
from strandline.core.errors import BlockLost
from strandline.core.text.wording import plural
from strandline.core.types import DatasetId, Lease, SeqRange
from strandline.ledger.engine import Ledger, from_row, lock_row, slices, utc_now
from strandline.ledger.ingest import sequence
from strandline.ledger.leases import LeaseColumns
from strandline.ledger.receive.received import ReceivedId
from strandline.ledger.schema.core import block
from strandline.ledger.schema.core import dataset as dataset_table
from strandline.ledger.schema.receive import HAS_ROWS, UNFINISHED, receive_batch, received

ReceiveBatchId = NewType("ReceiveBatchId", int)

BODIES_MAX = 1000  # per batch: each body is a partition of the frame that is ingested, however few rows it has
_FILES_AT_ONCE_MAX = 5000
_WAITS = (received.c.batch.is_(None), HAS_ROWS)
leases = LeaseColumns(receive_batch.c.lease_token, receive_batch.c.lease_until, *UNFINISHED)


@dataclass(frozen=True, slots=True)
class BatchBody:
    id: ReceivedId
    spool: str
    rows: int
    place: int  # how many rows of the batch are before its first row


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that is neither published nor ended, or was not when it was read."""

    id: ReceiveBatchId
    dataset: DatasetId
    batch_id: str
    rows: int
    bodies: tuple[BatchBody, ...]  # by place
    failures: int
    reason: str | None
    lease: Lease | None = None  # of the process that took it; None if it comes from `form`


def form(
    ledger: Ledger, dataset: DatasetId, *, rows_max: int, older_than: datetime, bodies_max: int = BODIES_MAX
) -> Batch | None:
    """Stores the next batch of waiting bodies, in the order of their ids, with at most `rows_max` rows (a larger body
    gets a batch of its own). None while there is room for more and no body is older than `older_than`. The lock on the
    dataset's row keeps others from forming its batches meanwhile."""
    with ledger.write() as connection:
        lock_row(connection, dataset_table, dataset)
        waiting = bodies_without_batch(connection, dataset, bodies_max)
        bodies: list[BatchBody] = []
        rows = 0
        for row in waiting:
            if bodies and rows + row.rows > rows_max:
                break
            bodies.append(BatchBody(ReceivedId(row.id), row.spool, row.rows, rows))
            rows += row.rows
        full = rows >= rows_max or len(bodies) < len(waiting) or len(bodies) == bodies_max
        if not bodies or not (full or min(row.received_at for row in waiting) <= older_than):
            return None
        return store(connection, dataset, batch_names.new_name(), bodies)


def bodies_without_batch(connection: sa.Connection, dataset: DatasetId, bodies_max: int) -> Sequence[Any]:
    return connection.execute(
        sa.select(received.c.id, received.c.spool, received.c.rows, received.c.received_at)
        .where(received.c.dataset_id == dataset, *_WAITS)
        .order_by(received.c.id)
        .limit(bodies_max)
    ).all()


def store(connection: sa.Connection, dataset: DatasetId, batch_id: str, bodies: Iterable[BatchBody]) -> Batch:
    """Stores a new batch of these bodies, in this order."""
    rows, placed = 0, []
    for body in bodies:
        placed.append(replace(body, place=rows))
        rows += body.rows
    id = connection.execute(
        receive_batch.insert()
        .values(dataset_id=dataset, batch_id=batch_id, rows=rows, created_at=utc_now(), failures=0)
        .returning(receive_batch.c.id)
    ).scalar_one()
    connection.execute(_PLACE, [{"of": body.id, "in_batch": id, "at": body.place} for body in placed])
    return Batch(ReceiveBatchId(id), dataset, batch_id, rows, tuple(placed), 0, None)


# A trigger ensures that a body is in one batch only: it leaves a batch only when that has ended.
_PLACE = (
    received.update()
    .where(received.c.id == sa.bindparam("of"))
    .values(batch=sa.bindparam("in_batch"), place=sa.bindparam("at"))
)


def _is_free(now: datetime) -> tuple[sa.ColumnElement[bool], ...]:
    """Whether a batch can be taken: it is unfinished and due, and no process holds its lease."""
    return (
        *UNFINISHED,
        sa.or_(receive_batch.c.retry_at.is_(None), receive_batch.c.retry_at <= now),
        leases.is_free(now),
    )


def due(connection: sa.Connection, *, rows_max: int, older_than: datetime) -> list[DatasetId]:
    """Datasets for which `form` would store a batch or `take` would find one. An idle receiver runs only this one
    statement."""
    can_form = (
        sa.select(received.c.dataset_id)
        .where(*_WAITS)
        .group_by(received.c.dataset_id)
        .having(
            sa.or_(
                sa.func.min(received.c.received_at) <= sa.literal(older_than, received.c.received_at.type),
                sa.func.sum(received.c.rows) >= rows_max,
                sa.func.count() >= BODIES_MAX,
            )
        )
    )
    free = sa.select(receive_batch.c.dataset_id).where(*_is_free(utc_now()))
    return sorted(DatasetId(id) for id in connection.execute(sa.union(can_form, free)).scalars())


def take(
    ledger: Ledger, seconds: float, *, dataset: DatasetId | None = None, batches_max: int | None = None
) -> list[Batch]:
    """Leases batches that are unfinished and due, oldest first, to the caller; expired leases are taken over. A caller
    that ingests them one after the other takes one at a time, so that others can take the rest."""
    chosen = sa.select(receive_batch.c.id).where(*_is_free(utc_now())).order_by(receive_batch.c.id).limit(batches_max)
    if dataset is not None:
        chosen = chosen.where(receive_batch.c.dataset_id == dataset)
    with ledger.write() as connection:
        ids = connection.execute(chosen.with_for_update(skip_locked=True)).scalars().all()
        given = leases.give_all(connection, ids, seconds=seconds)
        return [replace(batch, lease=given[batch.id]) for batch in read(connection, ids)]


def read(connection: sa.Connection, ids: Iterable[int]) -> list[Batch]:
    batches: list[Batch] = []
    query = (
        sa.select(
            receive_batch,
            received.c.id.label("body"),
            received.c.spool,
            received.c.rows.label("body_rows"),
            received.c.place,
        )
        .join_from(receive_batch, received, received.c.batch == receive_batch.c.id)
        .order_by(receive_batch.c.id, received.c.place)
    )
    for part in slices(ids):
        rows = connection.execute(query.where(receive_batch.c.id.in_(part)))
        batches += [_batch(list(of_batch)) for _, of_batch in groupby(rows, key=lambda row: row.id)]
    return batches


def _batch(rows: list[Any]) -> Batch:
    first = rows[0]
    bodies = tuple(BatchBody(ReceivedId(r.body), r.spool, r.body_rows, r.place) for r in rows)
    return from_row(Batch, first, dataset=first.dataset_id, bodies=bodies, lease=None)


def change(connection: sa.Connection, batch: Batch, /, **values: Any) -> bool:
    """Changes the batch unless another process has taken over the caller's lease. False if it has, or if the batch is
    finished."""
    changed = connection.execute(
        receive_batch.update()
        .where(
            receive_batch.c.id == batch.id,
            receive_batch.c.batch_id == batch.batch_id,
            *UNFINISHED,
            receive_batch.c.lease_token == (None if batch.lease is None else batch.lease.token),
        )
        .values(**values)
    )
    return changed.rowcount == 1


def renew(ledger: Ledger, batch: Batch, seconds: float) -> bool:
    """False if another process took the batch over, or it is finished."""
    return batch.lease is not None and leases.renew(ledger, batch.lease, seconds=seconds)


def release(ledger: Ledger, batch: Batch) -> bool:
    """Releases the lease of an unfinished batch, so that any process can take it at once."""
    return batch.lease is not None and leases.release(ledger, batch.lease)


def failed(ledger: Ledger, batch: Batch, reason: str, retry_at: datetime) -> bool:
    """Records a failure of the batch: the reason and the time of the next try. False as in `change`."""
    with ledger.write() as connection:
        return change(
            connection,
            batch,
            **leases.no_lease,
            failures=receive_batch.c.failures + 1,
            failed_from=sa.func.coalesce(receive_batch.c.failed_from, sequence.read(connection).last),
            reason=reason,
            retry_at=retry_at,
        )


def published_as(rows: SeqRange) -> dict[str, Any]:
    """The values of a batch that the table has under these sequence numbers."""
    done = {"reason": None, "retry_at": None, **leases.no_lease}
    return {"lo": rows.lo, "hi": rows.hi, "published_at": utc_now(), **done}


def settle(ledger: Ledger, batch: Batch, rows: SeqRange) -> None:
    """Records that the table has the batch under these sequence numbers. Idempotent, and needs no lease. `BlockLost` if
    the ledger does not have the batch or its block like that: it was restored, or a take-over has given the batch up.
    Then the spool files stay."""
    if len(rows) != batch.rows:
        raise ValueError(f"batch {batch.batch_id} has {plural(batch.rows, 'row')}, and the sequence numbers {rows}")
    with ledger.write() as connection:
        # Locked: a cut abandons the block, and then deletes the bodies of settled batches.
        in_table = (block.c.state == "published", block.c.lo == rows.lo, block.c.hi == rows.hi)
        placed = sa.select(block.c.id).where(
            block.c.dataset_id == batch.dataset, block.c.batch_id == batch.batch_id, *in_table
        )
        has_block = connection.execute(placed.with_for_update(read=True)).first() is not None
        own = (receive_batch.c.id == batch.id, receive_batch.c.batch_id == batch.batch_id)
        if has_block:
            connection.execute(receive_batch.update().where(*own, *UNFINISHED).values(**published_as(rows)))
        stored = connection.execute(sa.select(receive_batch.c.lo, receive_batch.c.hi).where(*own)).one_or_none()
        if not has_block or stored is None or (stored.lo, stored.hi) != (rows.lo, rows.hi):
            raise BlockLost(
                f"the ledger does not know batch {batch.batch_id} with the sequence numbers {rows}",
                hint="It was restored from a copy, or another site took over. Unsettled bodies stay in the spool.",
            )


# --- files ---


def to_remove(connection: sa.Connection) -> list[tuple[ReceivedId, str]]:
    """Some files whose rows are published or discarded and that are not recorded as removed, oldest first."""
    rows = connection.execute(
        sa.select(received.c.id, received.c.spool)
        .join_from(received, receive_batch, receive_batch.c.id == received.c.batch)
        .where(
            HAS_ROWS,
            received.c.spool_removed_at.is_(None),
            sa.or_(receive_batch.c.published_at.is_not(None), receive_batch.c.ending == "discarded"),
        )
        .order_by(received.c.batch)
        .limit(_FILES_AT_ONCE_MAX)
    )
    return [(ReceivedId(row.id), row.spool) for row in rows]


def record_removed(ledger: Ledger, ids: Iterable[ReceivedId]) -> int:
    """Records that the files of these bodies are removed. Returns how many were not recorded before."""
    recorded = 0
    with ledger.write() as connection:
        for part in slices(ids):
            changed = connection.execute(
                received.update()
                .where(received.c.id.in_(part), received.c.spool_removed_at.is_(None))
                .values(spool_removed_at=utc_now())
            )
            recorded += changed.rowcount
    return recorded


def waiting(connection: sa.Connection, dataset: DatasetId, *, up_to: int | None = None) -> tuple[int, int]:
    """How many bodies of the dataset are to be ingested, and the highest of their ids (0 if there is none)."""
    query = (
        sa.select(sa.func.count(), sa.func.coalesce(sa.func.max(received.c.id), 0))
        .join_from(received, receive_batch, receive_batch.c.id == received.c.batch, isouter=True)
        .where(
            received.c.dataset_id == dataset,
            HAS_ROWS,
            received.c.spool_removed_at.is_(None),
            *UNFINISHED,
        )
    )
    count, highest = connection.execute(query if up_to is None else query.where(received.c.id <= up_to)).one()
    return int(count), int(highest)
