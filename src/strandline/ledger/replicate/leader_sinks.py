"""What a follower was told of its leader's sinks: a document, replaced as a whole."""

from __future__ import annotations

import sqlalchemy as sa

from strandline.ledger.engine import upsert, utc_now
from strandline.ledger.schema.replicate import leader_sinks


def store(connection: sa.Connection, document: str) -> None:
    upsert(connection, leader_sinks, {"id": 1}, document=document, told_at=utc_now())


def read(connection: sa.Connection) -> str | None:
    """None: nothing was told yet."""
    return connection.execute(sa.select(leader_sinks.c.document)).scalar()
