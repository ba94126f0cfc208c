"""Limits before anything is routed: requests at once, requests of one caller, bytes and seconds of a body.

Used from one event loop only, so it needs no locks.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strandline.core.settings_serve import ServeSettings
from strandline.http.verified_callers import bearer_secret
from strandline.serve.auth.sessions import COOKIE
from strandline.serve.problems import TOO_LARGE, TOO_SLOW, Problem, of_problem, too_many

_BURST_SECONDS = 4
_CALLERS_MAX = 10_000


class RateLimit:
    """A token bucket per caller."""

    def __init__(self, per_second_max: int, clock: Callable[[], float] = monotonic) -> None:
        self._rate = per_second_max
        self._burst = float(per_second_max * _BURST_SECONDS)
        self._clock = clock
        self._left: OrderedDict[bytes, tuple[float, float]] = OrderedDict()

    def takes(self, caller: bytes) -> bool:
        """False if the caller has no request left right now."""
        now = self._clock()
        left, at = self._left.pop(caller, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._rate)
        self._left[caller] = (max(left - 1, 0.0), now)
        if len(self._left) > _CALLERS_MAX:
            self._left.popitem(last=False)
        return left >= 1


class RequestLimits:
    """The middleware. A body is read as a whole before the application sees the request: all bodies are small."""

    def __init__(self, app: ASGIApp, *, settings: ServeSettings) -> None:
        self._app = app
        self._settings = settings
        self._inside = 0
        self._rates = RateLimit(settings.requests_per_second_max)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            if not self._rates.takes(_caller(scope)):
                raise too_many("this caller sends too many requests", self._settings.retry_after_seconds)
            if self._inside >= self._settings.requests_at_once_max:
                raise too_many("too many requests are under way", self._settings.retry_after_seconds)
        except Problem as e:
            await of_problem(e)(scope, receive, send)
            return
        self._inside += 1
        try:
            try:
                body = await self._body(scope, receive)
            except Problem as e:
                await of_problem(e)(scope, receive, send)
                return
            if body is not None:
                await self._app(scope, _replayed(body, receive), send)
        finally:
            self._inside -= 1

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """None if the client went away. Raises Problem."""
        most = self._settings.body_bytes_max
        large = Problem(TOO_LARGE, f"a body has at most {most:,} bytes", headers={"Connection": "close"})
        said = Headers(scope=scope).get("content-length", "")
        if said.isascii() and said.isdigit() and int(said) > most:
            raise large
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._settings.body_seconds_max):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    piece = message.get("body", b"")
                    size += len(piece)
                    if size > most:
                        raise large
                    pieces.append(piece)
                    if not message.get("more_body", False):
                        return b"".join(pieces)
        except TimeoutError as e:
            raise Problem(TOO_SLOW, "the body takes too long", headers={"Connection": "close"}) from e


def _replayed(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()  # waits until the client goes away
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _caller(scope: Scope) -> bytes:
    """A token or a session by its hash, else the address; other headers do not make another caller. Nothing is verified
    here: whoever makes tokens up gets new requests to spend, and each is refused after one look into the ledger."""
    headers = Headers(scope=scope)
    header = headers.get("authorization")
    named = bearer_secret(header) if header is not None else cookie_parser(headers.get("cookie", "")).get(COOKIE)
    if named is None:
        client = scope.get("client")
        return b"address:" + (b"" if client is None else str(client[0]).encode())
    return hashlib.sha256(named.encode("utf-8", "replace")).digest()
