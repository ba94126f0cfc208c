"""The log of decisions and their reasons. Its size depends on the number of decisions, not on the number of rows.

It also stores since when a schedule is followed. Otherwise a daemon that is restarted at the very moment of a schedule,
night after night, would never make its first run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from strandline.ledger.engine import Ledger, from_row, utc_now
from strandline.ledger.schema.core import audit


@dataclass(frozen=True, slots=True)
class AuditEvent:
    at: datetime
    event: str
    detail: dict[str, Any]


def record(connection: sa.Connection, event: str, **detail: Any) -> None:
    connection.execute(audit.insert().values(at=utc_now(), event=event, detail=json.dumps(detail, default=str)))


def newest(connection: sa.Connection, event: str) -> AuditEvent | None:
    return next(iter(latest(connection, audit.c.event == event, events_max=1)), None)


def latest(connection: sa.Connection, *where: sa.ColumnElement[bool], events_max: int = 100) -> list[AuditEvent]:
    rows = connection.execute(sa.select(audit).where(*where).order_by(audit.c.id.desc()).limit(events_max))
    return [from_row(AuditEvent, row, detail=json.loads(row.detail)) for row in rows]


SCHEDULE_SEEN = "schedule_seen"


def followed_since(ledger: Ledger, crons: Mapping[str, str], now: datetime) -> datetime:
    """Returns when a daemon first followed exactly these schedules (by name of the job). The first caller stores it."""
    detail = json.dumps(dict(sorted(crons.items())))
    first = sa.select(sa.func.min(audit.c.at)).where(audit.c.event == SCHEDULE_SEEN, audit.c.detail == detail)
    with ledger.read() as connection:
        found = connection.execute(first).scalar()
    if isinstance(found, datetime):
        return found
    with ledger.write() as connection:
        connection.execute(audit.insert().values(at=now, event=SCHEDULE_SEEN, detail=detail))
    return now
