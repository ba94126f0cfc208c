"""Sessions of browsers: a cookie in place of a token.

The ledger stores a hash of the session's id, and its absolute end. So a log-out, or a revoked token, ends the session
in every process. The signed cookie says when the browser logged in, and until when it is good. A person who uses the
page gets a later one, up to the absolute end; that changes nothing in the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from fastapi import Request, Response

from strandline.core.actor import acting_as
from strandline.ledger.engine import Ledger, utc_now
from strandline.ledger.receive import tokens
from strandline.ledger.receive.tokens import Token
from strandline.ledger.serve import web_sessions
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.csrf import SAFE_METHODS
from strandline.serve.auth.session_key import SessionCookie, SessionKeys

COOKIE = "strandline_session"
# The page's script sends it with what it fetches by itself.
BACKGROUND = "X-Strandline-Background"


@dataclass(frozen=True, slots=True)
class NewSession:
    caller: Caller
    id: str
    begun_at: datetime


@dataclass(frozen=True)
class Sessions:
    ledger: Ledger
    keys: SessionKeys
    idle: timedelta  # a session that nobody uses for so long ends
    lasts_max: timedelta  # a session ends so long after the log-in

    def start(self, secret: str) -> NewSession | None:
        """None if the secret is not that of a valid token."""
        session = self.keys.new_id()
        with self.ledger.write() as connection:
            token = tokens.find(connection, secret)
            if token is None:
                return None
            caller = Caller(token, session)
            with acting_as(caller.actor):
                made = web_sessions.add(connection, session, token, lasts=self.lasts_max)
        return NewSession(caller, session, made.created_at)

    def find(self, session: str) -> Token | None:
        """None if the session has ended or expired, or its token is not valid any more."""
        found = self.ledger.query(web_sessions.find, session)
        return None if found is None else found.token

    def end(self, session: str) -> None:
        self.ledger.change(web_sessions.end, session)

    def cookie_of(self, request: Request) -> SessionCookie | None:
        """What the request's cookie says; None without one, and for one that is forged or expired."""
        value, now = request.cookies.get(COOKIE), utc_now()
        said = None if value is None else self.keys.read_cookie(value, now)
        # Also here, not only in the ledger: the setting may have become shorter since the log-in.
        return None if said is None or now >= said.begun_at + self.lasts_max else said

    def id_of(self, request: Request) -> str | None:
        """The session's id in the request's cookie."""
        said = self.cookie_of(request)
        return None if said is None else said.session

    def set_cookie(self, response: Response, made: NewSession, *, secure: bool) -> None:
        self._set(response, made.id, made.begun_at, secure=secure)

    def renew(self, request: Request, response: Response, *, secure: bool) -> None:
        """Sets a later cookie for the request's session; nothing if it has none."""
        said = self.cookie_of(request)
        if said is not None:
            self._set(response, said.session, said.begun_at, secure=secure)

    def _set(self, response: Response, session: str, begun_at: datetime, *, secure: bool) -> None:
        now = utc_now()
        until = min(now + self.idle, begun_at + self.lasts_max)
        response.set_cookie(
            COOKIE,
            self.keys.cookie(SessionCookie(session, begun_at, until)),
            max_age=max(0, int((until - now).total_seconds())),
            path="/",
            secure=secure,
            httponly=True,
            samesite="strict",
        )

    def clear_cookie(self, response: Response, *, secure: bool) -> None:
        response.delete_cookie(COOKIE, path="/", secure=secure, httponly=True, samesite="strict")


def is_by_person(request: Request) -> bool:
    """Whether a person has opened a page or pressed a button. False for what a page fetches by itself: the stream of
    events, its own refreshes, and requests for the state of work."""
    if request.method not in SAFE_METHODS:
        return True
    # Over plain HTTP, browsers say nothing of how a request came about, except to this machine.
    mode = request.headers.get("sec-fetch-mode", "navigate")
    accepts = request.headers.get("accept", "")
    return mode == "navigate" and "text/html" in accepts and BACKGROUND not in request.headers
