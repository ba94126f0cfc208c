"""Drift between tables and storage: what the reconciler found, its runs, and files in quarantine."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from strandline.core.roles import Role
from strandline.serve.api import quarantined_files, reconciliation
from strandline.serve.api.inputs import AfterId, BeforeId, IdPath
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.needs import needs
from strandline.serve.pages import actions
from strandline.serve.pages.render import PageRoute, document_of, is_admin, page, source_of

router = APIRouter(include_in_schema=False, route_class=PageRoute)
RUNS = 20
FILES = 50
FOUND_WORDS = {
    "missing": "Missing files",
    "orphans": "Orphan files",
    "foreign": "Foreign files",
    "bytes": "Size of all but missing files",
    "superseded": "Superseded metadata files",
}
DONE_WORDS = {
    "missing": "Entries of missing files dropped",
    "orphans": "Orphan files moved aside or deleted",
    "foreign": "Foreign files moved aside or deleted",
    "bytes": "Size",
    "restored": "Missing files brought back",
    "skipped_recheck": "Left, because they had changed",
    "failed": "Failed",
    "recheck_failed": "Left, because they could not be checked again",
    "superseded": "Superseded metadata files moved aside or deleted",
}


@router.get("/drift")
async def drift(
    request: Request, caller: Caller = needs(Role.READ), before: BeforeId = None, after: AfterId = None
) -> Response:
    look = await source_of(request).newest()
    found = document_of(await reconciliation.status(request, caller))
    runs: dict[str, object] = {"runs": None, "next": None}
    files: dict[str, object] = {"files": None, "next": None}
    if is_admin(caller, whole_lake=True):
        runs = document_of(await reconciliation.list_runs(request, caller, RUNS, before))
        files = document_of(await quarantined_files.list_quarantined_files(request, caller, None, FILES, after))
    return page(
        request,
        "drift.html",
        caller,
        at="/drift",
        beats=True,
        look=look,
        drift=look.seen_by(caller).reconcile,
        reconciler=found,
        runs=runs["runs"],
        runs_next=runs["next"],
        files=files["files"],
        files_next=files["next"],
        actions=actions.reconcile_actions(),
        file_actions=actions.quarantined_file_actions(),
    )


@router.get("/drift/runs/{run}")
async def show_run(request: Request, run: IdPath, caller: Caller = needs(Role.ADMIN, whole_lake=True)) -> Response:
    found = document_of(await reconciliation.show_run(request, run, caller))
    return page(
        request,
        "drift_run.html",
        caller,
        at="/drift",
        beats=found["ended_at"] is None,
        run=found,
        found_words=FOUND_WORDS,
        done_words=DONE_WORDS,
        cancel=actions.call_off(f"reconciliation/runs/{run}"),
        file_actions=actions.quarantined_file_actions(),
    )
