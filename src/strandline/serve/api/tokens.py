"""Tokens: list, create, revoke."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import Field

from strandline.core.documents import Document
from strandline.core.roles import Role
from strandline.serve.api.inputs import AfterId, Body, Duration, Limit, Name, NamePath, length, paged
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.needs import needs
from strandline.serve.context import context_of
from strandline.serve.describe import CHANGES, FLAG, NUMBER, TEXT, also, documented, fields, page_of
from strandline.serve.schemas import TOKEN
from strandline.status import documents

router = APIRouter(prefix="/tokens", tags=["tokens"])


_DATASETS = "Only these; left out: those of the token that it replaces, or every dataset."


class NewToken(Body):
    name: Name
    role: Role | None = Field(
        default=None, strict=False, description="Left out: that of the token that it replaces, or `write`."
    )
    datasets: list[Name] | None = Field(default=None, min_length=1, description=_DATASETS)
    expires: Duration | None = Field(default=None, description="After how long; left out: never.")
    replaces: Name | None = Field(default=None, description="Take over what this token has claimed and sent.")


@router.get(
    "", summary="Every token there is or was, without its secret", **documented(page_of("tokens", TOKEN, NUMBER))
)
async def list_tokens(
    request: Request, caller: Caller = needs(Role.ADMIN, whole_lake=True), limit: Limit = 100, after: AfterId = None
) -> Response:
    context = context_of(request)

    def load() -> Document:
        known = sorted(context.lake.receiver.list_tokens(), key=lambda t: t.id)
        found = [t for t in known if after is None or t.id > after]
        return paged("tokens", found, limit, documents.token, lambda t: t.id)

    return await context.read(caller, load)


@router.post(
    "", summary="Make a token", **documented(also(TOKEN, secret=TEXT), status=201, problems=CHANGES, said="Made.")
)
async def create_token(
    request: Request, wanted: NewToken, caller: Caller = needs(Role.ADMIN, whole_lake=True)
) -> Response:
    """The answer has its secret, which nobody can read again: only a hash of it is stored."""
    context = context_of(request)

    def create() -> Document:
        made, secret = context.lake.receiver.create_token(
            wanted.name,
            wanted.datasets,
            role=wanted.role,
            expires_in=length(wanted.expires),
            replaces=wanted.replaces,
        )
        return documents.token(made) | {"secret": secret}

    return await context.change(caller, create, status=201)


@router.delete("/{name}", summary="Revoke a token", **documented(fields(name=TEXT, revoked=FLAG), problems=CHANGES))
async def revoke_token(
    request: Request, name: NamePath, caller: Caller = needs(Role.ADMIN, whole_lake=True)
) -> Response:
    """It is refused from now on, and its sessions end. What was sent with it stays."""
    context = context_of(request)

    def revoke() -> Document:
        context.lake.receiver.revoke_token(name)
        return {"name": name, "revoked": True}

    return await context.change(caller, revoke, is_short=True)
