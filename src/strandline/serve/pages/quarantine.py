"""Rows in quarantine: their reasons and content, replay and discard."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from strandline.serve.api import quarantined_rows as api
from strandline.serve.api.inputs import AfterId, Text
from strandline.serve.auth.needs import ReadAccess
from strandline.serve.pages import actions
from strandline.serve.pages.render import PageRoute, document_of, page, source_of
from strandline.serve.pages.views import sink_views

router = APIRouter(include_in_schema=False, route_class=PageRoute)
PAGE = 25
SINKS_MAX = 20  # that are named above the rows; the list of sinks leads to the others


@router.get("/quarantine/rows")
async def list_rows(
    access: ReadAccess,
    sink: Annotated[Text | None, Query()] = None,
    settled: bool = False,
    after: AfterId = None,
) -> Response:
    status = await source_of(access).newest(access.caller)
    sinks = sink_views(status.sinks)
    chosen = sink or next((s.name for s in sinks if s.quarantined), None)
    named = [s for s in sinks if s.quarantined or s.name == chosen]
    named.sort(key=lambda s: s.name != chosen)
    found = (
        {"rows": [], "next": None}
        if chosen is None
        else document_of(await api.list_quarantined_rows(access, chosen, settled, PAGE, after))
    )
    return page(
        access,
        "rows.html",
        at="/quarantine/rows",
        beats=True,
        sinks=named[:SINKS_MAX],
        more_sinks=max(0, len(named) - SINKS_MAX),
        chosen=chosen,
        settled=settled,
        rows=found["rows"],
        next=found["next"],
        actions=[] if chosen is None else actions.quarantined_row_actions(chosen),
    )
