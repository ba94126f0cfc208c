"""Tokens of clients of the receiver and of the API. Only a hash is stored: a secret is shown once, when it is created.

Keys and senders' lanes belong to an owner: the first token of a line. A token that replaces another one continues its
line, so that a sender keeps what it has sent when its secret changes.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NewType

import sqlalchemy as sa

from strandline.core.errors import RefusedError, UsageError
from strandline.core.roles import Role
from strandline.core.text.bounded_text import check_text
from strandline.ledger.engine import from_row, insert_into, utc_now
from strandline.ledger.receive.receipts import TokenFingerprint
from strandline.ledger.schema.core import UtcMicros
from strandline.ledger.schema.receive import api_token

TokenId = NewType("TokenId", int)

SECRET_PREFIX = "sl_"  # lets people and scanners recognize a leaked secret
_SECRET_BYTES = 32
_FINGERPRINT_CHARS = 16
_FORGOTTEN = "forgotten:"  # stored instead of a hash, so that no secret matches


@dataclass(frozen=True, slots=True)
class Token:
    id: TokenId
    name: str
    datasets: tuple[str, ...] | None  # None: every dataset, also future ones
    created_at: datetime
    revoked_at: datetime | None
    owner: TokenId  # the first token of its line, which owns keys and lanes
    role: Role
    expires_at: datetime | None  # None: never

    def allows(self, dataset: str) -> bool:
        return self.revoked_at is None and (self.datasets is None or dataset in self.datasets)

    def is_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now


def read_token(row: Any) -> Token:
    """The token of a row with all columns of `api_token`."""
    datasets = None if row.datasets is None else tuple(json.loads(row.datasets))
    owner = TokenId(row.id if row.owner_id is None else row.owner_id)
    return from_row(Token, row, datasets=datasets, owner=owner, role=Role(row.role))


def hash_secret(secret: str) -> str:
    # The secret is random (256 bits; the id of a session has 128). A slow hash would not protect it better, and every
    # request would pay for it.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def create(
    connection: sa.Connection,
    name: str,
    datasets: Sequence[str] | None,
    *,
    role: Role | None = None,
    expires_in: timedelta | None = None,
    replaces: str | None = None,
) -> tuple[Token, str]:
    """Creates a token. Returns it with its secret, which nobody can read again. The datasets need not exist yet. A
    token that replaces another gets its datasets and its role, unless others are given. The default role is `write`."""
    if not name.strip():
        raise UsageError("a token needs a name")
    check_text("the token's name", name)
    if datasets is not None and not datasets:
        raise UsageError("a token must be for at least one dataset", hint="Name no dataset to allow every one.")
    if expires_in is not None and expires_in <= timedelta(0):
        raise UsageError("a token cannot expire in the past", hint="Name no time for a token that stays valid.")
    old = None if replaces is None else _latest(connection, replaces)
    if old is not None and datasets is None:
        datasets = old.datasets
    if role is None:
        role = Role.WRITE if old is None else old.role
    now = utc_now()
    secret = SECRET_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    row = connection.execute(
        insert_into(connection, api_token)
        .values(
            name=name,
            hash=hash_secret(secret),
            datasets=None if datasets is None else json.dumps(sorted(set(datasets))),
            owner_id=None if old is None else old.owner,
            role=role.value,
            created_at=now,
            expires_at=None if expires_in is None else now + expires_in,
        )
        .on_conflict_do_nothing()
        .returning(api_token)
    ).one_or_none()
    if row is None:
        raise RefusedError(
            f"a token named {name} exists already", hint="Choose another name, or revoke that one first."
        )
    return read_token(row), secret


def _latest(connection: sa.Connection, name: str) -> Token:
    """The newest token with this name, revoked or not."""
    query = sa.select(api_token).where(api_token.c.name == name).order_by(api_token.c.id.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise RefusedError(f"there is no token {name} to replace", hint="`strandline token list` shows them all.")
    return read_token(row)


def list_tokens(connection: sa.Connection) -> list[Token]:
    """All tokens by name, including revoked ones: they still identify the bodies that they sent."""
    rows = connection.execute(sa.select(api_token).order_by(api_token.c.name, api_token.c.id))
    return [read_token(row) for row in rows]


def revoke(connection: sa.Connection, name: str) -> bool:
    """Revokes the token: `find` does not return it any more. False if there is no valid token with this name."""
    changed = connection.execute(
        api_token.update()
        .where(api_token.c.name == name, api_token.c.revoked_at.is_(None))
        .values(revoked_at=utc_now())
    )
    return changed.rowcount == 1


def revoke_line(connection: sa.Connection, owner: TokenId) -> list[str]:
    """Revokes the token and all that continue its line; returns their names."""
    line = sa.or_(api_token.c.id == owner, api_token.c.owner_id == owner)
    changed = connection.execute(
        api_token.update()
        .where(line, api_token.c.revoked_at.is_(None))
        .values(revoked_at=utc_now())
        .returning(api_token.c.name)
    )
    return sorted(changed.scalars())


def find(connection: sa.Connection, secret: str) -> Token | None:
    """None if the secret is unknown, or its token revoked or expired."""
    row = connection.execute(_FIND, {"hash": hash_secret(secret), "now": utc_now()}).one_or_none()
    return None if row is None else read_token(row)


# For queries that join or lock tokens; the parameter `now` is the time.
IS_VALID = sa.and_(
    api_token.c.revoked_at.is_(None),
    sa.or_(api_token.c.expires_at.is_(None), api_token.c.expires_at > sa.bindparam("now", type_=UtcMicros)),
)
_FIND = sa.select(api_token).where(api_token.c.hash == sa.bindparam("hash"), IS_VALID)


def fingerprint_of(connection: sa.Connection, owner: TokenId) -> TokenFingerprint:
    row = connection.execute(_NAME_AND_HASH, {"id": owner}).one()
    return fingerprint(row.name, row.hash)


_NAME_AND_HASH = sa.select(api_token.c.name, api_token.c.hash).where(api_token.c.id == sa.bindparam("id"))


def fingerprint(name: str, hash: str) -> TokenFingerprint:
    return TokenFingerprint(name, hash.removeprefix(_FORGOTTEN)[:_FINGERPRINT_CHARS])


def recall(connection: sa.Connection, meant: TokenFingerprint) -> TokenId:
    """The token that a file in the warehouse, or a leader, names. If the ledger does not have it, a revoked token is
    created in its place: its bodies keep their identity, and a new token can replace it."""
    matching = (
        sa.select(api_token.c.id)
        .where(
            sa.or_(
                sa.func.substr(api_token.c.hash, 1, _FINGERPRINT_CHARS) == meant.fingerprint,
                api_token.c.hash == f"{_FORGOTTEN}{meant.fingerprint}",
            )
        )
        .order_by(api_token.c.id)
        .limit(1)
    )
    if (id := connection.execute(matching).scalar()) is not None:
        return TokenId(id)
    now = utc_now()
    values = {
        "name": meant.name,
        "hash": f"{_FORGOTTEN}{meant.fingerprint}",
        "created_at": now,
        "revoked_at": now,
        "role": Role.WRITE.value,
    }
    # Another process may create it just now.
    connection.execute(insert_into(connection, api_token).values(values).on_conflict_do_nothing())
    return TokenId(connection.execute(matching).scalar_one())
