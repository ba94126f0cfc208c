"""The log of decisions and their reasons. Its size depends on the number of decisions, not on the number of rows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from strandline.ledger.engine import utc_now
from strandline.ledger.schema.core import audit


@dataclass(frozen=True, slots=True)
class AuditEvent:
    at: datetime
    event: str
    detail: dict[str, Any]


def record(connection: sa.Connection, event: str, **detail: Any) -> None:
    connection.execute(audit.insert().values(at=utc_now(), event=event, detail=json.dumps(detail, default=str)))


def newest(connection: sa.Connection, event: str) -> AuditEvent | None:
    row = connection.execute(
        sa.select(audit).where(audit.c.event == event).order_by(audit.c.id.desc()).limit(1)
    ).one_or_none()
    return None if row is None else AuditEvent(row.at, row.event, json.loads(row.detail))


def latest(connection: sa.Connection, *, events_max: int = 100) -> list[AuditEvent]:
    rows = connection.execute(sa.select(audit).order_by(audit.c.id.desc()).limit(events_max))
    return [AuditEvent(r.at, r.event, json.loads(r.detail)) for r in rows]
