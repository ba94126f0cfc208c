"""Renders templates, and everything that a page has in common: who is logged in, navigation, errors as pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from strandline.core.documents import Document
from strandline.core.errors import StrandlineError
from strandline.core.roles import Role, allows
from strandline.core.text import wording
from strandline.ledger.engine import utc_now
from strandline.serve import problems
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.needs import Access
from strandline.serve.context import ServeContext, context_of, is_limited
from strandline.serve.pages import charts, spelling
from strandline.serve.pages.source import Source
from strandline.serve.pages.static_files import static_url
from strandline.serve.problems import Problem

_NAVIGATION = (  # in the order of what people ask
    ("/", "Overview", False),
    ("/quarantine/rows", "Quarantine", False),
    ("/drift", "Drift", False),
    ("/runs", "Runs", False),
    ("/datasets", "Datasets", False),
    ("/sinks", "Sinks", False),
    ("/replication", "Replication", False),
    ("/audit", "Audit", True),
    ("/tokens", "Tokens", True),
)


def source_of(access: Access) -> Source:
    return cast("Source", access.request.app.state.pages)


def is_admin(caller: Caller, *, whole_lake: bool = False) -> bool:
    return allows(caller.token.role, Role.ADMIN) and (not whole_lake or caller.token.datasets is None)


def document_of(response: Response) -> Document:
    """What the API answers: pages show the same documents."""
    found: Document = json.loads(bytes(response.body))
    return found


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    made.filters |= {
        "number": spelling.number,
        "short_number": spelling.short_number,
        "seconds": wording.duration,
        "took": wording.took,
        "size": wording.size,
        "stamp": spelling.stamp,
        "clock": spelling.clock,
        "prose": spelling.prose,
        "sentence": spelling.sentence,
        "words": spelling.words,
        "label": spelling.label,
        "spelled": spelling.spelled,
    }
    made.globals |= {"share_bar": charts.share_bar, "static_url": static_url}
    return made


def page(access: Access, template: str, *, at: str, beats: bool = False, **values: Any) -> Response:
    """`at`: the place in the navigation. `beats`: refresh also while the state of the lake does not change."""
    context, caller = access.context, access.caller
    return html(
        context,
        template,
        caller=caller,
        is_admin=is_admin(caller),
        is_lake_admin=is_admin(caller, whole_lake=True),
        csrf=None if caller.session is None else context.keys.csrf_token(caller.session),
        here=at,
        beats=beats,
        **values,
    )


def numbered(name: str, found: Sequence[Any], number: int, size: int) -> dict[str, Any]:
    """What a template needs to show the page with this number of a list."""
    number = min(max(1, number), max(1, -(-len(found) // size)))
    shown = found[(number - 1) * size : number * size]
    return {name: shown, f"{name}_total": len(found), "number": number, "is_last": number * size >= len(found)}


def html(context: ServeContext, template: str, *, status: int = 200, **values: Any) -> Response:
    now = utc_now()
    settings = {"lake_home": context.lake.config.home.name, "now": now}
    settings |= {"ago": lambda moment: spelling.ago(moment, now), "due": lambda moment: spelling.due(moment, now)}
    values = {"caller": None, "here": None, "csrf": None, "beats": False} | values
    values["navigation"] = [
        (to, name)
        for to, name, of_lake in _NAVIGATION
        if values["caller"] is not None and (not of_lake or is_admin(values["caller"], whole_lake=True))
    ]
    text = _environment().get_template(template).render(**settings, **values)
    return Response(text.encode("utf-8", "replace"), status, media_type="text/html; charset=utf-8")


PageHandler = Callable[[Request], Coroutine[Any, Any, Response]]


class PageRoute(APIRoute):
    """Answers errors as pages; a visitor whom nobody knows gets the page to log in."""

    def get_route_handler(self) -> PageHandler:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except (Problem, StrandlineError, RequestValidationError) as e:
                return await error_page(request, e)

        return answer


async def error_page(request: Request, error: Exception) -> Response:
    context = context_of(request)
    match error:
        case Problem():
            found = problems.of_problem(error)
        case StrandlineError():
            found = problems.of_error(error, context.settings.retry_after_seconds, limited=is_limited(request))
        case RequestValidationError():
            found = problems.of_problem(problems.malformed(error.errors()))
        case _:
            raise error
    if found.status_code == problems.NO_TOKEN.status:
        asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        why = "Your session has ended." if request.cookies else None
        made = html(context, "login.html", status=401, problem=why, then=asked)
    else:
        made = html(context, "error.html", status=found.status_code, problem=document_of(found))
    for name in ("www-authenticate", "retry-after"):
        if name in found.headers:
            made.headers[name] = found.headers[name]
    return made
