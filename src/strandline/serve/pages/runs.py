"""Runs of maintenance and of the reconciler, and tasks: what was begun, by whom, and what came of it."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from strandline.core.roles import Role
from strandline.serve.api import maintenance, reconciliation, tasks
from strandline.serve.api.inputs import BeforeId, IdPath
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.needs import needs
from strandline.serve.pages import actions
from strandline.serve.pages.render import PageRoute, document_of, is_admin, page
from strandline.serve.pages.spelling import label

router = APIRouter(include_in_schema=False, route_class=PageRoute)
PAGE = 20
SWEEPS = 8


@router.get("/runs")
async def list_runs(
    request: Request,
    caller: Caller = needs(Role.READ),
    before_run: BeforeId = None,
    before_task: BeforeId = None,
) -> Response:
    runs = document_of(await maintenance.list_runs(request, caller, limit=PAGE, before=before_run))
    begun = {"tasks": None, "next": None}
    if is_admin(caller):
        begun = document_of(await tasks.list_tasks(request, caller, limit=PAGE, before=before_task))
    sweeps = {"runs": None, "next": None}
    if is_admin(caller, whole_lake=True):
        sweeps = document_of(await reconciliation.list_runs(request, caller, limit=SWEEPS))
    return page(
        request,
        "runs.html",
        caller,
        at="/runs",
        beats=True,
        runs=runs["runs"],
        runs_next=runs["next"],
        sweeps=sweeps["runs"],
        more_sweeps=sweeps["next"],
        tasks=begun["tasks"],
        tasks_next=begun["next"],
    )


@router.get("/runs/maintenance/{run}")
async def show_run(request: Request, run: IdPath, caller: Caller = needs(Role.READ)) -> Response:
    found = document_of(await maintenance.show_run(request, run, caller))
    title = f"{found['kind']} of {found['dataset']}"
    return _one(request, caller, found, title, f"maintenance/runs/{run}")


@router.get("/runs/tasks/{task}")
async def show_task(request: Request, task: IdPath, caller: Caller = needs(Role.ADMIN)) -> Response:
    found = document_of(await tasks.show_task(request, task, caller))
    return _one(request, caller, found, f"{found['kind']} {found['subject']}", f"tasks/{task}")


def _one(request: Request, caller: Caller, found: dict[str, object], title: str, place: str) -> Response:
    return page(
        request,
        "run.html",
        caller,
        at="/runs",
        beats=found["ended_at"] is None,
        run=found,
        title=label(title),
        cancel=actions.call_off(place),
    )
