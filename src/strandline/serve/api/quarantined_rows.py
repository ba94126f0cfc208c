"""Rows that a sink refused for good: list, replay, discard."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from strandline.core.documents import Document
from strandline.core.errors import UsageError
from strandline.core.roles import Role
from strandline.serve.api.inputs import AfterId, Body, Limit, Name, Text, paged
from strandline.serve.api.sinks import check_sink
from strandline.serve.api.tasks import TASK_STARTED, check_going, start_task
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.needs import needs
from strandline.serve.context import context_of
from strandline.serve.describe import CHANGES, COUNT, FLAG, NAMED, NUMBER, TEXT, documented, fields, list_of, page_of
from strandline.serve.schemas import QUARANTINED_ROW
from strandline.status import documents

router = APIRouter(prefix="/quarantined-rows", tags=["quarantined rows"])

Number = Annotated[int, Field(ge=1, le=(1 << 63) - 1)]


class Chosen(Body):
    """Which rows: their sequence numbers, or `all`."""

    sink: Name
    numbers: list[Number] = Field(default=[], max_length=10_000)
    all: bool = False

    def check(self) -> list[int] | None:
        """The numbers; None for all. Raises UsageError."""
        if bool(self.numbers) == self.all:
            raise UsageError("which rows?", hint="Say their numbers, or all.")
        return self.numbers or None


class Discard(Chosen):
    dry_run: bool = Field(default=False, description="Say which rows would be given up; change nothing.")


@router.get(
    "",
    summary="Rows in quarantine, with their content",
    **documented(page_of("rows", QUARANTINED_ROW, NUMBER), problems=NAMED),
)
async def list_quarantined_rows(
    request: Request,
    caller: Caller = needs(Role.READ),
    sink: Annotated[Text | None, Query(description="Only of this sink.")] = None,
    settled: Annotated[bool, Query(description="Also those that were replayed or discarded since.")] = False,
    limit: Limit = 100,
    after: AfterId = None,
) -> Response:
    context = context_of(request)

    def load() -> Document:
        delivery = context.lake.delivery
        names = (
            [s.name for s in delivery.list_sinks() if caller.sees(delivery.dataset_name(s))]
            if sink is None
            else [check_sink(context, caller, sink)]
        )
        found = delivery.quarantined_page(names, settled_too=settled, after=after, rows_max=limit + 1)
        return paged("rows", found, limit, documents.quarantined_row, lambda q: q.row.id)

    return await context.read(caller, load)


@router.post("/replay", summary="Send rows again", **TASK_STARTED)
async def replay_rows(request: Request, wanted: Chosen, caller: Caller = needs(Role.ADMIN)) -> Response:
    """One that is refused again stays where it is."""
    context = context_of(request)

    def check() -> str:
        wanted.check()
        return check_sink(context, caller, wanted.sink)

    def work(stopping: threading.Event) -> Mapping[str, Any]:
        told = lambda done, total: check_going(stopping)  # noqa: E731
        return documents.replayed_rows(context.lake.delivery.replay(wanted.sink, wanted.check(), on_progress=told))

    return await start_task(context, caller, "replay", check, work)


@router.post(
    "/discard",
    summary="Give rows up",
    **documented(fields(sink=TEXT, dry_run=FLAG, discarded=COUNT, numbers=list_of(NUMBER)), problems=CHANGES),
)
async def discard_rows(request: Request, wanted: Discard, caller: Caller = needs(Role.ADMIN)) -> Response:
    """The sink never gets them, and their stored content is removed. The lake keeps its own rows."""
    context = context_of(request)

    def discard() -> Document:
        numbers = wanted.check()
        sink = check_sink(context, caller, wanted.sink)
        gone = context.lake.delivery.discard(sink, numbers, dry_run=wanted.dry_run)
        return documents.discarded_rows(sink, gone) | {"dry_run": wanted.dry_run}

    return await context.change(caller, discard)
