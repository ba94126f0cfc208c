"""Rows that a sink refused for good: list, replay, discard."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from strandline.core.calling_off import check_going
from strandline.core.documents import Document
from strandline.core.errors import UsageError
from strandline.core.roles import Role
from strandline.deliver.quarantine.rows import QuarantinedRow
from strandline.serve.api.inputs import AfterId, Body, Limit, Name, Text, paged
from strandline.serve.api.sinks import check_sink
from strandline.serve.api.tasks import TASK_STARTED, start_task, task_started
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.needs import needs
from strandline.serve.context import answer, context_of
from strandline.serve.describe import COUNT, FLAG, NAMED, NUMBER, TEXT, also, documented, fields, list_of, page_of
from strandline.serve.schemas import QUARANTINED_ROW
from strandline.status import documents

router = APIRouter(prefix="/quarantined-rows", tags=["quarantined rows"])

NUMBERS_MAX = 10_000
Number = Annotated[int, Field(ge=1, le=(1 << 63) - 1)]


DISCARD_ANSWERS = task_started(
    {200: ("The dry run.", fields(sink=TEXT, dry_run=FLAG, discarded=COUNT, numbers=list_of(NUMBER)))}
)


class Chosen(Body):
    """Which rows: their sequence numbers, or `all`."""

    sink: Name
    numbers: list[Number] = Field(default=[], max_length=NUMBERS_MAX)
    all: bool = False

    def check(self) -> list[int] | None:
        """The numbers; None for all. Raises UsageError."""
        if bool(self.numbers) == self.all:
            raise UsageError("which rows?", hint="Say their numbers, or all.")
        return self.numbers or None


class Discard(Chosen):
    dry_run: bool = Field(default=False, description="Report which rows would be given up, and change nothing.")


@router.get(
    "",
    summary="Rows in quarantine, with their content",
    **documented(
        also(
            page_of("rows", QUARANTINED_ROW, NUMBER),
            contents_omitted=COUNT | {"description": "Rows here whose content was not read; `problem` says why."},
        ),
        problems=NAMED,
    ),
)
async def list_quarantined_rows(
    request: Request,
    caller: Caller = needs(Role.READ),
    sink: Annotated[Text | None, Query(description="Only of this sink.")] = None,
    settled: Annotated[bool, Query(description="Also those that were replayed or discarded since.")] = False,
    limit: Limit = 100,
    after: AfterId = None,
) -> Response:
    """The contents of an answer have at most 8 MiB together, and are read for five seconds at most."""
    context = context_of(request)

    def load() -> list[QuarantinedRow]:
        delivery = context.lake.delivery
        names = (
            [s.name for s in delivery.list_sinks() if caller.sees(delivery.dataset_name(s))]
            if sink is None
            else [check_sink(context, caller, sink)]
        )
        return delivery.quarantined_page(names, settled_too=settled, after=after, rows_max=limit + 1)

    found = await context.ask_ledger(caller, load)

    def read_contents(late: threading.Event) -> None:
        for n, row in enumerate(context.lake.delivery.quarantined_contents(found[:limit])):
            if late.is_set():
                return
            found[n] = row

    if any(q.omitted for q in found[:limit]):
        await context.try_storage(caller, read_contents)
    shown = list(found)  # a reading that is late ends by itself, and changes nothing more
    omitted = sum(q.omitted for q in shown[:limit])
    document = paged("rows", shown, limit, documents.quarantined_row, lambda q: q.row.id)
    return answer(document | {"contents_omitted": omitted})


@router.post("/replay", summary="Send rows again", **TASK_STARTED)
async def replay_rows(request: Request, wanted: Chosen, caller: Caller = needs(Role.ADMIN)) -> Response:
    """One that is refused again stays where it is."""
    context = context_of(request)

    def check() -> str:
        wanted.check()
        return check_sink(context, caller, wanted.sink)

    def work(stopping: threading.Event) -> Mapping[str, Any]:
        told = lambda done, total: check_going()  # noqa: E731
        return documents.replayed_rows(context.lake.delivery.replay(wanted.sink, wanted.check(), on_progress=told))

    return await start_task(context, caller, "replay", check, work)


@router.post("/discard", summary="Give rows up", **DISCARD_ANSWERS)
async def discard_rows(request: Request, wanted: Discard, caller: Caller = needs(Role.ADMIN)) -> Response:
    """The sink never gets them, and their stored content is removed. The lake keeps its own rows. Only the dry run
    answers at once. `numbers` are the first that a request can name; `discarded` counts all."""
    context = context_of(request)

    def discard(dry_run: bool, told: Callable[[int, int], None] = lambda done, total: None) -> Document:
        sink, numbers = check_sink(context, caller, wanted.sink), wanted.check()
        rows = context.lake.delivery.discard(sink, numbers, dry_run=dry_run, on_progress=told)
        found = documents.discarded_rows(sink, rows) | {"dry_run": dry_run}
        return found | {"numbers": found["numbers"][:NUMBERS_MAX]}

    if wanted.dry_run:
        return await context.read(caller, lambda: discard(True))

    def check() -> str:
        sink: str = discard(True)["sink"]  # refused for the same reasons
        return sink

    def work(stopping: threading.Event) -> Mapping[str, Any]:
        return discard(False, lambda done, total: check_going())

    return await start_task(context, caller, "discard", check, work)
