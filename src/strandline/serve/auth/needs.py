"""What a route needs of its caller. Every route declares it; a test walks them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Request

from strandline.core.roles import Role, allows
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.csrf import SAFE_METHODS, check_own_page, check_token
from strandline.serve.auth.sessions import is_by_person
from strandline.serve.context import ServeContext, context_of
from strandline.serve.problems import WRONG_ROLE, WRONG_SCOPE, Problem, no_token

if TYPE_CHECKING:
    from strandline.lake import Lake


@dataclass(frozen=True, slots=True)
class Access:
    """A request that its caller may make."""

    request: Request
    context: ServeContext
    caller: Caller

    @property
    def lake(self) -> Lake:
        return self.context.lake


class Needs:
    """The dependency of a route that needs a role."""

    def __init__(self, role: Role, *, whole_lake: bool = False, only_reads: bool = False) -> None:
        self.role = role
        self.whole_lake = whole_lake
        self.only_reads = only_reads

    async def __call__(self, request: Request) -> Access:
        """Raises Problem unless the caller may use the route."""
        context = context_of(request)
        caller = await context.find_caller(request, only_reads=self.only_reads)
        if caller is None:
            raise no_token()
        request.state.is_limited = caller.is_limited
        if caller.session is not None and request.method not in SAFE_METHODS:
            check_own_page(request)
            await check_token(request, context.keys.csrf_token(caller.session))
        request.state.renews_session = caller.session is not None and is_by_person(request)
        if not allows(caller.token.role, self.role):
            raise Problem(
                WRONG_ROLE,
                f"this request needs the role {self.role}; the token has the role {caller.token.role}",
                f"`strandline token create NAME --role {self.role}` creates one.",
            )
        if self.whole_lake and caller.is_limited:
            raise Problem(
                WRONG_SCOPE, "this is about the whole lake", "Use a token that is not limited to some datasets."
            )
        return Access(request, context, caller)


class Anyone:
    """The dependency of a route that needs no token."""

    async def __call__(self) -> None:
        return None


# `whole_lake`: a token that is limited to datasets is refused. `only_reads`: the request changes nothing, even a POST.
ReadAccess = Annotated[Access, Depends(Needs(Role.READ))]
LakeReadAccess = Annotated[Access, Depends(Needs(Role.READ, whole_lake=True))]
AdminAccess = Annotated[Access, Depends(Needs(Role.ADMIN))]
LakeAdminAccess = Annotated[Access, Depends(Needs(Role.ADMIN, whole_lake=True))]
OfferAccess = Annotated[Access, Depends(Needs(Role.REPLICATE, only_reads=True))]
FollowerAccess = Annotated[Access, Depends(Needs(Role.REPLICATE))]


def anyone() -> Any:
    return Depends(Anyone())
