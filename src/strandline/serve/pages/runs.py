"""Runs of maintenance and of the reconciler, and tasks: what was begun, by whom, and what came of it."""

from __future__ import annotations

from fastapi import APIRouter, Response

from strandline.serve.api import maintenance, reconciliation, tasks
from strandline.serve.api.inputs import BeforeId, IdPath
from strandline.serve.auth.needs import Access, AdminAccess, ReadAccess
from strandline.serve.pages import actions
from strandline.serve.pages.render import PageRoute, document_of, is_admin, page
from strandline.serve.pages.spelling import label

router = APIRouter(include_in_schema=False, route_class=PageRoute)
PAGE = 20
SWEEPS = 8


@router.get("/runs")
async def list_runs(access: ReadAccess, before_run: BeforeId = None, before_task: BeforeId = None) -> Response:
    runs = document_of(await maintenance.list_runs(access, limit=PAGE, before=before_run))
    begun = {"tasks": None, "next": None}
    if is_admin(access.caller):
        begun = document_of(await tasks.list_tasks(access, limit=PAGE, before=before_task))
    sweeps = {"runs": None, "next": None}
    if is_admin(access.caller, whole_lake=True):
        sweeps = document_of(await reconciliation.list_runs(access, limit=SWEEPS))
    return page(
        access,
        "runs.html",
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
async def show_run(access: ReadAccess, run: IdPath) -> Response:
    found = document_of(await maintenance.show_run(access, run))
    title = f"{found['kind']} of {found['dataset']}"
    return _one(access, found, title, f"maintenance/runs/{run}")


@router.get("/runs/tasks/{task}")
async def show_task(access: AdminAccess, task: IdPath) -> Response:
    found = document_of(await tasks.show_task(access, task))
    return _one(access, found, f"{found['kind']} {found['subject']}", f"tasks/{task}")


def _one(access: Access, found: dict[str, object], title: str, place: str) -> Response:
    return page(
        access,
        "run.html",
        at="/runs",
        beats=found["ended_at"] is None,
        run=found,
        title=label(title),
        cancel=actions.call_off(place),
    )
