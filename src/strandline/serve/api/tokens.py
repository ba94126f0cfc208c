"""Tokens: list, create, revoke."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field

from strandline.core.documents import Document
from strandline.core.roles import Role
from strandline.serve.api.handlers import changes_lake, reads
from strandline.serve.api.inputs import AfterId, DurationInput, Limit, Name, NamePath, RequestInput, paged_after
from strandline.serve.auth.needs import LakeAdminAccess
from strandline.serve.describe import CHANGES, NUMBER, TEXT, also, documented, page_of
from strandline.serve.schemas import TOKEN, TOKEN_REVOKED
from strandline.status.documents import change_documents, lake_documents

router = APIRouter(prefix="/tokens", tags=["tokens"])


_DATASETS = "Only these; left out: those of the token that it replaces, or every dataset."


class NewToken(RequestInput):
    name: Name
    role: Role | None = Field(
        default=None, strict=False, description="Left out: that of the token that it replaces, or `write`."
    )
    datasets: list[Name] | None = Field(default=None, min_length=1, description=_DATASETS)
    expires: DurationInput | None = Field(default=None, description="After how long; left out: never.")
    replaces: Name | None = Field(default=None, description="Take over what this token has claimed and sent.")


@router.get(
    "", summary="Every token there is or was, without its secret", **documented(page_of("tokens", TOKEN, NUMBER))
)
@reads
def list_tokens(access: LakeAdminAccess, limit: Limit = 100, after: AfterId = None) -> Document:
    return paged_after("tokens", access.lake.receiver.list_tokens(), after, limit, lake_documents.token, lambda t: t.id)


@router.post(
    "", summary="Make a token", **documented(also(TOKEN, secret=TEXT), status=201, problems=CHANGES, said="Made.")
)
@changes_lake(status=201)
def create_token(access: LakeAdminAccess, wanted: NewToken) -> Document:
    """The answer has its secret, which nobody can read again: only a hash of it is stored."""
    made, secret = access.lake.receiver.create_token(
        wanted.name, wanted.datasets, role=wanted.role, expires_in=wanted.expires, replaces=wanted.replaces
    )
    return lake_documents.token(made) | {"secret": secret}


@router.delete("/{name}", summary="Revoke a token", **documented(TOKEN_REVOKED, problems=CHANGES))
@changes_lake(is_short=True)
def revoke_token(access: LakeAdminAccess, name: NamePath) -> Document:
    """It is refused from now on, and its sessions end. What was sent with it stays."""
    access.lake.receiver.revoke_token(name)
    return change_documents.revoked_token(name)
