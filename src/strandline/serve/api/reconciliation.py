"""The reconciler, as its users know it: status, trigger, runs."""

from __future__ import annotations

import threading
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from strandline.core.documents import Document
from strandline.core.errors import UsageError
from strandline.core.reconcile_records import Asked
from strandline.core.roles import Role
from strandline.serve.api.inputs import AfterId, BeforeId, IdPath, Limit, paged
from strandline.serve.api.runs import RUN_STARTED, cancel_run, start_run
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.needs import needs
from strandline.serve.context import context_of
from strandline.serve.describe import CHANGES, INNER_MAX, NAMED, NUMBER, documented, page_of
from strandline.serve.schemas import FILE_OF_A_RUN, RECONCILE_RUN, RECONCILE_RUN_WITH_FILES, RECONCILIATION
from strandline.serve.work import OnBegun
from strandline.status import reconcile_documents
from strandline.status.reconciliation import load_reconciliation

PLACE = "/api/v1/reconciliation/runs"
KIND = "reconciliation"
router = APIRouter(prefix="/reconciliation", tags=["reconciliation"])


@router.get("/status", summary="Whether it runs, when, and what it found last", **documented(RECONCILIATION))
async def status(request: Request, caller: Caller = needs(Role.READ)) -> Response:
    """Always answers, also where the reconciler is not enabled. A token that is limited to some datasets sees of the
    last run only when it was and how it ended: what it found is of the whole lake, and null."""
    context = context_of(request)

    def load() -> Document:
        found = load_reconciliation(context.lake.config, context.lake.ledger)
        return reconcile_documents.reconciliation(found, whole_lake=not caller.is_limited)

    return await context.read(caller, load)


@router.post("/trigger", summary="Begin a run", **RUN_STARTED)
async def trigger(
    request: Request,
    caller: Caller = needs(Role.ADMIN, whole_lake=True),
    dry_run: Annotated[bool, Query(description="Report only.")] = True,
    act: Annotated[bool, Query(description="Act on what is found; only with `dry_run=false`.")] = False,
) -> Response:
    """Acts only with `dry_run=false&act=true`, also where the schedule only reports. What a guard refuses is the
    outcome of the run. 409 while one runs."""
    context = context_of(request)
    if act == dry_run:
        raise UsageError(
            "`dry_run` and `act` contradict each other" if act else "`dry_run=false` alone does not act",
            hint="A run acts only with dry_run=false&act=true; without both it reports.",
        )

    def work(stopping: threading.Event, begun: OnBegun) -> object:
        return context.lake.reconciler.run(Asked(act=act), cancelled=stopping, on_begun=begun)

    return await start_run(context, caller, KIND, PLACE, work)


@router.get("/runs", summary="Runs, newest first", **documented(page_of("runs", RECONCILE_RUN, NUMBER)))
async def list_runs(
    request: Request,
    caller: Caller = needs(Role.ADMIN, whole_lake=True),
    limit: Limit = 100,
    before: BeforeId = None,
) -> Response:
    context = context_of(request)

    def load() -> Document:
        found = context.lake.reconciler.runs(limit + 1, before=before)
        return paged("runs", found, limit, reconcile_documents.reconcile_run, lambda r: r.id)

    return await context.read(caller, load)


@router.get(
    "/runs/{run}",
    summary="One run, and the first files that it acted on",
    **documented(RECONCILE_RUN_WITH_FILES, problems=NAMED),
)
async def show_run(request: Request, run: IdPath, caller: Caller = needs(Role.ADMIN, whole_lake=True)) -> Response:
    """404 when it is unknown, or not kept any more. What nobody knows (yet), of a run that is under way, ended early or
    died, is null and not 0."""
    context = context_of(request)

    def load() -> Document:
        found, files, total = context.lake.reconciler.show_some(run, files_max=INNER_MAX)
        return reconcile_documents.reconcile_run_with_files(found, files) | {"files_total": total}

    return await context.read(caller, load)


@router.get(
    "/runs/{run}/files",
    summary="The files that a run acted on",
    **documented(page_of("files", FILE_OF_A_RUN, NUMBER), problems=NAMED),
)
async def list_files(
    request: Request,
    run: IdPath,
    caller: Caller = needs(Role.ADMIN, whole_lake=True),
    limit: Limit = 100,
    after: AfterId = None,
) -> Response:
    context = context_of(request)

    def load() -> Document:
        found = context.lake.reconciler.files_of(run, after=after, files_max=limit + 1)
        return paged("files", found, limit, reconcile_documents.quarantined_file, lambda f: f.id)

    return await context.read(caller, load)


@router.post("/runs/{run}/cancel", summary="Call a run off", **documented(RECONCILE_RUN, problems=CHANGES))
async def cancel(request: Request, run: IdPath, caller: Caller = needs(Role.ADMIN, whole_lake=True)) -> Response:
    """Also cancels work of another process. It ends before its next batch; what it did until then is on record."""
    context = context_of(request)
    cancel = context.lake.reconciler.cancel
    return await cancel_run(context, caller, KIND, run, lambda: reconcile_documents.reconcile_run(cancel(run)))
