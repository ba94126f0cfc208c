"""Gives a browser a later cookie when a person has used its session."""

from __future__ import annotations

from fastapi import Request, Response
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strandline.serve.auth.sessions import Sessions


class SessionRenewal:
    """The middleware. `needs.py` decides which requests renew their session. An answer may set the cookie itself."""

    def __init__(self, app: ASGIApp, *, sessions: Sessions, secure: bool) -> None:
        self._app, self._sessions, self._secure = app, sessions, secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})

        async def renewed(message: Message) -> None:
            if message["type"] == "http.response.start" and state.get("renews_session", False):
                headers = MutableHeaders(scope=message)
                if "set-cookie" not in headers:
                    made = Response()
                    self._sessions.renew(Request(scope), made, secure=self._secure)
                    for value in made.headers.getlist("set-cookie"):
                        headers.append("set-cookie", value)
            await send(message)

        await self._app(scope, receive, renewed)
