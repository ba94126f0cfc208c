"""Sinks, and one sink: lag with its trend, lanes, open intents, last errors."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from strandline.core.roles import Role
from strandline.serve.api import sinks as api
from strandline.serve.api.inputs import NamePath
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.needs import needs
from strandline.serve.pages import actions
from strandline.serve.pages.charts import Line, line_chart
from strandline.serve.pages.overview import spark
from strandline.serve.pages.render import PageRoute, document_of, page, source_of
from strandline.serve.pages.spelling import clock
from strandline.serve.pages.views import sink_views

router = APIRouter(include_in_schema=False, route_class=PageRoute)
PAGE = 50
LANES_MAX = 200


@router.get("/sinks")
async def list_sinks(request: Request, caller: Caller = needs(Role.READ), page_number: int = 1) -> Response:
    source = source_of(request)
    look = await source.newest()
    status = look.seen_by(caller)
    sinks = sink_views(status.sinks)
    number = min(max(1, page_number), max(1, -(-len(sinks) // PAGE)))
    shown = sinks[(number - 1) * PAGE : number * PAGE]
    return page(
        request,
        "sinks.html",
        caller,
        at="/sinks",
        look=look,
        sinks=shown,
        total=len(sinks),
        number=number,
        is_last=number * PAGE >= len(sinks),
        sparks={s.name: spark(source.history, s) for s in shown},
        history=source.history,
        has_datasets=bool(status.datasets),
        add=actions.add_sink(sorted(d.name for d in status.datasets), _kinds()),
    )


def _kinds() -> list[str]:
    from strandline.deliver.sink_kinds import kind_names

    return kind_names()


@router.get("/sinks/{name}")
async def show_sink(request: Request, name: NamePath, caller: Caller = needs(Role.READ)) -> Response:
    source = source_of(request)
    sink = document_of(await api.show_sink(request, name, caller))
    look = await source.newest()
    history = source.history
    points = history.lag_rows(sink["name"])
    chart = ""
    if history.since is not None and history.until is not None:
        start, end = clock(history.since), f"{clock(history.until)} UTC"
        chart = line_chart(
            [Line("lag", "lag", points)], f"Lag of {sink['name']} in rows, {start} to {end}", start=start, end=end
        )
    return page(
        request,
        "sink.html",
        caller,
        at="/sinks",
        beats=True,
        look=look,
        sink=sink,
        lanes=sink["lanes"][:LANES_MAX],
        lanes_total=len(sink["lanes"]),
        quarantined=sum(lane["quarantined"] for lane in sink["lanes"]),
        chart=chart,
        history=history,
        actions=actions.sink_actions(sink["name"], sink["state"]),
    )
