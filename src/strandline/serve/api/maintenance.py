"""Maintenance: compact, retain, expire, purge; and the record of runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import Field

from strandline.core.documents import Document
from strandline.core.errors import NoSuchRun
from strandline.core.records.maintenance_records import MaintenanceKind
from strandline.ledger.maintain.runs import MaintenanceRun
from strandline.maintain.runs import RunControl, RunResult, redacted
from strandline.serve.api.handlers import reads
from strandline.serve.api.inputs import (
    BeforeId,
    DurationInput,
    IdPath,
    Limit,
    LongText,
    Name,
    RequestInput,
    Text,
    paged,
)
from strandline.serve.api.runs import STARTED_SAID, cancel_run, start_run
from strandline.serve.api.tasks import PLACE as TASKS
from strandline.serve.auth.needs import Access, AdminAccess, ReadAccess
from strandline.serve.describe import CHANGES, NAMED, NUMBER, TEXT, documented, page_of
from strandline.serve.schemas import MAINTENANCE_RUN
from strandline.serve.work import OnBegun
from strandline.status.documents import lake_documents

PLACE = "/api/v1/maintenance/runs"
KIND = "maintenance"
router = APIRouter(prefix="/maintenance", tags=["maintenance"])

BEGUN = documented(
    {
        "type": "object",
        "properties": {"run": NUMBER, "task": NUMBER, "place": TEXT},
        "required": ["place"],
        "description": "`run`, or `task` for a dry run, which leaves no run behind until it has ended.",
    },
    status=202,
    problems=CHANGES,
    said=STARTED_SAID,
)


class MaintenanceInput(RequestInput):
    dataset: Name
    dry_run: bool = Field(
        default=False, description="Report what would be done, and change nothing. Its result is a task."
    )


class Retain(MaintenanceInput):
    """What is left out is as the dataset's rule says it."""

    older_than: DurationInput | None = None
    column: Text | None = None
    on_lag: Literal["hold", "drop"] | None = None
    drop_after: DurationInput | None = None
    paused_sinks: Literal["count", "ignore"] | None = None
    accept_clock: bool = False


class Expire(MaintenanceInput):
    older_than: DurationInput | None = None
    keep_min: int | None = Field(default=None, ge=1, le=1_000_000)


class PurgeInput(MaintenanceInput):
    where: LongText = Field(min_length=1, description="Which rows, in Spark SQL: `who = 'ada'`.")
    keep_snapshots: bool = False


async def _begin(
    access: Access, kind: MaintenanceKind, wanted: MaintenanceInput, run: Callable[..., RunResult[Any]]
) -> Response:
    def name() -> str:
        return access.lake.dataset(access.caller.check_sees(wanted.dataset)).name

    def do(control: RunControl) -> MaintenanceRun:
        return run(**dict(wanted) | {"dataset": name(), "control": control}).run

    if not wanted.dry_run:

        def work(stopping: threading.Event, begun: OnBegun) -> object:
            return do(RunControl(stopping, begun))

        return await start_run(access, KIND, PLACE, work)

    def rehearse(stopping: threading.Event) -> Mapping[str, Any]:
        return lake_documents.maintenance_run(do(RunControl(stopping)))

    def start() -> Document:
        made = access.context.work.tasks.start(f"{kind}_dry_run", name(), rehearse)
        return {"task": made.id, "place": f"{TASKS}/{made.id}"}

    return await access.context.start(access.caller, start)


@router.post("/compact", summary="Rewrite small files as large ones", **BEGUN)
async def compact(access: AdminAccess, wanted: MaintenanceInput) -> Response:
    return await _begin(access, MaintenanceKind.COMPACT, wanted, access.lake.maintenance.compact)


@router.post("/retain", summary="Delete rows that are old enough, once every sink has them", **BEGUN)
async def retain(access: AdminAccess, wanted: Retain) -> Response:
    return await _begin(access, MaintenanceKind.RETAIN, wanted, access.lake.maintenance.retain)


@router.post("/expire", summary="Remove old snapshots, and the files that only they had", **BEGUN)
async def expire(access: AdminAccess, wanted: Expire) -> Response:
    return await _begin(access, MaintenanceKind.EXPIRE, wanted, access.lake.maintenance.expire)


@router.post("/purge", summary="Delete rows wherever the lake has them", **BEGUN)
async def purge(access: AdminAccess, wanted: PurgeInput) -> Response:
    """For a person who asks to be forgotten. Sinks keep what they were given; the result names those that may hold such
    rows."""

    def delete(**given: Any) -> RunResult[Any]:
        try:
            return access.lake.maintenance.purge(**given)
        except Exception as e:
            # Without its cause, too: unexpected errors of such work are logged with their causes.
            raise redacted(e) from None

    return await _begin(access, MaintenanceKind.PURGE, wanted, delete)


@router.get(
    "/runs", summary="Runs, newest first", **documented(page_of("runs", MAINTENANCE_RUN, NUMBER), problems=NAMED)
)
@reads
def list_runs(
    access: ReadAccess,
    dataset: Annotated[Text | None, Query(description="Only of this dataset.")] = None,
    kind: Annotated[MaintenanceKind | None, Query(description="Only of this kind.")] = None,
    limit: Limit = 100,
    before: BeforeId = None,
) -> Document:
    named = None if dataset is None else access.caller.check_sees(dataset)
    found = access.lake.maintenance.runs(
        named,
        None if kind is None else kind.value,
        only=access.caller.token.datasets,
        before=before,
        runs_max=limit + 1,
    )
    return paged("runs", found, limit, lake_documents.maintenance_run, lambda r: r.id)


@router.get("/runs/{run}", summary="One run, with its result", **documented(MAINTENANCE_RUN, problems=NAMED))
@reads
def show_run(access: ReadAccess, run: IdPath) -> Document:
    return lake_documents.maintenance_run(_get(access, run))


def _get(access: Access, run: int) -> MaintenanceRun:
    found = access.lake.maintenance.get(run)
    if not access.caller.sees(found.dataset):
        raise NoSuchRun(f"there is no run {run}", hint="`GET /api/v1/maintenance/runs` lists the stored ones.")
    return found


@router.post("/runs/{run}/cancel", summary="Call a run off", **documented(MAINTENANCE_RUN, problems=CHANGES))
async def cancel(access: AdminAccess, run: IdPath) -> Response:
    """Also cancels work of another process. The work ends before its next durable step; what it has committed stays."""

    def call_off() -> Document:
        _get(access, run)  # refuses a run of a dataset that the caller must not know of
        return lake_documents.maintenance_run(access.lake.maintenance.cancel(run))

    return await cancel_run(access, KIND, run, call_off)
