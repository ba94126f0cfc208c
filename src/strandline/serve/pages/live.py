"""Server-sent events: tells open pages when to fetch themselves again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import monotonic

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from strandline.core.errors import StrandlineError
from strandline.serve.auth.needs import Access, ReadAccess
from strandline.serve.context import ServeContext
from strandline.serve.pages.render import PageRoute, source_of
from strandline.serve.pages.source import Source
from strandline.serve.problems import Problem, too_many

router = APIRouter(include_in_schema=False, route_class=PageRoute)

STREAMS_MAX = 64  # in this process; further pages refresh themselves now and then
STREAMS_OF_TOKEN_MAX = 32  # so that one token cannot take them all
BEAT_SECONDS = 12.0  # also keeps proxies from closing a silent stream
LASTS_SECONDS_MAX = 900.0  # the browser opens it anew
_LOOKS_SECONDS = 0.5


@router.get("/live")
async def live(access: ReadAccess) -> Response:
    context = access.context
    if context.streams.total() >= STREAMS_MAX or context.streams[access.caller.token.name] >= STREAMS_OF_TOKEN_MAX:
        raise too_many("too many pages are open", 30)
    return _LiveResponse(context, access.caller.token.name, _events(source_of(access), access))


class _LiveResponse(StreamingResponse):
    """Counts from when it is made, so that many who come at once see each other. It gives its place back however it
    ends, also if the browser went away before the first event."""

    def __init__(self, context: ServeContext, token: str, events: AsyncIterator[bytes]) -> None:
        headers = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._streams, self._token = context.streams, token
        self._streams[token] += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams[self._token] -= 1
            if not self._streams[self._token]:
                del self._streams[self._token]


async def _events(source: Source, access: Access) -> AsyncIterator[bytes]:
    until, version, beat_at = monotonic() + LASTS_SECONDS_MAX, "", monotonic() + BEAT_SECONDS
    yield b"retry: 3000\n\n"
    while monotonic() < until:
        try:
            if await access.context.find_caller(access.request) is None:
                yield _event("ended", "session")
                return
            newest = await source.version_for(access.caller)
        except (StrandlineError, Problem):
            newest = "away"
        if newest != version:
            version = newest
            yield _event("changed", version)
        elif monotonic() >= beat_at:
            beat_at = monotonic() + BEAT_SECONDS
            yield _event("beat", version)
        # Not later than the next beat, also where the lake is read less often: a token may have been revoked.
        pause_seconds = min(access.context.settings.refresh_seconds, BEAT_SECONDS)
        for _ in range(max(1, int(pause_seconds / _LOOKS_SECONDS))):
            await asyncio.sleep(_LOOKS_SECONDS)
            if access.context.ending.is_set():
                return


def _event(name: str, data: str) -> bytes:
    return f"event: {name}\ndata: {data}\n\n".encode()
