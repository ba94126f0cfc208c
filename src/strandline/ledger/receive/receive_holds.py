"""Datasets whose receiver is on hold. A resync stores a hold if it cannot know which received bodies the table has. A
follower also stores the holds of its leader. Only a person removes a hold, or the step that stored it."""

from __future__ import annotations

import sqlalchemy as sa

from strandline.core.errors import ReceiverHolds
from strandline.core.types import DatasetId
from strandline.ledger.engine import insert_into, utc_now
from strandline.ledger.schema.receive import receive_hold

FROM_LEADER = "on hold at the leader: "  # begins the reason of a hold that the leader had
_HOLDS = sa.select(receive_hold.c.dataset_id, receive_hold.c.reason)


def list_holds(connection: sa.Connection) -> dict[DatasetId, str]:
    """The reason of each hold."""
    return {DatasetId(row.dataset_id): row.reason for row in connection.execute(_HOLDS)}


def check(connection: sa.Connection, dataset: DatasetId) -> None:
    """Raises ReceiverHolds if the dataset's receiver is on hold."""
    if (reason := list_holds(connection).get(dataset)) is not None:
        raise ReceiverHolds(
            f"nothing that was received is ingested: {reason}",
            hint="See `strandline dataset accept-received --help`, and docs/receive.md.",
        )


def put(connection: sa.Connection, dataset: DatasetId, reason: str, *, replaces_leader_hold: bool = True) -> None:
    """Puts the dataset's receiver on hold. The first reason stays, but a reason of the site's own replaces the one of
    its leader's hold, because that hold ends when the leader's ends."""
    connection.execute(
        insert_into(connection, receive_hold)
        .values(dataset_id=dataset, since=utc_now(), reason=reason)
        .on_conflict_do_nothing()
    )
    if replaces_leader_hold and not reason.startswith(FROM_LEADER):
        of_leader = (receive_hold.c.dataset_id == dataset, receive_hold.c.reason.startswith(FROM_LEADER))
        connection.execute(receive_hold.update().where(*of_leader).values(reason=reason))


def clear(connection: sa.Connection, dataset: DatasetId) -> bool:
    """Ends the hold. False if there is none."""
    return connection.execute(receive_hold.delete().where(receive_hold.c.dataset_id == dataset)).rowcount == 1
