"""Stores since when a schedule is followed. Otherwise a daemon that is restarted at the very moment of a schedule,
night after night, would never make its first run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

import sqlalchemy as sa

from strandline.core.audit_events import Event
from strandline.ledger.actor_columns import actor_values
from strandline.ledger.engine import Ledger
from strandline.ledger.schema.core import audit


def followed_since(ledger: Ledger, crons: Mapping[str, str], now: datetime) -> datetime:
    """Returns when a daemon first followed exactly these schedules (by name of the job). The first caller stores it."""
    detail = json.dumps(dict(sorted(crons.items())))
    first = sa.select(sa.func.min(audit.c.at)).where(
        audit.c.event == Event.SCHEDULE_FOLLOWED.value, audit.c.detail == detail
    )
    with ledger.read() as connection:
        found = connection.execute(first).scalar()
    if isinstance(found, datetime):
        return found
    with ledger.write() as connection:
        new = {"at": now, "event": Event.SCHEDULE_FOLLOWED.value, "detail": detail, **actor_values()}
        connection.execute(audit.insert().values(new))
    return now
