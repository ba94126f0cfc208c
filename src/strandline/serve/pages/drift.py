"""Drift between tables and storage: what the reconciler found, its runs, and files in quarantine."""

from __future__ import annotations

from fastapi import APIRouter, Response

from strandline.serve.api import quarantined_files, reconciliation
from strandline.serve.api.inputs import AfterId, BeforeId, IdPath
from strandline.serve.auth.needs import LakeAdminAccess, ReadAccess
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
    "orphans": "Orphan files quarantined or deleted",
    "foreign": "Foreign files quarantined or deleted",
    "bytes": "Size",
    "restored": "Missing files brought back",
    "skipped_recheck": "Left, because they had changed",
    "failed": "Failed",
    "recheck_failed": "Left, because they could not be checked again",
    "superseded": "Superseded metadata files quarantined or deleted",
}


@router.get("/drift")
async def drift(access: ReadAccess, before: BeforeId = None, after: AfterId = None) -> Response:
    status = await source_of(access).newest(access.caller)
    found = document_of(await reconciliation.status(access))
    runs: dict[str, object] = {"runs": None, "next": None}
    files: dict[str, object] = {"files": None, "next": None}
    if is_admin(access.caller, whole_lake=True):
        runs = document_of(await reconciliation.list_runs(access, RUNS, before))
        files = document_of(await quarantined_files.list_quarantined_files(access, None, FILES, after))
    return page(
        access,
        "drift.html",
        at="/drift",
        beats=True,
        drift=status.reconcile,
        reconciler=found,
        runs=runs["runs"],
        runs_next=runs["next"],
        files=files["files"],
        files_next=files["next"],
        actions=actions.reconcile_actions(),
        file_actions=actions.quarantined_file_actions(),
    )


@router.get("/drift/runs/{run}")
async def show_run(access: LakeAdminAccess, run: IdPath) -> Response:
    found = document_of(await reconciliation.show_run(access, run))
    return page(
        access,
        "drift_run.html",
        at="/drift",
        beats=found["ended_at"] is None,
        run=found,
        found_words=FOUND_WORDS,
        done_words=DONE_WORDS,
        cancel=actions.call_off(f"reconciliation/runs/{run}"),
        file_actions=actions.quarantined_file_actions(),
    )
