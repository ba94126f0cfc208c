"""Rows that a sink refused for good: list, replay, discard."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import Field

from strandline.core.documents import Document
from strandline.core.errors import UsageError
from strandline.deliver.quarantine.rows import QuarantinedRow
from strandline.serve.api.inputs import AfterId, Limit, Name, RequestInput, Text, paged
from strandline.serve.api.sinks import check_sink
from strandline.serve.api.tasks import TASK_STARTED, start_task, stop_if_cancelled, task_started
from strandline.serve.auth.needs import AdminAccess, ReadAccess
from strandline.serve.context import answer
from strandline.serve.describe import COUNT, FLAG, NAMED, NUMBER, TEXT, also, documented, fields, list_of, page_of
from strandline.serve.schemas import QUARANTINED_ROW
from strandline.status.documents import lake_documents

router = APIRouter(prefix="/quarantined-rows", tags=["quarantined rows"])

NUMBERS_MAX = 10_000
RowNumber = Annotated[int, Field(ge=1, le=(1 << 63) - 1)]


DISCARD_ANSWERS = task_started(
    {200: ("The dry run.", fields(sink=TEXT, dry_run=FLAG, discarded=COUNT, numbers=list_of(NUMBER)))}
)


class Chosen(RequestInput):
    """Which rows: their sequence numbers, or `all`."""

    sink: Name
    numbers: list[RowNumber] = Field(default=[], max_length=NUMBERS_MAX)
    all: bool = False

    def check(self) -> list[int] | None:
        """The numbers; None for all. Raises UsageError."""
        if bool(self.numbers) == self.all:
            raise UsageError("which rows?", hint="Give their numbers, or all.")
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
    access: ReadAccess,
    sink: Annotated[Text | None, Query(description="Only of this sink.")] = None,
    settled: Annotated[bool, Query(description="Also those that were replayed or discarded since.")] = False,
    limit: Limit = 100,
    after: AfterId = None,
) -> Response:
    """The contents of an answer have at most 8 MiB together, and are read for five seconds at most."""

    def load() -> list[QuarantinedRow]:
        delivery = access.lake.delivery
        names = (
            [s.name for s in delivery.list_sinks() if access.caller.sees(delivery.dataset_name(s))]
            if sink is None
            else [check_sink(access, sink)]
        )
        return delivery.quarantined_page(names, settled_too=settled, after=after, rows_max=limit + 1)

    found = await access.context.ask_ledger(access.caller, load)

    def read_contents(late: threading.Event) -> None:
        for n, row in enumerate(access.lake.delivery.quarantined_contents(found[:limit])):
            if late.is_set():
                return
            found[n] = row

    if any(q.omitted for q in found[:limit]):
        await access.context.try_storage(access.caller, read_contents)
    shown = list(found)  # a reading that is late ends by itself, and changes nothing more
    omitted = sum(q.omitted for q in shown[:limit])
    document = paged("rows", shown, limit, lake_documents.quarantined_row, lambda q: q.row.id)
    return answer(document | {"contents_omitted": omitted})


@router.post("/replay", summary="Send rows again", **TASK_STARTED)
async def replay_rows(access: AdminAccess, wanted: Chosen) -> Response:
    """One that is refused again stays where it is."""

    def check() -> str:
        wanted.check()
        return check_sink(access, wanted.sink)

    def work(stopping: threading.Event) -> Mapping[str, Any]:
        return lake_documents.replayed_rows(
            access.lake.delivery.replay(wanted.sink, wanted.check(), on_progress=stop_if_cancelled)
        )

    return await start_task(access, "replay", check, work)


@router.post("/discard", summary="Give rows up", **DISCARD_ANSWERS)
async def discard_rows(access: AdminAccess, wanted: Discard) -> Response:
    """The sink never gets them, and their stored content is removed. The lake keeps its own rows. Only the dry run
    answers at once. `numbers` are the first that a request can name; `discarded` counts all."""

    def discard(dry_run: bool) -> Document:
        sink, numbers = check_sink(access, wanted.sink), wanted.check()
        rows = access.lake.delivery.discard(sink, numbers, dry_run=dry_run, on_progress=stop_if_cancelled)
        found = lake_documents.discarded_rows(sink, rows) | {"dry_run": dry_run}
        return found | {"numbers": found["numbers"][:NUMBERS_MAX]}

    if wanted.dry_run:
        return await access.context.read(access.caller, lambda: discard(True))

    def check() -> str:
        sink: str = discard(True)["sink"]  # refused for the same reasons
        return sink

    def work(stopping: threading.Event) -> Mapping[str, Any]:
        return discard(False)

    return await start_task(access, "discard", check, work)
