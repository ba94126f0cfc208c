"""Replication: the followers of this site, or its leader, and how far each shard is."""

from __future__ import annotations

from fastapi import APIRouter, Response

from strandline.core.documents import Document
from strandline.ledger.engine import utc_now
from strandline.serve.api import followers as api
from strandline.serve.api.inputs import NamePath
from strandline.serve.auth.needs import ReadAccess
from strandline.serve.pages import actions
from strandline.serve.pages.render import PageRoute, document_of, numbered, page, source_of
from strandline.serve.pages.views import follower_views, max_known, place_of, sum_known
from strandline.status.problems.lake_problems import worst_first
from strandline.status.problems.replication_problems import find_replication_problems

router = APIRouter(include_in_schema=False, route_class=PageRoute)
PAGE = 60


@router.get("/replication")
async def replication(access: ReadAccess, page_number: int = 1) -> Response:
    status = await source_of(access).newest(access.caller)
    found = document_of(await access.context.read(access.caller, lambda: api.status_document(access)))
    known: list[str] = []
    if not access.caller.is_limited:
        known = await access.context.ask_ledger(
            access.caller, lambda: [f.name for f in access.lake.followers.list()]
        )
    views = follower_views(status.followers, known, utc_now())
    shards = status.site.shards
    return page(
        access,
        "replication.html",
        at="/replication",
        site=status.site,
        leadership=found["leadership"],
        set_aside=found["set_aside"][:PAGE],
        set_aside_total=len(found["set_aside"]),
        problems=[(p, place_of(p)) for p in worst_first(find_replication_problems(status.site, status.followers))],
        followers=views,
        own_rows=sum_known(s.lag_rows for s in shards),
        own_segments=sum_known(s.lag_segments for s in shards),
        own_seconds=max_known(s.lag_seconds for s in shards),
        **numbered("shards", shards, page_number, PAGE),
        add=actions.add_follower([d.name for d in status.datasets]),
    )


@router.get("/replication/followers/{name}")
async def show_follower(access: ReadAccess, name: NamePath, page_number: int = 1) -> Response:
    def load() -> Document:
        record, found = api.load_follower(access, name)
        return api.shown(access, record, found)

    follower = document_of(await access.context.read(access.caller, load))
    status = await source_of(access).newest(access.caller)
    own = [s for s in status.followers if s.name == follower["name"]]
    [view] = follower_views(own, [follower["name"]], utc_now())
    shards = follower["shards"]
    return page(
        access,
        "follower.html",
        at="/replication",
        follower=follower,
        view=view,
        site=status.site,
        problems=[(p, None) for p in worst_first(find_replication_problems(status.site, own)) if p.name is not None],
        **numbered("shards", shards, page_number, PAGE),
        remove=actions.remove_follower(follower["name"]),
    )
