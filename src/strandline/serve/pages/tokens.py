"""Tokens: who may come in, as what, until when."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from strandline.core.roles import Role
from strandline.serve.api import tokens as api
from strandline.serve.api.inputs import AfterId
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.needs import needs
from strandline.serve.pages import actions
from strandline.serve.pages.render import PageRoute, document_of, page, source_of

router = APIRouter(include_in_schema=False, route_class=PageRoute)
PAGE = 30


@router.get("/tokens")
async def list_tokens(
    request: Request, caller: Caller = needs(Role.ADMIN, whole_lake=True), after: AfterId = None
) -> Response:
    found = document_of(await api.list_tokens(request, caller, PAGE, after))
    look = await source_of(request).newest()
    return page(
        request,
        "tokens.html",
        caller,
        at="/tokens",
        beats=True,
        tokens=found["tokens"],
        next=found["next"],
        create=actions.create_token([d.name for d in look.status.datasets]),
        revoke={t["name"]: actions.revoke_token(t["name"]) for t in found["tokens"] if t["revoked_at"] is None},
    )
