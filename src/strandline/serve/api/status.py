"""The state of the lake."""

from __future__ import annotations

from fastapi import APIRouter, Response

from strandline.serve.auth.caller import Caller
from strandline.serve.auth.needs import ReadAccess
from strandline.serve.context import ServeContext
from strandline.serve.describe import documented
from strandline.serve.schemas import LAKE_STATUS
from strandline.serve.snapshot import StatusSnapshot, StatusText, only_of
from strandline.status.report import LakeStatus

router = APIRouter(prefix="/status", tags=["status"])


@router.get("", summary="Datasets, sinks, maintenance and drift", **documented(LAKE_STATUS))
async def status(access: ReadAccess) -> Response:
    """What `strandline status --json` prints. What is not known is null, never 0. The header `Age` says for how many
    seconds it has been so: the lake is not read for every request (`serve.refresh_seconds`)."""
    context = access.context
    found = await context.status.newest()
    text = await text_for(context, access.caller, found)
    headers = {"Age": str(int(context.status.age_seconds(found))), "Vary": "Accept-Encoding"}
    if "gzip" in access.request.headers.get("accept-encoding", ""):
        return Response(text.packed, 200, headers | {"Content-Encoding": "gzip"}, "application/json")
    return Response(text.plain, 200, headers, "application/json")


async def text_for(context: ServeContext, caller: Caller, found: StatusSnapshot) -> StatusText:
    """What the caller may see of it."""
    if caller.token.datasets is None:
        return await context.status.text_of(found)
    datasets = tuple(sorted(caller.token.datasets))
    return await context.in_thread(lambda: found.text_for(datasets))


def seen_by(caller: Caller, found: LakeStatus) -> LakeStatus:
    """Only what concerns the datasets that the caller may see."""
    return found if caller.token.datasets is None else only_of(found, tuple(caller.token.datasets))
