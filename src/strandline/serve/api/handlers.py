"""Turns a function that returns a document into a route: it runs in a thread, as its caller, within a time limit."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, cast

from fastapi import Response

from strandline.core.documents import Document
from strandline.serve.auth.needs import Access

_P = ParamSpec("_P")
DocumentHandler = Callable[Concatenate[Access, _P], Document]
Route = Callable[Concatenate[Access, _P], Awaitable[Response]]


def reads(load: DocumentHandler[_P]) -> Route[_P]:
    """What it needs is in the ledger."""
    return _route(load, lambda access, do: access.context.read(access.caller, do))


def reads_table(load: DocumentHandler[_P]) -> Route[_P]:
    """It opens a table."""
    return _route(load, lambda access, do: access.context.read_table(access.caller, do))


def changes_lake(*, status: int = 200, is_short: bool = False) -> Callable[[DocumentHandler[_P]], Route[_P]]:
    """It changes something. `is_short`: without waiting for a destination."""

    def answer(access: Access, do: Callable[[], Document]) -> Awaitable[Response]:
        return access.context.change(access.caller, do, status=status, is_short=is_short)

    return lambda change: _route(change, answer)


def _route(
    handler: DocumentHandler[_P], answer: Callable[[Access, Callable[[], Document]], Awaitable[Response]]
) -> Route[_P]:
    async def route(access: Access, *args: _P.args, **kwargs: _P.kwargs) -> Response:
        return await answer(access, lambda: handler(access, *args, **kwargs))

    made: Any = update_wrapper(route, handler)
    # FastAPI makes a model of what a route returns, unless that is a Response.
    made.__signature__ = inspect.signature(handler).replace(return_annotation=Response)
    return cast("Route[_P]", made)
