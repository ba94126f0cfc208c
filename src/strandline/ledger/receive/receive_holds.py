"""Datasets whose receiver holds. The opening of a restored ledger writes a hold where it cannot know which received
bodies the table has; only a person takes it away."""

from __future__ import annotations

import sqlalchemy as sa

from strandline.core.types import DatasetId
from strandline.ledger.engine import insert_into, utc_now
from strandline.ledger.schema.receive import receive_hold

_EVERY = sa.select(receive_hold.c.dataset_id, receive_hold.c.reason)


def every(connection: sa.Connection) -> dict[DatasetId, str]:
    """Why each of them holds."""
    return {DatasetId(row.dataset_id): row.reason for row in connection.execute(_EVERY)}


def put(connection: sa.Connection, dataset: DatasetId, reason: str) -> None:
    """The first reason stays."""
    connection.execute(
        insert_into(connection, receive_hold)
        .values(dataset_id=dataset, since=utc_now(), reason=reason)
        .on_conflict_do_nothing()
    )


def clear(connection: sa.Connection, dataset: DatasetId) -> bool:
    """False where there is none."""
    return connection.execute(receive_hold.delete().where(receive_hold.c.dataset_id == dataset)).rowcount == 1
