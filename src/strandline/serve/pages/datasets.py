"""Datasets, and one dataset: blocks, files and small-file debt, columns, maintenance."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from strandline.core.errors import StrandlineError
from strandline.serve.api import datasets as api
from strandline.serve.api import maintenance
from strandline.serve.api.inputs import AfterName, BeforeId, NamePath, Text
from strandline.serve.auth.needs import ReadAccess
from strandline.serve.pages import actions
from strandline.serve.pages.render import PageRoute, document_of, page, source_of
from strandline.serve.pages.views import sink_views

router = APIRouter(include_in_schema=False, route_class=PageRoute)
PAGE = 50
BLOCKS = 12
RUNS = 8


@router.get("/datasets")
async def list_datasets(access: ReadAccess, after: AfterName = None, search: Annotated[Text, Query()] = "") -> Response:
    status = await source_of(access).newest(access.caller)
    known = sorted(status.datasets, key=lambda d: d.name)
    matching = [d for d in known if search.lower() in d.name.lower()]
    found = [d for d in matching if after is None or d.name > after]
    return page(
        access,
        "datasets.html",
        at="/datasets",
        datasets=found[:PAGE],
        total=len(matching),
        known_total=len(known),
        search=search,
        next=found[PAGE - 1].name if len(found) > PAGE else None,
        create=actions.create_dataset(),
    )


@router.get("/datasets/{name}")
async def show_dataset(access: ReadAccess, name: NamePath, before: BeforeId = None) -> Response:
    full = access.caller.check_sees(name)
    try:
        table, table_problem = document_of(await api.show_dataset(access, full)), None
    except StrandlineError as e:
        # The catalog may be away, or have no such table: the ledger still knows the rest. What the ledger does not know
        # either is refused below, by `list_blocks`.
        table, table_problem = None, e.message
    blocks = document_of(await api.list_blocks(access, full, limit=BLOCKS, before=before))
    runs = document_of(await maintenance.list_runs(access, dataset=full, limit=RUNS))
    status = await source_of(access).newest(access.caller)
    care = () if status.maintenance is None else status.maintenance.datasets
    consumers = [c for c in status.consumers if c.dataset == full]
    return page(
        access,
        "dataset.html",
        at="/datasets",
        beats=True,
        name=full,
        table=table,
        table_problem=table_problem,
        dataset=next((d for d in status.datasets if d.name == full), None),
        care=next((d for d in care if d.dataset == full), None),
        received=next((r for r in status.receive or () if r.dataset == full), None),
        sinks=sink_views(s for s in status.sinks if s.dataset == full),
        consumers=consumers,
        remove_consumer={c.name: actions.remove_consumer(full, c.name) for c in consumers},
        blocks=blocks["blocks"],
        next=blocks["next"],
        runs=runs["runs"],
        actions=actions.dataset_actions(full),
    )
