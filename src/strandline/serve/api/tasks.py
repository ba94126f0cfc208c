"""Tasks: long work that requests have started, to look at and to call off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from strandline.core.documents import Document
from strandline.core.errors import NoSuchRun
from strandline.core.roles import Role
from strandline.jobs.tasks import Work
from strandline.ledger.tasks import BegunBy, Task
from strandline.serve.api.inputs import BeforeId, IdPath, Limit, Text, paged
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.needs import needs
from strandline.serve.context import ServeContext, context_of
from strandline.serve.describe import CHANGES, NAMED, NUMBER, TEXT, Schema, documented, fields, page_of
from strandline.serve.problems import hint_for
from strandline.serve.schemas import TASK
from strandline.status import documents

PLACE = "/api/v1/tasks"
router = APIRouter(prefix="/tasks", tags=["tasks"])


_BEGUN = fields(task=NUMBER, place=TEXT)
_BEGUN_SAID = "Begun: look at its place."


def task_started(also: Mapping[int, tuple[str, Schema]] | None = None) -> dict[str, Any]:
    """The arguments of a route that begins a task; `also`: what else it may answer."""
    return documented(_BEGUN, status=202, problems=CHANGES, said=_BEGUN_SAID, also=also)


def done_or_started(schema: Schema, *, status: int = 200, said: str = "Done.") -> dict[str, Any]:
    """The arguments of a route that begins a task only if that takes long."""
    return documented(schema, status=status, problems=CHANGES, said=said, also={202: (_BEGUN_SAID, _BEGUN)})


TASK_STARTED = task_started()


async def start_task(
    context: ServeContext, caller: Caller, kind: str, check: Callable[[], str], work: Work
) -> Response:
    """Answers 202 when the task is on record. `check` returns its subject; what it raises is answered instead."""

    def start() -> Document:
        made = context.work.tasks.start(kind, check(), work)
        return {"task": made.id, "place": f"{PLACE}/{made.id}"}

    return await context.start(caller, start)


def _seen_by(caller: Caller) -> BegunBy | None:
    """A token that is limited to some datasets sees what it has begun itself. None: every task."""
    return BegunBy(caller.token.name, caller.token.created_at) if caller.is_limited else None


def _shown(caller: Caller, task: Task) -> Document:
    found = documents.task(task)
    if (error := found["error"]) is not None:
        found["error"] = {**error, "hint": hint_for(error["type"], error["hint"], limited=caller.is_limited)}
    return found


def _check_sees(caller: Caller, task: Task) -> Task:
    seen = _seen_by(caller)
    if seen is not None and not seen.has_begun(task):
        raise NoSuchRun(f"there is no run {task.id}", hint="`GET /api/v1/tasks` lists the tasks.")
    return task


@router.get("", summary="Tasks, newest first", **documented(page_of("tasks", TASK, NUMBER)))
async def list_tasks(
    request: Request,
    caller: Caller = needs(Role.ADMIN),
    kind: Text | None = None,
    subject: Text | None = None,
    limit: Limit = 100,
    before: BeforeId = None,
) -> Response:
    context = context_of(request)

    def load() -> Document:
        found = context.work.tasks.latest(
            kind=kind, subject=subject, begun_by=_seen_by(caller), before=before, tasks_max=limit + 1
        )
        return paged("tasks", found, limit, lambda t: _shown(caller, t), lambda t: t.id)

    return await context.read(caller, load)


@router.get("/{task}", summary="One task, and its result", **documented(TASK, problems=NAMED))
async def show_task(request: Request, task: IdPath, caller: Caller = needs(Role.ADMIN)) -> Response:
    context = context_of(request)
    return await context.read(caller, lambda: _shown(caller, _check_sees(caller, context.work.tasks.get(task))))


@router.post("/{task}/cancel", summary="Call a task off", **documented(TASK, problems=CHANGES))
async def cancel_task(request: Request, task: IdPath, caller: Caller = needs(Role.ADMIN)) -> Response:
    """Also cancels work of another process. The work ends at its next durable step; what it had finished stays."""
    context = context_of(request)

    def cancel() -> Document:
        _check_sees(caller, context.work.tasks.get(task))
        return _shown(caller, context.work.tasks.cancel(task))

    return await context.change(caller, cancel, is_short=True)
