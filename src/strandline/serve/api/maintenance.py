"""Maintenance: compact, retain, expire, purge; and the record of runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from strandline.core.documents import Document
from strandline.core.errors import NoSuchRun
from strandline.core.roles import Role
from strandline.ledger.maintain.runs import Kind, Run
from strandline.maintain.runs import RunControl, RunResult, wordless
from strandline.serve.api.inputs import BeforeId, Body, Duration, IdPath, Limit, LongText, Name, Text, length, paged
from strandline.serve.api.runs import cancel_run, start_run
from strandline.serve.api.tasks import PLACE as TASKS
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.needs import needs
from strandline.serve.context import ServeContext, context_of
from strandline.serve.describe import CHANGES, NAMED, NUMBER, TEXT, documented, page_of
from strandline.serve.schemas import MAINTENANCE_RUN
from strandline.serve.work import OnBegun
from strandline.status import documents

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
    said="Begun: look at its place.",
)


class Wanted(Body):
    dataset: Name
    dry_run: bool = Field(
        default=False, description="Report what would be done, and change nothing. Its result is a task."
    )


class Retain(Wanted):
    """What is left out is as the dataset's rule says it."""

    older_than: Duration | None = None
    column: Text | None = None
    on_lag: Literal["hold", "drop"] | None = None
    drop_after: Duration | None = None
    paused_sinks: Literal["count", "ignore"] | None = None
    accept_clock: bool = False


class Expire(Wanted):
    older_than: Duration | None = None
    keep_min: int | None = Field(default=None, ge=1, le=1_000_000)


class Purge(Wanted):
    where: LongText = Field(min_length=1, description="Which rows, in Spark SQL: `who = 'ada'`.")
    keep_snapshots: bool = False


Do = Callable[[str, RunControl], RunResult[Any]]


async def _begin(context: ServeContext, caller: Caller, kind: Kind, wanted: Wanted, do: Do) -> Response:
    def name() -> str:
        return context.lake.dataset(caller.check_sees(wanted.dataset)).name

    if not wanted.dry_run:

        def work(stopping: threading.Event, begun: OnBegun) -> object:
            return do(name(), RunControl(stopping, begun))

        return await start_run(context, caller, KIND, PLACE, work)

    def rehearse(stopping: threading.Event) -> Mapping[str, Any]:
        return documents.maintenance_run(do(name(), RunControl(stopping)).run)

    def start() -> Document:
        made = context.work.tasks.start(f"{kind}_dry_run", name(), rehearse)
        return {"task": made.id, "place": f"{TASKS}/{made.id}"}

    return await context.start(caller, start)


@router.post("/compact", summary="Write small files anew as large ones", **BEGUN)
async def compact(request: Request, wanted: Wanted, caller: Caller = needs(Role.ADMIN)) -> Response:
    context = context_of(request)
    do: Do = lambda name, control: context.lake.maintenance.compact(  # noqa: E731
        name, dry_run=wanted.dry_run, control=control
    )
    return await _begin(context, caller, Kind.COMPACT, wanted, do)


@router.post("/retain", summary="Delete rows that are old enough, once every sink has them", **BEGUN)
async def retain(request: Request, wanted: Retain, caller: Caller = needs(Role.ADMIN)) -> Response:
    context = context_of(request)
    do: Do = lambda name, control: context.lake.maintenance.retain(  # noqa: E731
        name,
        older_than=length(wanted.older_than),
        column=wanted.column,
        on_lag=wanted.on_lag,
        drop_after=length(wanted.drop_after),
        paused_sinks=wanted.paused_sinks,
        accept_clock=wanted.accept_clock,
        dry_run=wanted.dry_run,
        control=control,
    )
    return await _begin(context, caller, Kind.RETAIN, wanted, do)


@router.post("/expire", summary="Remove old snapshots, and the files that only they had", **BEGUN)
async def expire(request: Request, wanted: Expire, caller: Caller = needs(Role.ADMIN)) -> Response:
    context = context_of(request)
    do: Do = lambda name, control: context.lake.maintenance.expire(  # noqa: E731
        name,
        older_than=length(wanted.older_than),
        keep_min=wanted.keep_min,
        dry_run=wanted.dry_run,
        control=control,
    )
    return await _begin(context, caller, Kind.EXPIRE, wanted, do)


@router.post("/purge", summary="Delete rows wherever the lake has them", **BEGUN)
async def purge(request: Request, wanted: Purge, caller: Caller = needs(Role.ADMIN)) -> Response:
    """For a person who asks to be forgotten. Sinks keep what they were given; the result names those that may hold such
    rows."""
    context = context_of(request)

    def do(name: str, control: RunControl) -> RunResult[Any]:
        keep, dry_run = wanted.keep_snapshots, wanted.dry_run
        try:
            return context.lake.maintenance.purge(
                name, wanted.where, keep_snapshots=keep, dry_run=dry_run, control=control
            )
        except Exception as e:
            # Without its cause, too: whoever does the work logs what nobody foresaw.
            raise wordless(e) from None

    return await _begin(context, caller, Kind.PURGE, wanted, do)


@router.get(
    "/runs", summary="Runs, newest first", **documented(page_of("runs", MAINTENANCE_RUN, NUMBER), problems=NAMED)
)
async def list_runs(
    request: Request,
    caller: Caller = needs(Role.READ),
    dataset: Annotated[Text | None, Query(description="Only of this dataset.")] = None,
    kind: Annotated[Kind | None, Query(description="Only of this kind.")] = None,
    limit: Limit = 100,
    before: BeforeId = None,
) -> Response:
    context = context_of(request)

    def load() -> Document:
        named = None if dataset is None else caller.check_sees(dataset)
        found = context.lake.maintenance.runs(
            named,
            None if kind is None else kind.value,
            only=caller.token.datasets,
            before=before,
            runs_max=limit + 1,
        )
        return paged("runs", found, limit, documents.maintenance_run, lambda r: r.id)

    return await context.read(caller, load)


@router.get("/runs/{run}", summary="One run, with its result", **documented(MAINTENANCE_RUN, problems=NAMED))
async def show_run(request: Request, run: IdPath, caller: Caller = needs(Role.READ)) -> Response:
    context = context_of(request)
    return await context.read(caller, lambda: documents.maintenance_run(_get(context, caller, run)))


def _get(context: ServeContext, caller: Caller, run: int) -> Run:
    found = context.lake.maintenance.get(run)
    if not caller.sees(found.dataset):
        raise NoSuchRun(f"there is no run {run}", hint="`GET /api/v1/maintenance/runs` lists those that are kept.")
    return found


@router.post("/runs/{run}/cancel", summary="Call a run off", **documented(MAINTENANCE_RUN, problems=CHANGES))
async def cancel(request: Request, run: IdPath, caller: Caller = needs(Role.ADMIN)) -> Response:
    """Also cancels work of another process. The work ends before its next durable step; what it has committed stays."""
    context = context_of(request)

    def call_off() -> Document:
        _get(context, caller, run)  # refuses a run of a dataset that the caller must not know of
        return documents.maintenance_run(context.lake.maintenance.cancel(run))

    return await cancel_run(context, caller, KIND, run, call_off)
