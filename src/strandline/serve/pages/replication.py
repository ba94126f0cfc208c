"""Replication: the followers of this site, or its leader, and how far each shard is."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from strandline.core.documents import Document
from strandline.core.roles import Role
from strandline.ledger.engine import utc_now
from strandline.serve.api import followers as api
from strandline.serve.api.inputs import NamePath
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.needs import needs
from strandline.serve.context import context_of
from strandline.serve.pages import actions
from strandline.serve.pages.render import PageRoute, document_of, page, source_of
from strandline.serve.pages.views import follower_views, place_of, sum_known
from strandline.status.problems import worst_first
from strandline.status.replication_problems import find_replication_problems

router = APIRouter(include_in_schema=False, route_class=PageRoute)
PAGE = 60


@router.get("/replication")
async def replication(request: Request, caller: Caller = needs(Role.READ), page_number: int = 1) -> Response:
    context = context_of(request)
    look = await source_of(request).newest()
    status = look.seen_by(caller)

    def names() -> Document:
        return {"known": [f.name for f in context.lake.followers.list()]}

    found = document_of(await context.read(caller, lambda: api.status_document(context, caller)))
    known = [] if caller.is_limited else document_of(await context.read(caller, names))["known"]
    views = follower_views(status.followers, known, utc_now())
    shards = status.site.shards
    number = min(max(1, page_number), max(1, -(-len(shards) // PAGE)))
    return page(
        request,
        "replication.html",
        caller,
        at="/replication",
        look=look,
        site=status.site,
        leadership=found["leadership"],
        set_aside=found["set_aside"][:PAGE],
        set_aside_total=len(found["set_aside"]),
        problems=[(p, place_of(p)) for p in worst_first(find_replication_problems(status.site, status.followers))],
        followers=views,
        own_rows=sum_known(s.lag_rows for s in shards),
        own_segments=sum_known(s.lag_segments for s in shards),
        own_seconds=_longest([s.lag_seconds for s in shards]),
        shards=shards[(number - 1) * PAGE : number * PAGE],
        shards_total=len(shards),
        number=number,
        is_last=number * PAGE >= len(shards),
        has_datasets=bool(status.datasets),
        add=actions.add_follower([d.name for d in status.datasets]),
    )


@router.get("/replication/followers/{name}")
async def show_follower(
    request: Request, name: NamePath, caller: Caller = needs(Role.READ), page_number: int = 1
) -> Response:
    context = context_of(request)

    def load() -> Document:
        record, found = api.load_follower(context, caller, name)
        return api.shown(context, caller, record, found)

    follower = document_of(await context.read(caller, load))
    look = await source_of(request).newest()
    status = look.seen_by(caller)
    own = [s for s in status.followers if s.name == follower["name"]]
    [view] = follower_views(own, [follower["name"]], utc_now())
    shards = follower["shards"]
    number = min(max(1, page_number), max(1, -(-len(shards) // PAGE)))
    return page(
        request,
        "follower.html",
        caller,
        at="/replication",
        look=look,
        follower=follower,
        view=view,
        site=status.site,
        problems=[(p, None) for p in worst_first(find_replication_problems(status.site, own)) if p.name is not None],
        shards=shards[(number - 1) * PAGE : number * PAGE],
        shards_total=len(shards),
        number=number,
        is_last=number * PAGE >= len(shards),
        remove=actions.remove_follower(follower["name"]),
    )


def _longest(seconds: list[float | None]) -> float | None:
    return None if None in seconds else max((s or 0.0 for s in seconds), default=0.0)
