"""Limits before anything is routed: requests and bodies at once, requests of one caller, bytes and seconds of a body.

Used from one event loop only, so it needs no locks.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable
from time import monotonic

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strandline.core.settings.serve import ServeSettings
from strandline.http.content_length import exceeds
from strandline.http.verified_callers import bearer_secret
from strandline.serve.auth.session_key import named_session
from strandline.serve.auth.sessions import COOKIE
from strandline.serve.problems import TOO_LARGE, TOO_MANY, TOO_SLOW, Problem, of_problem, too_many

_BURST_SECONDS = 4
_CALLERS_MAX = 10_000
_BODIES_OF_AN_ADDRESS = 4  # one address may have this part of the bodies that are on their way
# They cost little, and monitoring must reach the server also while others keep it busy.
_ALWAYS_ANSWERED = ("/healthz", "/readyz")
_STREAMS = "/live"  # once open, they do little for minutes; `pages/live.py` limits them


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


class KnownCallers:
    """Tokens and sessions, by their hash, that the ledger has verified. Others count as requests of their address: so
    nobody gets more requests by making tokens up."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def note(self, scope: Scope, *, verified: bool) -> None:
        if (named := _named(scope)) is None:
            return
        self._known.pop(named, None)
        if verified:
            self._known[named] = None
            if len(self._known) > _CALLERS_MAX:
                self._known.popitem(last=False)

    def caller(self, scope: Scope) -> bytes:
        named = _named(scope)
        return named if named is not None and named in self._known else b"address:" + _address(scope)


class RequestLimiter:
    """The middleware. A body is read as a whole before the application sees the request: all bodies are small. A
    request whose body is on its way counts as a body, and not as a request that is answered."""

    def __init__(self, app: ASGIApp, *, settings: ServeSettings, known: KnownCallers) -> None:
        self._app = app
        self._settings = settings
        self._known = known
        self._inside = 0
        self._bodies: Counter[bytes] = Counter()  # on their way, by address
        self._rates = RateLimit(settings.requests_per_second_max)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_watching = scope["type"] == "http" and scope["path"] in _ALWAYS_ANSWERED and scope["method"] == "GET"
        if scope["type"] != "http" or is_watching:
            await self._app(scope, receive, send)
            return
        try:
            if not self._rates.takes(self._known.caller(scope)):
                raise self._too_many("this caller sends too many requests")
            body = await self._counted_body(scope, receive)
            if body is None:
                return
            if self._inside >= self._settings.requests_at_once_max:
                raise self._too_many("too many requests are under way")
        except Problem as e:
            await of_problem(e)(scope, receive, send)
            return
        self._inside += 1
        is_counted = True

        def release() -> None:
            nonlocal is_counted
            self._inside -= is_counted
            is_counted = False

        async def watched(message: Message) -> None:
            if scope["path"] == _STREAMS and message["type"] == "http.response.start":
                release()
            await send(message)

        try:
            await self._app(scope, _replayed(body, receive), watched)
        finally:
            release()

    def _too_many(self, detail: str) -> Problem:
        return too_many(detail, self._settings.retry_after_seconds)

    async def _counted_body(self, scope: Scope, receive: Receive) -> bytes | None:
        """None if the client went away. Raises Problem, also if too many bodies are on their way."""
        headers = Headers(scope=scope)
        if "transfer-encoding" not in headers and headers.get("content-length", "0") == "0":
            return b""
        most = self._settings.requests_at_once_max
        address = _address(scope)
        of_address = max(1, most // _BODIES_OF_AN_ADDRESS)
        if self._bodies.total() >= most or self._bodies[address] >= of_address:
            raise Problem(
                TOO_MANY,
                "too many bodies are on their way",
                "Send the same request again later.",
                {"Retry-After": str(self._settings.retry_after_seconds), "Connection": "close"},
            )
        self._bodies[address] += 1
        try:
            return await self._body(scope, receive)
        finally:
            self._bodies[address] -= 1
            if not self._bodies[address]:
                del self._bodies[address]

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """None if the client went away. Raises Problem."""
        most = self._settings.body_bytes_max
        closes = {"Connection": "close"}
        large = Problem(TOO_LARGE, f"a body has at most {most:,} bytes", "Send less in one request.", closes)
        if exceeds(Headers(scope=scope).get("content-length"), most):
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
            raise Problem(TOO_SLOW, "the body takes too long", "Send the same request again.", closes) from e


def _replayed(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()  # waits until the client goes away
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _named(scope: Scope) -> bytes | None:
    """The hash of the token or the session that a request names; other headers do not make another caller."""
    headers = Headers(scope=scope)
    header = headers.get("authorization")
    if header is not None:
        named = bearer_secret(header)
    else:
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE)
        named = None if cookie is None else named_session(cookie)
    return None if named is None else hashlib.sha256(named.encode("utf-8", "replace")).digest()


def _address(scope: Scope) -> bytes:
    client = scope.get("client")
    return b"" if client is None else str(client[0]).encode()
