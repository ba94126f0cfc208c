"""Orphan files that a run of the reconciler has moved aside: list, restore, purge."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from strandline.core.calling_off import check_going
from strandline.core.documents import Document, fields_of
from strandline.core.roles import Role
from strandline.serve.api.inputs import AfterId, Body, Limit, paged
from strandline.serve.api.tasks import TASK_STARTED, start_task
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.needs import needs
from strandline.serve.context import context_of
from strandline.serve.describe import NAMED, NUMBER, documented, page_of
from strandline.serve.schemas import QUARANTINED_FILE
from strandline.status import reconcile_documents

router = APIRouter(prefix="/quarantined-files", tags=["quarantined files"])

_ID_MAX = (1 << 63) - 1


class Restore(Body):
    run: int = Field(ge=1, le=_ID_MAX, description="Every file that this run has moved aside.")


class Purge(Body):
    run: int | None = Field(default=None, ge=1, le=_ID_MAX, description="Only of this run.")
    dry_run: bool = Field(default=False, description="Report which files are due, and change nothing.")


@router.get("", summary="Files in quarantine", **documented(page_of("files", QUARANTINED_FILE, NUMBER), problems=NAMED))
async def list_quarantined_files(
    request: Request,
    caller: Caller = needs(Role.ADMIN, whole_lake=True),
    run: Annotated[int | None, Query(ge=1, le=_ID_MAX, description="Only of this run.")] = None,
    limit: Limit = 100,
    after: AfterId = None,
) -> Response:
    context = context_of(request)

    def load() -> Document:
        found = context.lake.reconciler.quarantined(run, after=after, files_max=limit + 1)
        return paged("files", found, limit, reconcile_documents.quarantined_file_of_run, lambda f: f.id)

    return await context.read(caller, load)


@router.post("/restore", summary="Bring files back", **TASK_STARTED)
async def restore_files(
    request: Request, wanted: Restore, caller: Caller = needs(Role.ADMIN, whole_lake=True)
) -> Response:
    """Never replaces a file. May be repeated."""
    context = context_of(request)

    def check() -> str:
        context.lake.reconciler.quarantined(wanted.run, files_max=1)  # an unknown run is answered with 404
        return f"run {wanted.run}"

    def work(stopping: threading.Event) -> Mapping[str, Any]:
        told = lambda done, total: check_going()  # noqa: E731
        return fields_of(context.lake.reconciler.restore(wanted.run, on_progress=told))

    return await start_task(context, caller, "restore", check, work)


@router.post("/purge", summary="Delete for good what was moved aside long enough ago", **TASK_STARTED)
async def purge_files(request: Request, wanted: Purge, caller: Caller = needs(Role.ADMIN, whole_lake=True)) -> Response:
    """What a table references by now is brought back instead."""
    context = context_of(request)

    def check() -> str:
        if wanted.run is not None:
            context.lake.reconciler.quarantined(wanted.run, files_max=1)
        return "" if wanted.run is None else f"run {wanted.run}"

    def work(stopping: threading.Event) -> Mapping[str, Any]:
        if wanted.dry_run:
            found = fields_of(context.lake.reconciler.files_to_purge(wanted.run))
            check_going()
            return found
        told = lambda done, total: check_going()  # noqa: E731
        return fields_of(context.lake.reconciler.purge(wanted.run, on_progress=told))

    return await start_task(context, caller, "purge_files_dry_run" if wanted.dry_run else "purge_files", check, work)
