"""How far the leader has sealed what a follower follows, as it said last."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from strandline.core.types import DatasetId, Seq
from strandline.ledger.engine import utc_now
from strandline.ledger.replicate.following import Followed
from strandline.ledger.schema.replicate import followed_dataset


def is_news(of: Followed, seal: Seq | None, *, is_told: bool) -> bool:
    """Whether `note` would change something."""
    return is_told is not of.is_told or (seal or 0) > (of.leader_seal or 0)


def note(connection: sa.Connection, seals: Mapping[DatasetId, Seq | None], untold: Mapping[DatasetId, None]) -> None:
    """Stores what the leader says of datasets: a lower seal than the one on record changes nothing. Of those that are
    `untold` nobody knows now."""
    column, offered_at = followed_dataset.c.leader_seal, followed_dataset.c.offered_at
    said_at = sa.func.coalesce(offered_at, sa.literal(utc_now(), offered_at.type))
    for id, seal in seals.items():
        higher = sa.case((sa.func.coalesce(column, 0) < (seal or 0), seal), else_=column)
        values = {"leader_seal": higher, "offered_at": said_at}
        connection.execute(followed_dataset.update().where(followed_dataset.c.dataset_id == id).values(**values))
    gone = followed_dataset.c.dataset_id.in_(untold)
    connection.execute(followed_dataset.update().where(gone).values(offered_at=None))
