"""Tasks: long work that requests have started. Shows them and calls them off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter, Response

from strandline.core.calling_off import check_not_called_off
from strandline.core.documents import Document
from strandline.core.errors import NoSuchRun
from strandline.jobs.tasks import TaskWork
from strandline.ledger.tasks import BegunBy, Task
from strandline.serve.api.handlers import changes_lake, reads
from strandline.serve.api.inputs import BeforeId, IdPath, Limit, Text, paged
from strandline.serve.api.runs import STARTED_SAID
from strandline.serve.auth.needs import Access, AdminAccess
from strandline.serve.describe import CHANGES, NAMED, NUMBER, TEXT, Schema, documented, fields, page_of
from strandline.serve.problems import hint_for
from strandline.serve.schemas import TASK
from strandline.status.documents import lake_documents

PLACE = "/api/v1/tasks"
router = APIRouter(prefix="/tasks", tags=["tasks"])


_BEGUN = fields(task=NUMBER, place=TEXT)


def task_started(also: Mapping[int, tuple[str, Schema]] | None = None) -> dict[str, Any]:
    """The arguments of a route that begins a task; `also`: what else it may answer."""
    return documented(_BEGUN, status=202, problems=CHANGES, said=STARTED_SAID, also=also)


def done_or_started(schema: Schema, *, status: int = 200, said: str = "Done.") -> dict[str, Any]:
    """The arguments of a route that begins a task only if that takes long."""
    return documented(schema, status=status, problems=CHANGES, said=said, also={202: (STARTED_SAID, _BEGUN)})


TASK_STARTED = task_started()


def stop_if_cancelled(*_progress: object) -> None:
    """Ends the work of a task that was called off, where the work reports its progress."""
    check_not_called_off()


async def start_task(access: Access, kind: str, check: Callable[[], str], work: TaskWork) -> Response:
    """Answers 202 when the task is on record. `check` returns its subject; what it raises is answered instead."""

    def start() -> Document:
        made = access.context.work.tasks.start(kind, check(), work)
        return {"task": made.id, "place": f"{PLACE}/{made.id}"}

    return await access.context.start(access.caller, start)


def _seen_by(access: Access) -> BegunBy | None:
    """A token that is limited to some datasets sees what it has begun itself. None: every task."""
    token = access.caller.token
    return BegunBy(token.name, token.created_at) if access.caller.is_limited else None


def _shown(access: Access, task: Task) -> Document:
    found = lake_documents.task(task)
    if (error := found["error"]) is not None:
        found["error"] = {**error, "hint": hint_for(error["type"], error["hint"], limited=access.caller.is_limited)}
    return found


def _check_sees(access: Access, task: Task) -> Task:
    seen = _seen_by(access)
    if seen is not None and not seen.has_begun(task):
        raise NoSuchRun(f"there is no run {task.id}", hint="`GET /api/v1/tasks` lists the tasks.")
    return task


@router.get("", summary="Tasks, newest first", **documented(page_of("tasks", TASK, NUMBER)))
@reads
def list_tasks(
    access: AdminAccess,
    kind: Text | None = None,
    subject: Text | None = None,
    limit: Limit = 100,
    before: BeforeId = None,
) -> Document:
    found = access.context.work.tasks.latest(
        kind=kind, subject=subject, begun_by=_seen_by(access), before=before, tasks_max=limit + 1
    )
    return paged("tasks", found, limit, lambda t: _shown(access, t), lambda t: t.id)


@router.get("/{task}", summary="One task, and its result", **documented(TASK, problems=NAMED))
@reads
def show_task(access: AdminAccess, task: IdPath) -> Document:
    return _shown(access, _check_sees(access, access.context.work.tasks.get(task)))


@router.post("/{task}/cancel", summary="Call a task off", **documented(TASK, problems=CHANGES))
@changes_lake(is_short=True)
def cancel_task(access: AdminAccess, task: IdPath) -> Document:
    """Also cancels work of another process. The work ends at its next durable step; what it had finished stays."""
    _check_sees(access, access.context.work.tasks.get(task))
    return _shown(access, access.context.work.tasks.cancel(task))
