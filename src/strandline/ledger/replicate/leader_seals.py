"""The leader's seals of the datasets that a follower follows, as the leader last reported them."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from strandline.core.types import DatasetId, Seq
from strandline.ledger.engine import utc_now
from strandline.ledger.replicate.following import Followed
from strandline.ledger.schema.replicate import followed_dataset


def is_news(of: Followed, seal: Seq | None, *, is_offered: bool) -> bool:
    """Whether `note` would change something."""
    return is_offered is not of.is_offered or (seal or 0) > (of.leader_seal or 0)


def note(
    connection: sa.Connection, seals: Mapping[DatasetId, Seq | None], not_offered: Mapping[DatasetId, None]
) -> None:
    """Stores the leader's seals; a lower seal than the stored one changes nothing. `not_offered`: the datasets that the
    leader did not mention."""
    column, offered_at = followed_dataset.c.leader_seal, followed_dataset.c.offered_at
    since = sa.func.coalesce(offered_at, sa.literal(utc_now(), offered_at.type))
    for id, seal in seals.items():
        higher = sa.case((sa.func.coalesce(column, 0) < (seal or 0), seal), else_=column)
        values = {"leader_seal": higher, "offered_at": since}
        connection.execute(followed_dataset.update().where(followed_dataset.c.dataset_id == id).values(**values))
    is_not_offered = followed_dataset.c.dataset_id.in_(not_offered)
    connection.execute(followed_dataset.update().where(is_not_offered).values(offered_at=None))
