"""Datasets whose receiver is on hold. A resync writes a hold if it cannot know which received bodies the table has.
Only a person removes it."""

from __future__ import annotations

import sqlalchemy as sa

from strandline.core.errors import ReceiverHolds
from strandline.core.types import DatasetId
from strandline.ledger.engine import insert_into, utc_now
from strandline.ledger.schema.receive import receive_hold

_HOLDS = sa.select(receive_hold.c.dataset_id, receive_hold.c.reason)


def list_holds(connection: sa.Connection) -> dict[DatasetId, str]:
    """The reason of each hold."""
    return {DatasetId(row.dataset_id): row.reason for row in connection.execute(_HOLDS)}


def check(connection: sa.Connection, dataset: DatasetId) -> None:
    """Raises ReceiverHolds."""
    if (reason := list_holds(connection).get(dataset)) is not None:
        raise ReceiverHolds(
            f"nothing that was received is ingested: {reason}",
            hint="See `strandline dataset accept-received --help`, and docs/receive.md.",
        )


def put(connection: sa.Connection, dataset: DatasetId, reason: str) -> None:
    """Keeps the first reason."""
    connection.execute(
        insert_into(connection, receive_hold)
        .values(dataset_id=dataset, since=utc_now(), reason=reason)
        .on_conflict_do_nothing()
    )


def clear(connection: sa.Connection, dataset: DatasetId) -> bool:
    """False if there is no hold."""
    return connection.execute(receive_hold.delete().where(receive_hold.c.dataset_id == dataset)).rowcount == 1
