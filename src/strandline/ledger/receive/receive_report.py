"""What `status` shows about rows that were received and are not in their table yet."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from strandline.core.types import DatasetId
from strandline.ledger.engine import from_row
from strandline.ledger.schema.core import dataset as dataset_table
from strandline.ledger.schema.receive import HAS_ROWS, UNFINISHED, receive_batch, received


@dataclass(frozen=True, slots=True)
class WaitingBatch:
    """Bodies that will be ingested together."""

    batch_id: str
    rows: int
    since: datetime
    tries: int  # failed ones
    reason: str | None  # of the last failure; None if there was none
    retry_at: datetime | None


@dataclass(frozen=True, slots=True)
class Bodies:
    bodies: int
    rows: int
    bytes: int  # of their files
    oldest: datetime | None  # when the first of them was received


NO_BODIES = Bodies(0, 0, 0, None)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Rows that were received for a dataset and are not in its table."""

    dataset: DatasetId
    name: str
    is_dropped: bool  # then nobody ingests them any more
    to_ingest: Bodies
    set_aside: Bodies
    batches: tuple[WaitingBatch, ...]  # in order; bodies without a batch wait for more bodies


def report(connection: sa.Connection) -> list[Waiting]:
    """The datasets for which rows wait, by name."""
    unfinished: dict[int, list[WaitingBatch]] = {}
    for b in connection.execute(sa.select(receive_batch).where(*UNFINISHED).order_by(receive_batch.c.id)):
        unfinished.setdefault(b.dataset_id, []).append(from_row(WaitingBatch, b, since=b.created_at, tries=b.failures))
    bodies: dict[int, dict[bool, Bodies]] = {}
    datasets: dict[int, tuple[str, bool]] = {}
    for r in connection.execute(_BODIES):
        datasets[r.id] = r.name, r.dropped_at is not None
        bodies.setdefault(r.id, {})[bool(r.is_aside)] = Bodies(r.bodies, r.rows, r.spool_bytes, r.oldest)
    return [
        Waiting(
            DatasetId(id),
            name,
            is_dropped,
            bodies[id].get(False, NO_BODIES),
            bodies[id].get(True, NO_BODIES),
            tuple(unfinished.get(id, ())),
        )
        for id, (name, is_dropped) in datasets.items()
    ]


_IS_ASIDE = sa.case((receive_batch.c.ended_at.is_(None), 0), else_=1)
_BODIES = (
    sa.select(
        *dataset_table.c["id", "name", "dropped_at"],
        _IS_ASIDE.label("is_aside"),
        sa.func.count().label("bodies"),
        *(sa.cast(sa.func.sum(c), sa.BigInteger).label(c.name) for c in (received.c.rows, received.c.spool_bytes)),
        sa.func.min(received.c.received_at).label("oldest"),
    )
    .join_from(received, dataset_table, dataset_table.c.id == received.c.dataset_id)
    .join(receive_batch, receive_batch.c.id == received.c.batch, isouter=True)
    .where(
        HAS_ROWS,
        received.c.spool_removed_at.is_(None),
        receive_batch.c.published_at.is_(None),
        sa.func.coalesce(receive_batch.c.ending, "set_aside") == "set_aside",
    )
    .group_by(dataset_table.c.id, dataset_table.c.name, dataset_table.c.dropped_at, _IS_ASIDE)
    .order_by(dataset_table.c.name, dataset_table.c.id)
)


def has_any(connection: sa.Connection) -> bool:
    """Whether the ledger has any received body."""
    return connection.execute(sa.select(received.c.id).limit(1)).first() is not None
