"""The spool files that the ledger knows, all at once: what `received.spooled` answers for a few."""

from __future__ import annotations

import sqlalchemy as sa

from strandline.ledger.schema.receive import HAS_ROWS, received


def every_spooled(connection: sa.Connection) -> set[str]:
    """All that belong to a body and were not removed."""
    waiting = sa.select(received.c.spool).where(received.c.spool_removed_at.is_(None), HAS_ROWS)
    return set(connection.execute(waiting).scalars())
