"""The reconciler, as its users know it: status, trigger, runs."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Response

from strandline.core.documents import Document
from strandline.core.errors import UsageError
from strandline.core.records.reconcile_records import Asked, ReconcileRunId
from strandline.reconcile.run_listener import RunListener
from strandline.serve.api.handlers import reads
from strandline.serve.api.inputs import AfterId, BeforeId, IdPath, Limit, paged
from strandline.serve.api.runs import RUN_STARTED, cancel_run, start_run
from strandline.serve.auth.needs import LakeAdminAccess, ReadAccess
from strandline.serve.describe import CHANGES, INNER_MAX, NAMED, NUMBER, documented, page_of
from strandline.serve.schemas import FILE_OF_A_RUN, RECONCILE_RUN, RECONCILE_RUN_WITH_FILES, RECONCILIATION
from strandline.serve.work import OnBegun
from strandline.status.documents import reconcile_documents
from strandline.status.reconciliation import load_reconciliation

PLACE = "/api/v1/reconciliation/runs"
KIND = "reconciliation"
router = APIRouter(prefix="/reconciliation", tags=["reconciliation"])


@dataclass(frozen=True)
class _Begun(RunListener):
    """Passes the run's id on, which the answer to the request names."""

    note: OnBegun

    def begun(self, run: ReconcileRunId) -> None:
        self.note(run)


@router.get("/status", summary="Whether it runs, when, and what it found last", **documented(RECONCILIATION))
@reads
def status(access: ReadAccess) -> Document:
    """Always answers, also where the reconciler is not enabled. A token that is limited to some datasets sees of the
    last run only when it was and how it ended: what it found is of the whole lake, and null."""
    found = load_reconciliation(access.lake.config, access.lake.ledger, access.lake.reconciler)
    return reconcile_documents.reconciliation(found, whole_lake=not access.caller.is_limited)


@router.post("/trigger", summary="Begin a run", **RUN_STARTED)
async def trigger(
    access: LakeAdminAccess,
    dry_run: Annotated[bool, Query(description="Report only.")] = True,
    act: Annotated[bool, Query(description="Act on what is found; only with `dry_run=false`.")] = False,
) -> Response:
    """Acts only with `dry_run=false&act=true`, also where the schedule only reports. What a guard refuses is the
    outcome of the run. 409 while one runs."""
    if act == dry_run:
        raise UsageError(
            "`dry_run` and `act` contradict each other" if act else "`dry_run=false` alone does not act",
            hint="A run acts only with dry_run=false&act=true; without both it reports.",
        )

    def work(stopping: threading.Event, begun: OnBegun) -> object:
        return access.lake.reconciler.run(Asked(act=act), cancelled=stopping, listener=_Begun(begun))

    return await start_run(access, KIND, PLACE, work)


@router.get("/runs", summary="Runs, newest first", **documented(page_of("runs", RECONCILE_RUN, NUMBER)))
@reads
def list_runs(access: LakeAdminAccess, limit: Limit = 100, before: BeforeId = None) -> Document:
    found = access.lake.reconciler.runs(limit + 1, before=before)
    return paged("runs", found, limit, reconcile_documents.reconcile_run, lambda r: r.id)


@router.get(
    "/runs/{run}",
    summary="One run, and the first files that it acted on",
    **documented(RECONCILE_RUN_WITH_FILES, problems=NAMED),
)
@reads
def show_run(access: LakeAdminAccess, run: IdPath) -> Document:
    """404 when it is unknown, or not kept any more. What nobody knows (yet), of a run that is under way, ended early or
    died, is null and not 0."""
    found, files, total = access.lake.reconciler.show_some(run, files_max=INNER_MAX)
    return reconcile_documents.reconcile_run_with_files(found, files) | {"files_total": total}


@router.get(
    "/runs/{run}/files",
    summary="The files that a run acted on",
    **documented(page_of("files", FILE_OF_A_RUN, NUMBER), problems=NAMED),
)
@reads
def list_files(access: LakeAdminAccess, run: IdPath, limit: Limit = 100, after: AfterId = None) -> Document:
    found = access.lake.reconciler.files_of(run, after=after, files_max=limit + 1)
    return paged("files", found, limit, reconcile_documents.quarantined_file, lambda f: f.id)


@router.post("/runs/{run}/cancel", summary="Call a run off", **documented(RECONCILE_RUN, problems=CHANGES))
async def cancel(access: LakeAdminAccess, run: IdPath) -> Response:
    """Also cancels work of another process. It ends before its next batch; what it did until then is on record."""
    cancel = access.lake.reconciler.cancel
    return await cancel_run(access, KIND, run, lambda: reconcile_documents.reconcile_run(cancel(run)))
