"""The session of a browser: log in with a token, see who is logged in, log out."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import Field

from strandline.core.documents import Document
from strandline.core.roles import Role
from strandline.serve.api.inputs import RequestInput
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.csrf import check_own_page
from strandline.serve.auth.needs import ReadAccess, anyone
from strandline.serve.auth.sessions import NewSession
from strandline.serve.context import ServeContext, address_of, answer, context_of
from strandline.serve.describe import FLAG, TEXT, documented, fields, list_of, one_of, or_null
from strandline.serve.problems import Problem, no_token, too_many

router = APIRouter(prefix="/session", tags=["session"])

SESSION = fields(
    name=TEXT, role=one_of([role.value for role in Role]), datasets=or_null(list_of(TEXT)), csrf=or_null(TEXT)
)


class LogIn(RequestInput):
    token: str = Field(min_length=1, max_length=1024, description="The secret of a token.")


def _session(context: ServeContext, caller: Caller) -> Document:
    return {
        "name": caller.token.name,
        "role": caller.token.role,
        "datasets": caller.token.datasets,
        "csrf": None if caller.session is None else context.keys.csrf_token(caller.session),
    }


async def log_in(context: ServeContext, request: Request, secret: str) -> NewSession:
    """Starts a session of the browser that sent the request; the caller sets its cookie. Raises Problem."""
    check_own_page(request)
    address = address_of(request)
    wait = context.logins.wait_seconds(address)
    if wait is not None:
        raise too_many("too many attempts to log in", wait)
    try:
        made = await context.identify(lambda: context.sessions.start(secret), logs_in=True)
    except Problem:
        context.logins.forget_last(address)  # nobody was asked whether the secret is one
        raise
    if made is None:
        raise no_token("this is not the secret of a valid token")
    context.logins.forget_last(address)
    return made


@router.post("", summary="Log a browser in", **documented(SESSION, status=201, said="Logged in: the cookie is set."))
async def start_session(request: Request, wanted: LogIn, _: None = anyone()) -> Response:
    """Sets a cookie that scripts cannot read. Requests that change something then need `X-CSRF-Token`: the `csrf` of
    the answer."""
    context = context_of(request)
    made = await log_in(context, request, wanted.token)
    response = answer(_session(context, made.caller), status=201)
    context.sessions.set_cookie(response, made, secure=context.cookie_secure)
    return response


@router.get("", summary="Who sends this request", **documented(SESSION))
async def show_session(access: ReadAccess) -> Response:
    return answer(_session(access.context, access.caller))


@router.delete("", summary="Log out", **documented(fields(ended=FLAG)))
async def end_session(access: ReadAccess) -> Response:
    """Ends the session in every process. A token that was sent by itself has none."""
    context, caller = access.context, access.caller

    def end() -> Document:
        if caller.session is not None:
            context.sessions.end(caller.session)
        return {"ended": caller.session is not None}

    response = await context.change(caller, end, is_short=True)
    context.sessions.clear_cookie(response, secure=context.cookie_secure)
    return response
