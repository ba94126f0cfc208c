"""Connections to a ledger in PostgreSQL, with time limits for a silent server and for a silent client."""

from __future__ import annotations

import os
import socket
import time
import uuid
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from strandline.core.errors import ConfigError
from strandline.core.settings.lake_config import LakeConfig, LedgerSettings

_CONNECTIONS_KEPT = 4
_CONNECTIONS_MORE = 60
_PROBES = 3
# Longer than any pause in a transaction of ours. The longest pauses are those of a resync, while Iceberg commits.
_IDLE_TRANSACTION_SECONDS_MAX = 3600


def postgres_engine(config: LakeConfig) -> sa.Engine:
    address, settings = parse_url(config.ledger_url), config.settings.ledger
    client_limits = {key: value for key, value in _client_limits(settings).items() if key not in address.query}
    engine = sa.create_engine(
        address,
        pool_size=_CONNECTIONS_KEPT,
        max_overflow=_CONNECTIONS_MORE,
        connect_args=client_limits,
        hide_parameters=True,
    )

    @event.listens_for(engine, "connect")
    def _on_connect(dbapi_connection: Any, _record: Any) -> None:
        with dbapi_connection.cursor() as cursor:
            limits = _server_limits(settings)
            calls = ", ".join("set_config(%s, %s, false)" for _ in limits)
            cursor.execute(f"SELECT {calls}", [text for pair in limits.items() for text in pair])
            # A server that acknowledges before it is durable would break every promise.
            cursor.execute(
                "SELECT set_config('synchronous_commit', 'on', false) "
                "WHERE current_setting('synchronous_commit') = 'off'"
            )
        dbapi_connection.commit()

    _ping_after_idling(engine)
    return engine


# A ping before every transaction would cost as much as another statement.
_PING_AFTER_IDLE_SECONDS = 3.0


def _ping_after_idling(engine: sa.Engine) -> None:
    """Pings a connection that was idle, so that a restarted server does not make the next call fail."""

    @event.listens_for(engine, "checkin")
    def _on_checkin(_dbapi_connection: Any, record: Any) -> None:
        record.info["idle_since"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _on_checkout(dbapi_connection: Any, record: Any, _proxy: Any) -> None:
        now = time.monotonic()
        if now - record.info.get("idle_since", now) < _PING_AFTER_IDLE_SECONDS:
            return
        try:
            engine.dialect.do_ping(dbapi_connection)
        except engine.dialect.loaded_dbapi.Error as e:
            raise sa.exc.InvalidatePoolError() from e  # the pool opens a new connection


def parse_url(url: str, setting: str = "ledger.url") -> sa.URL:
    """Parses the address. Errors never repeat it: it contains a password, possibly in an unexpected place."""
    hint = "postgresql://USER:PASSWORD@HOST:PORT/DATABASE; in a password write %40 for @, %3A for :, %2F for /."
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        raise ConfigError(f"{setting} is not an address of PostgreSQL", hint=hint) from None
    if "@" in (parsed.host or ""):
        raise ConfigError(f"{setting} has more than one @", hint=hint)
    return parsed


def printable(url: sa.URL) -> str:
    """The address for messages: without the password and without the parameters after `?`, which may contain it."""
    return url.set(query={}).render_as_string(hide_password=True)


def without_secrets(url: sa.URL, text: str) -> str:
    """The text of a server or driver, with everything masked that may be secret in the address."""
    values = [value for given in url.query.values() for value in ([given] if isinstance(given, str) else given)]
    for secret in sorted(filter(None, [url.password, *values]), key=len, reverse=True):
        text = text.replace(str(secret), "***")
    return text


def _probes(settings: LedgerSettings) -> dict[str, int]:
    """Of TCP keepalive: the connection may be idle for a third of `silence_seconds_max`; three probes share the
    rest."""
    seconds = settings.silence_seconds_max
    return {"idle": max(1, seconds // 3), "interval": max(1, seconds * 2 // (3 * _PROBES)), "count": _PROBES}


@cache
def _random_part(_pid: int) -> str:
    return uuid.uuid4().hex[:6]


def application_name() -> str:
    """The name by which the server shows the connections of this process. Processes of two containers may have the same
    pid and the same host name, so the name has a random part."""
    return f"strandline, process {os.getpid()} on {socket.gethostname()}"[:55] + f", {_random_part(os.getpid())}"


def _client_limits(settings: LedgerSettings) -> dict[str, str | int]:
    return {
        "connect_timeout": settings.connect_seconds_max,
        "keepalives": 1,
        **{f"keepalives_{name}": value for name, value in _probes(settings).items()},
        "tcp_user_timeout": settings.silence_seconds_max * 1000,
        "application_name": application_name(),
    }


def _server_limits(settings: LedgerSettings) -> dict[str, str]:
    """Limits on the server's side. Without them, a server would hold the locks of a vanished client for two hours."""
    return {
        "lock_timeout": f"{settings.busy_timeout_seconds}s",
        "statement_timeout": f"{settings.statement_seconds_max}s",
        "idle_in_transaction_session_timeout": f"{_IDLE_TRANSACTION_SECONDS_MAX}s",
        **{f"tcp_keepalives_{name}": str(value) for name, value in _probes(settings).items()},
        "tcp_user_timeout": f"{settings.silence_seconds_max}s",
    }


_OLDEST_WRITER = sa.text(
    "SELECT application_name, pid, state FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_xid IS NOT NULL "
    "ORDER BY xact_start LIMIT 1"
)


def find_lock_holder(engine: sa.Engine) -> str | None:
    """Describes the owner of the oldest transaction that writes; None if there is none or the server does not say."""
    try:
        with engine.connect() as connection:
            row = connection.execute(_OLDEST_WRITER).one_or_none()
    except sa.exc.SQLAlchemyError:
        return None
    if row is None:
        return None
    return f"{row.application_name or 'a client without a name'} (the server's process {row.pid}, {row.state})"
