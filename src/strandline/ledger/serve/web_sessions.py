"""Sessions of browsers. Only a hash of a session's id is stored.

A session is valid as long as its token: a token that is revoked or expires ends its sessions in every process.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from strandline.core.records.audit_events import Event
from strandline.ledger import audit
from strandline.ledger.engine import utc_now
from strandline.ledger.receive.tokens import IS_VALID, Token, hash_secret, read_token
from strandline.ledger.schema.core import UtcMicros
from strandline.ledger.schema.receive import api_token
from strandline.ledger.schema.serve import web_session

SESSIONS_OF_A_TOKEN_MAX = 100  # far more than the browsers of one token's users


@dataclass(frozen=True, slots=True)
class Session:
    token: Token
    created_at: datetime
    expires_at: datetime


def add(connection: sa.Connection, session_id: str, token: Token, *, lasts: timedelta) -> Session:
    """Stores a session of the token, which ends at the latest with it. Removes sessions that have expired. A token that
    has `SESSIONS_OF_A_TOKEN_MAX` sessions loses its oldest one."""
    now = utc_now()
    remove_expired(connection)
    of_token = web_session.c.token_id == token.id
    newest = (
        sa.select(web_session.c.id_hash)
        .where(of_token)
        .order_by(web_session.c.created_at.desc(), web_session.c.id_hash)
        .limit(SESSIONS_OF_A_TOKEN_MAX - 1)
    )
    connection.execute(web_session.delete().where(of_token, web_session.c.id_hash.not_in(newest)))
    ends = now + lasts if token.expires_at is None else min(now + lasts, token.expires_at)
    session = Session(token, now, max(ends, now))
    connection.execute(
        web_session.insert().values(
            id_hash=hash_secret(session_id),
            token_id=token.id,
            created_at=session.created_at,
            expires_at=session.expires_at,
        )
    )
    audit.record(connection, Event.SESSION_STARTED, token=token.name, until=session.expires_at)
    return session


def find(connection: sa.Connection, session_id: str) -> Session | None:
    """None if the session is unknown, ended or expired, or its token was revoked or has expired."""
    row = connection.execute(_FIND, {"hash": hash_secret(session_id), "now": utc_now()}).one_or_none()
    return None if row is None else Session(read_token(row), row.session_created_at, row.session_expires_at)


_FIND = (
    sa.select(
        api_token,
        web_session.c.created_at.label("session_created_at"),
        web_session.c.expires_at.label("session_expires_at"),
    )
    .join(web_session, web_session.c.token_id == api_token.c.id)
    .where(
        web_session.c.id_hash == sa.bindparam("hash"),
        web_session.c.expires_at > sa.bindparam("now", type_=UtcMicros),
        IS_VALID,
    )
)


def end(connection: sa.Connection, session_id: str) -> bool:
    """Ends the session in every process. False if there is none."""
    name = (
        sa.select(api_token.c.name)
        .join(web_session, web_session.c.token_id == api_token.c.id)
        .where(web_session.c.id_hash == hash_secret(session_id))
    )
    token = connection.execute(name).scalar()
    if connection.execute(web_session.delete().where(web_session.c.id_hash == hash_secret(session_id))).rowcount != 1:
        return False
    audit.record(connection, Event.SESSION_ENDED, token=token)
    return True


def remove_expired(connection: sa.Connection) -> int:
    """Removes sessions that have expired, which `find` does not return. Returns how many."""
    return int(connection.execute(web_session.delete().where(web_session.c.expires_at <= utc_now())).rowcount)
