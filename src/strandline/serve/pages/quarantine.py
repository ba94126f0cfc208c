"""Rows in quarantine: their reasons and content, replay and discard."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from strandline.core.roles import Role
from strandline.serve.api import quarantined_rows as api
from strandline.serve.api.inputs import AfterId, Text
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.needs import needs
from strandline.serve.pages import actions
from strandline.serve.pages.render import PageRoute, document_of, page, source_of
from strandline.serve.pages.views import sink_views

router = APIRouter(include_in_schema=False, route_class=PageRoute)
PAGE = 25


@router.get("/quarantine/rows")
async def list_rows(
    request: Request,
    caller: Caller = needs(Role.READ),
    sink: Annotated[Text | None, Query()] = None,
    settled: bool = False,
    after: AfterId = None,
) -> Response:
    look = await source_of(request).newest()
    sinks = sink_views(look.seen_by(caller).sinks)
    chosen = sink or next((s.name for s in sinks if s.quarantined), None)
    found = (
        {"rows": [], "next": None}
        if chosen is None
        else document_of(await api.list_quarantined_rows(request, caller, chosen, settled, PAGE, after))
    )
    return page(
        request,
        "rows.html",
        caller,
        at="/quarantine/rows",
        beats=True,
        look=look,
        sinks=[s for s in sinks if s.quarantined or s.name == chosen],
        chosen=chosen,
        settled=settled,
        rows=found["rows"],
        next=found["next"],
        actions=[] if chosen is None else actions.quarantined_row_actions(chosen),
    )
