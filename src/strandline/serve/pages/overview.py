"""The first page: is anything wrong, lag, throughput, sealed against ingested, held rows, quarantine, drift."""

from __future__ import annotations

from fastapi import APIRouter, Response
from markupsafe import Markup

from strandline.ledger.engine import utc_now
from strandline.serve.auth.needs import ReadAccess
from strandline.serve.pages import actions
from strandline.serve.pages.charts import Line, line_chart, sparkline
from strandline.serve.pages.history import FigureHistory, key_of, last_value
from strandline.serve.pages.render import PageRoute, page, source_of
from strandline.serve.pages.spelling import clock
from strandline.serve.pages.views import (
    follower_views,
    held_views,
    place_of,
    sink_views,
    sum_known,
    unsealed_first,
)
from strandline.status.problems.lake_problems import find_problems, worst_first
from strandline.status.sinks import SinkStatus

router = APIRouter(include_in_schema=False, route_class=PageRoute)

SINKS_MAX = 12
DATASETS_MAX = 8
HELD_MAX = 8
PROBLEMS_MAX = 6
_AFTER_TWO_LOOKS = "Known after the lake was read twice."
_NOT_SHOWN = "Your token is limited to some datasets; rows are counted in the lake as a whole."


@router.get("/")
async def overview(access: ReadAccess) -> Response:
    source = source_of(access)
    status = await source.newest(access.caller)
    found = worst_first(find_problems(status))
    sinks = sink_views(status.sinks)
    held = held_views(status)
    history = source.history
    is_limited = access.caller.token.datasets is not None
    return page(
        access,
        "overview.html",
        at="/",
        lake=status,
        problems=[(p, place_of(p)) for p in found[:PROBLEMS_MAX]],
        more_problems=max(0, len(found) - PROBLEMS_MAX),
        sinks=sinks[:SINKS_MAX],
        sinks_total=len(sinks),
        sparks={s.name: spark(history, s) for s in sinks[:SINKS_MAX]},
        worst_lag=max((s.lag_rows for s in sinks if s.lag_rows is not None), default=None),
        lag_unknown=any(s.lag_rows is None for s in sinks),
        seconds_unknown=any(s.lag_seconds is None for s in sinks),
        worst_seconds=max((s.lag_seconds for s in sinks if s.lag_seconds is not None), default=None),
        datasets=unsealed_first(status.datasets)[:DATASETS_MAX],
        datasets_total=len(status.datasets),
        open_blocks=sum(d.open_blocks for d in status.datasets),
        held=held[:HELD_MAX],
        held_total=len(held),
        held_rows=sum_known(h.rows for h in held),
        quarantined=sum(s.quarantined for s in sinks),
        history=history,
        chart=throughput(history, sinks, with_in=not is_limited),
        rate_in=None if is_limited else last_value(history.rows_in()),
        rate_in_why=_NOT_SHOWN if is_limited else _AFTER_TWO_LOOKS,
        rate_out=last_value(history.rows_out(map(key_of, sinks))),
        followers=follower_views(status.followers, (), utc_now()),
        consumers=sorted(status.consumers, key=lambda c: (-c.lag_rows, c.name, c.dataset)),
        behind=sum_known(s.lag_rows for s in status.site.shards),
        create=actions.create_dataset(),
    )


def spark(history: FigureHistory, sink: SinkStatus) -> Markup:
    return sparkline(history.lag_rows(key_of(sink)), f"Lag of {sink.name} in rows over time")


def throughput(history: FigureHistory, sinks: list[SinkStatus], *, with_in: bool) -> Markup:
    if history.since is None or history.until is None:
        return Markup("")
    lines = [Line("in", "in", history.rows_in())] if with_in else []
    lines.append(Line("out", "out", history.rows_out(map(key_of, sinks))))
    start, end = clock(history.since), f"{clock(history.until)} UTC"
    return line_chart(lines, f"Rows per second, in and out, {start} to {end}", start=start, end=end)
