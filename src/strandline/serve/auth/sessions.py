"""Sessions of browsers: a cookie that stands for a token.

The ledger stores a hash of the session's id. So a log-out, or a revoked token, ends the session in every process.
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
from strandline.serve.auth.session_key import SessionKeys

COOKIE = "strandline_session"


@dataclass(frozen=True, slots=True)
class NewSession:
    caller: Caller
    id: str
    expires_at: datetime


@dataclass(frozen=True)
class Sessions:
    ledger: Ledger
    keys: SessionKeys
    length: timedelta

    def start(self, secret: str) -> NewSession | None:
        """None if the secret is not that of a valid token."""
        session = self.keys.new_id()
        with self.ledger.write() as connection:
            token = tokens.find(connection, secret)
            if token is None:
                return None
            caller = Caller(token, session)
            with acting_as(caller.actor):
                made = web_sessions.add(connection, session, token, lasts=self.length)
        return NewSession(caller, session, made.expires_at)

    def find(self, session: str) -> Token | None:
        """None if the session has ended or expired, or its token is not valid any more."""
        with self.ledger.read() as connection:
            found = web_sessions.find(connection, session)
        return None if found is None else found.token

    def end(self, session: str) -> None:
        with self.ledger.write() as connection:
            web_sessions.end(connection, session)

    def cookie_of(self, request: Request) -> str | None:
        """The session's id in the request's cookie; None without one, and for one that is forged or expired."""
        value = request.cookies.get(COOKIE)
        return None if value is None else self.keys.read_cookie(value, utc_now())

    def set_cookie(self, response: Response, made: NewSession, *, secure: bool) -> None:
        response.set_cookie(
            COOKIE,
            self.keys.cookie(made.id, made.expires_at),
            max_age=max(0, int((made.expires_at - utc_now()).total_seconds())),
            path="/",
            secure=secure,
            httponly=True,
            samesite="strict",
        )

    def clear_cookie(self, response: Response, *, secure: bool) -> None:
        response.delete_cookie(COOKIE, path="/", secure=secure, httponly=True, samesite="strict")
