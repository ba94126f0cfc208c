"""Datasets whose receiver is on hold. A resync writes a hold if it cannot know which received bodies the table has.
A follower writes the hold of its leader, too. Only a person removes a hold, or what wrote it."""

from __future__ import annotations

import sqlalchemy as sa

from strandline.core.errors import ReceiverHolds
from strandline.core.types import DatasetId
from strandline.ledger.engine import insert_into, utc_now
from strandline.ledger.schema.receive import receive_hold

TOLD = "at the leader that told it: "  # in front of the reason of a hold that the leader had
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


def put(connection: sa.Connection, dataset: DatasetId, reason: str, *, replaces_told: bool = True) -> None:
    """Keeps the first reason. But a reason of the site's own replaces one that its leader told, which ends when the
    leader's hold ends."""
    connection.execute(
        insert_into(connection, receive_hold)
        .values(dataset_id=dataset, since=utc_now(), reason=reason)
        .on_conflict_do_nothing()
    )
    if replaces_told and not reason.startswith(TOLD):
        was_told = (receive_hold.c.dataset_id == dataset, receive_hold.c.reason.startswith(TOLD))
        connection.execute(receive_hold.update().where(*was_told).values(reason=reason))


def clear(connection: sa.Connection, dataset: DatasetId) -> bool:
    """False if there is no hold."""
    return connection.execute(receive_hold.delete().where(receive_hold.c.dataset_id == dataset)).rowcount == 1
