"""Tokens: who may come in, as what, until when."""

from __future__ import annotations

from fastapi import APIRouter, Response

from strandline.serve.api import tokens as api
from strandline.serve.api.inputs import AfterId
from strandline.serve.auth.needs import LakeAdminAccess
from strandline.serve.pages import actions
from strandline.serve.pages.render import PageRoute, document_of, page, source_of

router = APIRouter(include_in_schema=False, route_class=PageRoute)
PAGE = 30


@router.get("/tokens")
async def list_tokens(access: LakeAdminAccess, after: AfterId = None) -> Response:
    found = document_of(await api.list_tokens(access, PAGE, after))
    status = await source_of(access).newest(access.caller)
    return page(
        access,
        "tokens.html",
        at="/tokens",
        beats=True,
        tokens=found["tokens"],
        next=found["next"],
        create=actions.create_token([d.name for d in status.datasets]),
        revoke={t["name"]: actions.revoke_token(t["name"]) for t in found["tokens"] if t["revoked_at"] is None},
    )
