"""The state of the lake."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, Request, Response

from strandline.core.roles import Role
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.needs import needs
from strandline.serve.context import context_of
from strandline.serve.describe import documented
from strandline.serve.schemas import LAKE_STATUS
from strandline.status import documents
from strandline.status.report import LakeStatus

router = APIRouter(prefix="/status", tags=["status"])


@router.get("", summary="Datasets, sinks, maintenance and drift", **documented(LAKE_STATUS))
async def status(request: Request, caller: Caller = needs(Role.READ)) -> Response:
    """What `strandline status --json` prints. What is not known is null, never 0."""
    context = context_of(request)
    return await context.read(caller, lambda: documents.lake_status(seen_by(caller, context.lake.status())))


def seen_by(caller: Caller, found: LakeStatus) -> LakeStatus:
    """Only what concerns the datasets that the caller may see."""
    if caller.token.datasets is None:
        return found
    care = found.maintenance
    return replace(
        found,
        datasets=tuple(d for d in found.datasets if caller.sees(d.name)),
        sinks=tuple(s for s in found.sinks if caller.sees(s.dataset)),
        receive=None if found.receive is None else tuple(r for r in found.receive if caller.sees(r.dataset)),
        maintenance=None
        if care is None
        else replace(
            care,
            rules_without_dataset=(),
            overridden=(),
            datasets=tuple(d for d in care.datasets if caller.sees(d.dataset)),
        ),
    )
