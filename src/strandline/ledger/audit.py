"""The log of decisions: what was decided, why, and by whom. Its size depends on the number of decisions, not on the
number of rows."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from strandline.core.actor import Actor, Trigger
from strandline.core.audit_events import Event
from strandline.ledger.actor_columns import actor_values, read_actor
from strandline.ledger.engine import utc_now
from strandline.ledger.schema.core import audit


@dataclass(frozen=True, slots=True)
class AuditEvent:
    id: int
    at: datetime
    event: str
    actor: Actor | None  # None: recorded by a version that did not store it
    detail: dict[str, Any]


def record(connection: sa.Connection, event: Event, **detail: Any) -> None:
    """Stores the event with the current actor."""
    connection.execute(
        audit.insert().values(at=utc_now(), event=event.value, detail=json.dumps(detail, default=str), **actor_values())
    )


def newest(connection: sa.Connection, event: Event) -> AuditEvent | None:
    found = latest(connection, events=(event,), events_max=1)
    return found[0] if found else None


def latest(
    connection: sa.Connection,
    *,
    events_max: int = 100,
    before: int | None = None,
    actor: str | None = None,
    trigger: Trigger | None = None,
    events: Collection[Event] | None = None,
) -> list[AuditEvent]:
    """Newest first; `before` is the id of the last event of the previous page."""
    query = sa.select(audit).order_by(audit.c.id.desc()).limit(events_max)
    if before is not None:
        query = query.where(audit.c.id < before)
    if actor is not None:
        query = query.where(audit.c.actor == actor)
    if trigger is not None:
        query = query.where(audit.c.trigger == trigger.value)
    if events is not None:
        query = query.where(audit.c.event.in_([event.value for event in events]))
    return [
        AuditEvent(row.id, row.at, row.event, read_actor(row), json.loads(row.detail))
        for row in connection.execute(query)
    ]
