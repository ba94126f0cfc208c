"""The API and the dashboard as a FastAPI application: routes, their description, and one form for every error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strandline.core.documents import json_text
from strandline.core.errors import StrandlineError
from strandline.serve import health, metrics, problems
from strandline.serve.api import (
    audit,
    consumers,
    datasets,
    followers,
    maintenance,
    quarantined_files,
    quarantined_rows,
    reconciliation,
    replication,
    session,
    sinks,
    status,
    tasks,
    tokens,
)
from strandline.serve.auth.needs import Anyone, Needs, anyone
from strandline.serve.auth.renewal import SessionRenewal
from strandline.serve.auth.sessions import COOKIE
from strandline.serve.context import ServeContext, is_limited
from strandline.serve.describe import BEFORE_ROUTING, OPEN, PROBLEM, documented
from strandline.serve.headers import SecurityHeaders
from strandline.serve.limits import RequestLimiter
from strandline.serve.pages import audit as audit_page
from strandline.serve.pages import datasets as dataset_pages
from strandline.serve.pages import drift, live, login, overview, quarantine, runs, static_files
from strandline.serve.pages import replication as replication_pages
from strandline.serve.pages import sinks as sink_pages
from strandline.serve.pages import tokens as token_page
from strandline.serve.pages.render import error_page
from strandline.serve.pages.source import Source
from strandline.serve.problems import Problem
from strandline.serve.process_metrics import RequestMetrics

if TYPE_CHECKING:
    from strandline.jobs.loop import LoopStates
    from strandline.lake import Lake

API = "/api/v1"
_ABOUT = """
Read the state of a lake, and control it. Every request needs a token (`strandline token create NAME --role read`), or
the cookie of a browser that has logged in; each operation says which role it needs.

Errors are problem documents (RFC 9457): `type` names the error, `detail` says what happened, `hint` what to do, and
`retryable` whether the same request may succeed later. Lists are paged: give `next` as `after` or `before`. Long work
is answered with 202 and a `place`, the path that shows the work and calls it off.

Rows are sent to the receiver (`strandline receive`), which has its own paths and its own form of answer.
"""
_ROUTES = (
    status, datasets, consumers, sinks, quarantined_rows, quarantined_files, maintenance, reconciliation, followers,
    replication, tokens, audit, tasks, session,
)  # fmt: skip
_PAGES = (
    overview, dataset_pages, sink_pages, replication_pages, quarantine, drift, runs, audit_page, token_page, login,
    live, static_files,
)  # fmt: skip


def create_app(lake: Lake, *, tls: bool = False, loops: LoopStates | None = None) -> FastAPI:
    """Serves the lake; `tls` says whether clients speak HTTPS to it, `loops` what else this process does. The lake
    stays open as long as the application."""
    context = ServeContext(lake, tls=tls, loops=loops)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            context.close()

    # made here and not in the threads of requests, where two might make one twice
    _parts = (lake.ingestion, lake.delivery, lake.receiver, lake.maintenance, lake.reconciler, lake.leader)
    app = FastAPI(
        title="Strandline",
        version="1",
        description=_ABOUT,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,  # these pages load scripts from third parties
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.context = context
    for routes in _ROUTES:
        app.include_router(routes.router, prefix=API)
    app.include_router(health.router)
    app.include_router(metrics.router)
    app.include_router(_description(app))
    app.state.pages = Source(context)
    app.state.lake_checks = health.LakeChecks(context)
    for page in _PAGES:
        app.include_router(page.router)
    _answer_errors(app, context)
    app.add_middleware(SessionRenewal, sessions=context.sessions, secure=context.cookie_secure)
    app.add_middleware(RequestLimiter, settings=context.settings, known=context.known)
    app.add_middleware(_Unexpected)
    app.add_middleware(SecurityHeaders, tls=tls)
    app.add_middleware(RequestMetrics, counted=context.metrics, list_paths=lambda: _paths(app))
    app.add_middleware(_HeadAsGet)
    return app


def _description(app: FastAPI) -> APIRouter:
    router = APIRouter()
    made: asyncio.Task[bytes] | None = None

    @router.get(
        f"{API}/openapi.json",
        summary="This description",
        **documented(OPEN, problems=BEFORE_ROUTING),
        tags=["health"],
    )
    async def openapi(_: None = anyone()) -> Response:
        nonlocal made
        # Making it takes half a second, and anybody may ask: once, and not in the event loop.
        if made is None or (made.done() and made.exception() is not None):
            made = asyncio.create_task(asyncio.to_thread(lambda: json_text(describe(app)).encode()))
        return Response(await asyncio.shield(made), media_type="application/json")

    return router


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI description, with the role that each operation needs."""
    found = get_openapi(title=app.title, version=app.version, description=_ABOUT, routes=app.routes)
    components = found.setdefault("components", {})
    components.setdefault("schemas", {})["Problem"] = PROBLEM
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "`strandline token create`"},
        "session": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "`POST /api/v1/session`"},
    }
    for path, method, needed in declared_routes(app):
        if isinstance(needed, Needs) and path in found["paths"]:  # pages are not part of the API
            operation = found["paths"][path][method.lower()]
            operation["security"] = [{"token": []}, {"session": []}]
            operation["x-role"] = needed.role.value
            scope = " Not for tokens that are limited to some datasets." if needed.whole_lake else ""
            operation["description"] = (
                f"{operation.get('description', '')}\n\nNeeds the role `{needed.role}`.{scope}".strip()
            )
    return found


def declared_routes(app: FastAPI) -> Iterator[tuple[str, str, Needs | Anyone | None]]:
    """Each path and method, and what it declares to need of its caller; None for one that declares nothing."""
    for route in iter_route_contexts(app.routes):
        declared = _declared(route)
        for method in sorted(route.methods or ("",)):
            yield route.path_format or route.path or "", method, declared


def _declared(route: object) -> Needs | Anyone | None:
    dependant = getattr(route, "dependant", None)
    calls = [] if dependant is None else [dependency.call for dependency in dependant.dependencies]
    return next((call for call in calls if isinstance(call, Needs | Anyone)), None)


def _paths(app: FastAPI) -> dict[object, str]:
    """The path of each endpoint, as the description has it."""
    routes = iter_route_contexts(app.routes)
    return {route.endpoint: route.path_format or route.path or "" for route in routes if route.endpoint is not None}


def _answer_errors(app: FastAPI, context: ServeContext) -> None:
    retry_after_seconds = context.settings.retry_after_seconds

    @app.exception_handler(Problem)
    async def problem(_request: Request, error: Problem) -> Response:
        return problems.of_problem(error)

    @app.exception_handler(StrandlineError)
    async def failed(request: Request, error: StrandlineError) -> Response:
        return problems.of_error(error, retry_after_seconds, limited=is_limited(request))

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        found = problems.malformed(error.errors())
        if any(e["type"] == "json_invalid" for e in error.errors()):
            found = await _refused(request) or found
        return problems.of_problem(found)

    @app.exception_handler(UnicodeEncodeError)
    async def not_text(_request: Request, error: UnicodeEncodeError) -> Response:
        why = "the request contains text that is not valid UTF-8"
        return problems.of_problem(Problem(problems.MALFORMED, why, problems.SEE_DESCRIPTION))

    @app.exception_handler(HTTPException)
    async def no_such_path(request: Request, error: HTTPException) -> Response:
        kind = {404: problems.NOT_FOUND, 405: problems.WRONG_METHOD}.get(error.status_code, problems.MALFORMED)
        hint = "The description at /api/v1/openapi.json has all paths."
        found = Problem(kind, kind.title, hint, error.headers or {})
        if not request.url.path.startswith("/api/") and "text/html" in request.headers.get("accept", ""):
            return await error_page(request, found)
        return problems.of_problem(found)


async def _refused(request: Request) -> Problem | None:
    """Why the caller may not use the route. FastAPI reads a body as JSON before it asks."""
    declared = _declared(request.scope.get("route"))
    try:
        if isinstance(declared, Needs):
            await declared(request)
    except Problem as e:
        return e
    return None


class _HeadAsGet:
    """HEAD is answered like GET; the server leaves the body out. Not where events are sent without end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD" and scope["path"] != "/live":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


class _Unexpected:
    """Answers what nobody foresaw, without its words."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as e:
            if scope["type"] != "http" or started:
                raise
            await problems.of_unexpected(e)(scope, receive, send)
