"""The log of decisions and their reasons. Its size depends on the number of decisions, not on the number of rows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from strandline.ledger.engine import from_row, utc_now
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
