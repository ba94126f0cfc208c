"""Tasks: long work that a person or a client asked for, and that has no other record.

A task is recorded before its work begins. Its process renews the lease for as long as it works. When the lease has
run out, the next reader closes the task as `died`; if the process lives after all, it cannot store another end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NewType
from uuid import uuid4

import sqlalchemy as sa

from strandline.core.actor import Actor, Trigger
from strandline.core.documents import error_document, json_text
from strandline.core.errors import AlreadyRunning, TaskDied
from strandline.core.records.audit_events import Event
from strandline.core.records.task_records import TaskOutcome
from strandline.core.text.bounded_text import check_text
from strandline.core.text.wording import moment
from strandline.core.types import Lease
from strandline.ledger import audit
from strandline.ledger.actor_columns import actor_values, read_actor
from strandline.ledger.engine import from_row, insert_into, utc_now
from strandline.ledger.run_records import Renewed, RunTable
from strandline.ledger.schema.serve import task

TaskId = NewType("TaskId", int)

LEASE_MAX = timedelta(days=2)  # twice the longest that the settings allow: clocks of two machines may differ

_CALLED_OFF_SEARCHED_MAX = 1000  # events


@dataclass(frozen=True, slots=True)
class Task:
    id: TaskId
    kind: str
    subject: str  # what it works on: the name of a sink or a dataset; empty: the whole lake
    node: str
    actor: Actor
    started_at: datetime
    lease_until: datetime | None  # None if it has ended
    stop_asked_at: datetime | None  # None: nobody has called it off
    ended_at: datetime | None
    outcome: TaskOutcome | None  # None while it is under way
    result: Mapping[str, Any] | None  # of a task that is done
    error: Mapping[str, Any] | None  # of a task that was refused, failed, cancelled or died

    def seems_dead(self, now: datetime) -> bool:
        return self.lease_until is not None and self.lease_until <= now


def _task(row: Any) -> Task:
    outcome = None if row.outcome is None else TaskOutcome(row.outcome)
    result, error = (None if text is None else json.loads(text) for text in (row.result, row.error))
    return from_row(Task, row, actor=read_actor(row), outcome=outcome, result=result, error=error)


_TASKS = RunTable(task, sa.select(task), lambda connection, rows: list(map(_task, rows)), "strandline task list")


def begin(connection: sa.Connection, kind: str, subject: str, node: str, *, lease_seconds: float) -> tuple[Task, Lease]:
    """Records a task of the current actor; `AlreadyRunning` if one of this kind works on the same subject."""
    check_text("what a task works on", subject)
    now = utc_now()
    close_dead(connection)
    token = uuid4().hex
    row = connection.execute(
        insert_into(connection, task)
        .values(
            kind=kind,
            subject=subject,
            node=node,
            started_at=now,
            lease_token=token,
            lease_until=now + timedelta(seconds=lease_seconds),
            **actor_values(),
        )
        .on_conflict_do_nothing()
        .returning(task)
    ).one_or_none()
    if row is None:
        raise _already_running(
            _TASKS.latest(connection, _TASKS.running, *_of(kind, subject), runs_max=1), kind, subject
        )
    return _task(row), Lease(row.id, token)


def _already_running(running: list[Task], kind: str, subject: str) -> AlreadyRunning:
    what = f"{kind} of {subject}" if subject else kind
    if not running:  # it has just ended
        return AlreadyRunning(f"{what} was under way a moment ago", hint="Try again.")
    first = running[0]
    return AlreadyRunning(
        f"{what} is under way already: task {first.id} on {first.node}, since {moment(first.started_at)}",
        hint=f"Wait for it, or call it off: `strandline task cancel {first.id}`.",
    )


def _of(kind: str, subject: str) -> tuple[sa.ColumnElement[bool], ...]:
    return task.c.kind == kind, task.c.subject == subject


def _own(lease: Lease) -> tuple[sa.ColumnElement[bool], ...]:
    return task.c.id == lease.row, _TASKS.running, task.c.lease_token == lease.token


def renew(connection: sa.Connection, lease: Lease, *, seconds: float) -> Renewed | None:
    """Extends the lease, and returns whether the task was called off. None if the task has ended: another process took
    it for dead."""
    return _TASKS.renew(connection, *_own(lease), lease_until=utc_now() + timedelta(seconds=seconds))


def end(
    connection: sa.Connection,
    lease: Lease,
    outcome: TaskOutcome,
    *,
    result: Mapping[str, Any] | None = None,
    error: Mapping[str, Any] | None = None,
) -> bool:
    """Stores the end of the task. False, without a change, if it has ended: another process may have taken it for
    dead."""
    ended = {
        "ended_at": utc_now(),
        "outcome": outcome.value,
        "result": _text(result),
        "error": _text(error),
        "lease_token": None,
        "lease_until": None,
    }
    return connection.execute(task.update().where(*_own(lease)).values(ended)).rowcount == 1


def _text(document: Mapping[str, Any] | None) -> str | None:
    # Escaped, since an error may quote bytes of a path that are not text.
    return None if document is None else json.dumps(json.loads(json_text(dict(document))))


def ask_to_stop(connection: sa.Connection, id: int) -> Task:
    """Calls a task off; its process sees it when it next renews the lease. A task that has ended stays as it is."""
    if _TASKS.ask_to_stop(connection, id):
        called_off = get(connection, id)
        audit.record(connection, Event.TASK_CALLED_OFF, task=id, kind=called_off.kind, subject=called_off.subject)
    return get(connection, id)


def stop_asked_by(connection: sa.Connection, id: int) -> str | None:
    """The name of the actor who has called the task off; None if nobody has, or if too many tasks were called off
    since."""
    events = audit.latest(connection, events=(Event.TASK_CALLED_OFF,), events_max=_CALLED_OFF_SEARCHED_MAX)
    by = next((event.actor for event in events if event.detail["task"] == id), None)
    return None if by is None else by.name


def close_dead(connection: sa.Connection) -> int:
    """Closes tasks whose lease has run out. Returns how many.

    A lease that ends later than any lease can is from before a clock was set back, and counts as run out. The limit is
    `LEASE_MAX`, not this process's setting: another process may have a longer one."""
    now = utc_now()
    died = TaskDied(
        "its process has stopped renewing its lease", hint="What it had finished stays. Start the work again."
    )
    closed = connection.execute(
        task.update()
        .where(_TASKS.running, sa.or_(task.c.lease_until <= now, task.c.lease_until > now + LEASE_MAX))
        .values(
            ended_at=now,
            outcome=TaskOutcome.DIED.value,
            error=_text(error_document(died)),
            lease_token=None,
            lease_until=None,
        )
    )
    return closed.rowcount


def get(connection: sa.Connection, id: int) -> Task:
    return _TASKS.get(connection, id)


@dataclass(frozen=True, slots=True)
class BegunBy:
    """Selects the tasks that a token has begun. The token's name alone is not enough: a user of the command line may
    have the same name, and so may a token that was revoked before this one was made."""

    token: str
    since: datetime  # when the token was made

    def has_begun(self, candidate: Task) -> bool:
        is_own = candidate.actor.name == self.token and candidate.actor.trigger in _OF_TOKENS
        return is_own and candidate.started_at >= self.since


_OF_TOKENS = (Trigger.API, Trigger.PAGE)


def latest(
    connection: sa.Connection,
    *,
    kind: str | None = None,
    subject: str | None = None,
    begun_by: BegunBy | None = None,
    before: int | None = None,
    tasks_max: int = 20,
) -> list[Task]:
    """Newest first; `before` is the id of the last task of the previous page."""
    wanted: list[sa.ColumnElement[bool]] = []
    if begun_by is not None:
        by_token = task.c.trigger.in_([trigger.value for trigger in _OF_TOKENS])
        wanted += [task.c.actor == begun_by.token, by_token, task.c.started_at >= begun_by.since]
    if kind is not None:
        wanted.append(task.c.kind == kind)
    if subject is not None:
        wanted.append(task.c.subject == subject)
    if before is not None:
        wanted.append(task.c.id < before)
    return _TASKS.latest(connection, *wanted, runs_max=tasks_max)


def forget_old(connection: sa.Connection, *, tasks_kept: int) -> int:
    """Deletes all but the newest tasks, and none that is under way. Returns how many."""
    old = (~_TASKS.running, task.c.id.not_in(_TASKS.newest_ids(runs_max=tasks_kept)))
    return connection.execute(task.delete().where(*old)).rowcount
