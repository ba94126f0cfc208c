"""Log in with the secret of a token, and log out."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from strandline.core.errors import StrandlineError
from strandline.serve.api.session import end_session, log_in
from strandline.serve.auth.csrf import check_own_page, check_token, read_form
from strandline.serve.auth.needs import Access, anyone
from strandline.serve.context import context_of
from strandline.serve.pages.render import PageRoute, html
from strandline.serve.problems import CROSS_SITE, LEDGER_AWAY, Problem, of_problem

router = APIRouter(include_in_schema=False, route_class=PageRoute)

_LOGGED_OUT = "You are logged out."
_COOKIE_GONE = (
    "This browser is logged out. The ledger did not answer, so the session stays valid until it expires. To "
    "end it before that, revoke its token."
)


@router.get("/login")
async def show_log_in(
    request: Request, next: str = "/", out: bool = False, ended: bool = True, _: None = anyone()
) -> Response:
    notice = (_LOGGED_OUT if ended else _COOKIE_GONE) if out else None
    return html(context_of(request), "login.html", problem=None, notice=notice, then=_own_path(next))


@router.post("/login")
async def submit_log_in(request: Request, _: None = anyone()) -> Response:
    context = context_of(request)
    form = await read_form(request)
    then = _own_path(form.get("next", "/"))
    secret = form.get("token", "").strip()
    try:
        made = await log_in(context, request, secret[:1024])
    except Problem as e:
        if e.kind is CROSS_SITE:
            raise
        answer = html(context, "login.html", status=of_problem(e).status_code, problem=_said(e), then=then)
        for name, value in e.headers.items():
            answer.headers[name] = value
        return answer
    response = RedirectResponse(then, 303)
    context.sessions.set_cookie(response, made, secure=context.cookie_secure)
    return response


def _said(problem: Problem) -> str:
    said = f"{problem.detail[:1].upper()}{problem.detail[1:]}."
    wait = problem.headers.get("Retry-After")
    return f"{said} Try again in {wait} seconds." if wait else said


@router.post("/logout")
async def submit_log_out(request: Request, _: None = anyone()) -> Response:
    """Without a session there is nothing to end. With one, only our own page may end it. The browser loses its cookie
    also where the ledger does not answer; the page then says that the session itself lives on."""
    context = context_of(request)
    session = context.sessions.id_of(request)
    ended = True
    if session is not None:
        check_own_page(request)
        await check_token(request, context.keys.csrf_token(session))
        ended = await _end(request)
    response = RedirectResponse("/login?out=true" if ended else "/login?out=true&ended=false", 303)
    context.sessions.clear_cookie(response, secure=context.cookie_secure)
    return response


async def _end(request: Request) -> bool:
    """Ends the session; False if the ledger does not answer."""
    try:
        context = context_of(request)
        caller = await context.find_caller(request)
        if caller is not None:
            await end_session(Access(request, context, caller))
    except Problem as e:
        if e.kind is not LEDGER_AWAY:
            raise
        return False
    except StrandlineError as e:
        if not e.retryable:
            raise
        return False
    return True


def _own_path(path: str) -> str:
    """A path of this server, whatever was given: another site must not be where a log-in leads to."""
    is_own = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and path.isascii()
    return path if is_own and not path.startswith(("/login", "/logout", "/live", "/api/")) else "/"
