"""Sinks, and one sink: lag with its trend, lanes, open intents, last errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query, Response
from markupsafe import Markup

from strandline.core.text.wording import duration
from strandline.serve.api import sinks as api
from strandline.serve.api import tasks
from strandline.serve.api.inputs import NamePath, Text
from strandline.serve.auth import lending
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.needs import ReadAccess
from strandline.serve.pages import actions
from strandline.serve.pages.charts import Line, Point, line_chart
from strandline.serve.pages.history import FigureHistory, SinkKey, last_value
from strandline.serve.pages.overview import spark
from strandline.serve.pages.render import PageRoute, document_of, is_admin, numbered, page, source_of
from strandline.serve.pages.spelling import clock, short_number
from strandline.serve.pages.views import sink_views, sum_known

router = APIRouter(include_in_schema=False, route_class=PageRoute)
PAGE = 40
LANES_MAX = 60
TASKS = 8


@router.get("/sinks")
async def list_sinks(access: ReadAccess, page_number: int = 1, search: Annotated[Text, Query()] = "") -> Response:
    source = source_of(access)
    status = await source.newest(access.caller)
    known = sink_views(status.sinks)
    sinks = [s for s in known if search.lower() in s.name.lower() or search.lower() in s.dataset.lower()]
    shown = numbered("sinks", sinks, page_number, PAGE)
    return page(
        access,
        "sinks.html",
        at="/sinks",
        **shown,
        known_total=len(known),
        search=search,
        sparks={s.name: spark(source.history, s) for s in shown["sinks"]},
        history=source.history,
        has_datasets=bool(status.datasets),
        add=actions.add_sink(sorted(d.name for d in status.datasets), _kinds(access.caller)),
    )


def _kinds(caller: Caller) -> list[str]:
    from strandline.deliver.sink_kinds import kind_names

    return list(lending.KINDS) if caller.is_limited else kind_names()


@router.get("/sinks/{name}")
async def show_sink(access: ReadAccess, name: NamePath) -> Response:
    source = source_of(access)
    sink = document_of(await access.context.read(access.caller, lambda: api.load_sink(access, name)))
    known = sink["name"]
    begun = None
    if is_admin(access.caller):
        begun = document_of(await tasks.list_tasks(access, subject=known, limit=TASKS))["tasks"]
    await source.newest(access.caller)  # adds to the history
    history, key = source.history, SinkKey(sink["dataset"], known)
    return page(
        access,
        "sink.html",
        at="/sinks",
        beats=True,
        sink=sink,
        one=sink["lanes"][0],  # each lane has the figures of the whole sink
        lanes=sink["lanes"][:LANES_MAX],
        lanes_total=len(sink["lanes"]),
        quarantined=sum(lane["quarantined"] for lane in sink["lanes"]),
        delivered=sum_known(lane["exported"] for lane in sink["lanes"]),
        rate=last_value(history.rows_out([key])),
        rows_chart=_chart(history, history.lag_rows(key), f"Lag of {known} in rows"),
        seconds_chart=_chart(history, history.lag_seconds(key), f"Lag of {known} in seconds", duration),
        history=history,
        tasks=begun,
        actions=actions.sink_actions(known, sink["state"]),
    )


def _chart(
    history: FigureHistory, points: list[Point], label: str, unit: Callable[[float], str] = short_number
) -> Markup:
    if history.since is None or history.until is None:
        return Markup("")
    start, end = clock(history.since), f"{clock(history.until)} UTC"
    return line_chart([Line("lag", "lag", points)], f"{label}, {start} to {end}", start=start, end=end, unit=unit)
