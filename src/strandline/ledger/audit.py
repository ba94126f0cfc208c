"""The log of decisions: what was decided, why, and by whom. Its size depends on the number of decisions, not on the
number of rows.

It also stores when a daemon first followed a schedule. Otherwise a daemon that is restarted at the very moment of a
schedule, night after night, would never make its first run.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from strandline.core.actor import Actor, Trigger
from strandline.core.documents import json_text
from strandline.core.records.audit_events import Event
from strandline.ledger.actor_columns import actor_values, read_actor
from strandline.ledger.engine import Ledger, from_row, utc_now
from strandline.ledger.schema.core import audit


@dataclass(frozen=True, slots=True)
class AuditEvent:
    id: int
    at: datetime
    event: str
    actor: Actor | None  # None: recorded by a version that did not store it
    detail: dict[str, Any]


def record(connection: sa.Connection, event: Event, /, **detail: Any) -> None:
    """Stores the event with the current actor."""
    _insert(connection, event, utc_now(), json_text(detail))


def _insert(connection: sa.Connection, event: Event, at: datetime, detail: str) -> None:
    connection.execute(audit.insert().values(at=at, event=event.value, detail=detail, **actor_values()))


def newest(connection: sa.Connection, event: Event) -> AuditEvent | None:
    return next(iter(latest(connection, events=(event,), events_max=1)), None)


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
    rows = connection.execute(query)
    return [from_row(AuditEvent, row, actor=read_actor(row), detail=json.loads(row.detail)) for row in rows]


def followed_since(ledger: Ledger, crons: Mapping[str, str], now: datetime) -> datetime:
    """Returns when a daemon first followed exactly these schedules (by name of the job). The first caller stores it."""
    since = find_followed_since(ledger, crons)
    if since is None:
        ledger.change(_insert, Event.SCHEDULE_FOLLOWED, now, _schedules_text(crons))
    return since or now


def find_followed_since(ledger: Ledger, crons: Mapping[str, str]) -> datetime | None:
    """As `followed_since`, for readers: None if no daemon has followed exactly these schedules."""
    is_same = audit.c.event == Event.SCHEDULE_FOLLOWED.value, audit.c.detail == _schedules_text(crons)
    with ledger.read() as connection:
        first = connection.execute(sa.select(sa.func.min(audit.c.at)).where(*is_same)).scalar()
    return first if isinstance(first, datetime) else None


def _schedules_text(crons: Mapping[str, str]) -> str:
    return json.dumps(dict(sorted(crons.items())))
