"""Orphan files that a run of the reconciler has quarantined: list, restore, purge."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import Field

from strandline.core.calling_off import check_not_called_off
from strandline.core.documents import Document, fields_of
from strandline.serve.api.handlers import reads
from strandline.serve.api.inputs import AfterId, Limit, RequestInput, paged
from strandline.serve.api.tasks import TASK_STARTED, start_task, stop_if_cancelled
from strandline.serve.auth.needs import LakeAdminAccess
from strandline.serve.describe import NAMED, NUMBER, documented, page_of
from strandline.serve.schemas import QUARANTINED_FILE
from strandline.status.documents import reconcile_documents

router = APIRouter(prefix="/quarantined-files", tags=["quarantined files"])

_ID_MAX = (1 << 63) - 1


class Restore(RequestInput):
    run: int = Field(ge=1, le=_ID_MAX, description="Every file that this run has quarantined.")


class PurgeFilesInput(RequestInput):
    run: int | None = Field(default=None, ge=1, le=_ID_MAX, description="Only of this run.")
    dry_run: bool = Field(default=False, description="Report which files are due, and change nothing.")


@router.get("", summary="Files in quarantine", **documented(page_of("files", QUARANTINED_FILE, NUMBER), problems=NAMED))
@reads
def list_quarantined_files(
    access: LakeAdminAccess,
    run: Annotated[int | None, Query(ge=1, le=_ID_MAX, description="Only of this run.")] = None,
    limit: Limit = 100,
    after: AfterId = None,
) -> Document:
    found = access.lake.reconciler.quarantined(run, after=after, files_max=limit + 1)
    return paged("files", found, limit, reconcile_documents.quarantined_file_of_run, lambda f: f.id)


@router.post("/restore", summary="Bring files back", **TASK_STARTED)
async def restore_files(access: LakeAdminAccess, wanted: Restore) -> Response:
    """Never replaces a file. May be repeated."""

    def check() -> str:
        access.lake.reconciler.quarantined(wanted.run, files_max=1)  # an unknown run is answered with 404
        return f"run {wanted.run}"

    def work(stopping: threading.Event) -> Mapping[str, Any]:
        return fields_of(access.lake.reconciler.restore(wanted.run, on_progress=stop_if_cancelled))

    return await start_task(access, "restore", check, work)


@router.post("/purge", summary="Delete for good what has been in quarantine long enough", **TASK_STARTED)
async def purge_files(access: LakeAdminAccess, wanted: PurgeFilesInput) -> Response:
    """What a table references by now is brought back instead."""

    def check() -> str:
        if wanted.run is not None:
            access.lake.reconciler.quarantined(wanted.run, files_max=1)
        return "" if wanted.run is None else f"run {wanted.run}"

    def work(stopping: threading.Event) -> Mapping[str, Any]:
        if wanted.dry_run:
            found = fields_of(access.lake.reconciler.files_to_purge(wanted.run))
            check_not_called_off()
            return found
        return fields_of(access.lake.reconciler.purge(wanted.run, on_progress=stop_if_cancelled))

    return await start_task(access, "purge_files_dry_run" if wanted.dry_run else "purge_files", check, work)
