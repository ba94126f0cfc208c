"""Connects to a PostgreSQL server: its address without secrets, time limits, and what its errors mean for a chunk."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import quote as url_quote

import psycopg
from psycopg import conninfo, pq

from strandline.core.errors import UsageError

CONNECT_SECONDS_MAX = 10
LOCK_SECONDS_MAX = 5  # somebody alters the table, or another sender is writing the same range
ANSWER_SECONDS_MAX = 60.0  # for a query of the driver that does not read the table
COUNT_SECONDS_MAX = 3600.0  # for counting rows of a table
IDLE_SECONDS_MAX = 60  # a deliverer that was paused in a transaction loses its locks after this, or at the next fence

_SECRETS = ("password", "sslpassword")
_DEFAULTS: dict[str, str | int] = {
    "connect_timeout": CONNECT_SECONDS_MAX,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}

# Settings of the transaction, not of the session: behind a pooler the session is not ours. One round trip.
BEGIN = (
    "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; "
    f"SET LOCAL lock_timeout = '{LOCK_SECONDS_MAX}s'; "
    f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_SECONDS_MAX}s'; "
    "SET LOCAL TimeZone = 'UTC'; "
    # Stronger settings than `on` stay as they are.
    "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
)


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """It is pickled and sent to the executors, so it includes what the driver's environment says."""

    parameters: dict[str, str | int] = field(repr=False)
    address: str  # `host:port/database`, without secrets

    def connect(self, application: str) -> psycopg.Connection:
        ours = {"application_name": application, "client_encoding": "UTF8"}
        address = conninfo.make_conninfo("", **(self.parameters | ours))
        # Not prepared: a pooler may run the next statement in another server process.
        return psycopg.connect(address, autocommit=True, prepare_threshold=None)

    def scrub(self, text: str) -> str:
        """Hides the passwords, in case a message repeats one."""
        for name in _SECRETS:
            if secret := str(self.parameters.get(name) or ""):
                for spelling in (secret, url_quote(secret, safe=""), url_quote(secret)):
                    text = text.replace(spelling, "***")
        return text


class HoldsConnection:
    """Connects on first use, and keeps the connection; it is pickled without."""

    def __init__(self, server: PostgresServer, application: str) -> None:
        self._server = server
        self._application = application  # the name in pg_stat_activity
        self._open: psycopg.Connection | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._server.address})"

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_open": None}

    def _connect(self) -> psycopg.Connection:
        if self._open is None or self._open.closed:
            self._open = self._server.connect(self._application)
        return self._open

    def close(self) -> None:
        connection, self._open = self._open, None
        if connection is not None:
            connection.close()


def _parse(dsn: str) -> dict[str, str | int | None]:
    try:
        return dict(conninfo.conninfo_to_dict(dsn))
    except psycopg.ProgrammingError:
        # libpq's message repeats parts of the text, the password among them.
        raise UsageError(
            "option dsn is not a connection string of PostgreSQL",
            hint="postgresql://user@host:5432/database, or host=… dbname=… user=…; with a password only as env:NAME.",
        ) from None


def check_dsn(given: str) -> None:
    """Checks the option as given, before it is stored: `env:NAME`, or a text without a secret. Raises UsageError."""
    if not given.startswith("env:") and any(_parse(given).get(name) for name in _SECRETS):
        raise UsageError(
            "option dsn holds a password, and would be stored with it",
            hint="Put the whole connection string into an environment variable and say dsn=env:NAME, "
            "or leave the password to PostgreSQL's own password file.",
        )


def parse_server(dsn: str) -> PostgresServer:
    parameters: dict[str, str | int] = {k: v for k, v in _parse(dsn).items() if v is not None and v != ""}
    if "service" in parameters:
        address = f"service={parameters['service']}/{parameters.get('dbname', '')}"
    else:
        parameters = _environment() | parameters
        host = str(parameters.get("host") or parameters.get("hostaddr") or "local").lower()
        database = str(parameters.get("dbname") or parameters.get("user") or "")
        where = url_quote(host, safe=",:[]"), parameters.get("port", 5432), url_quote(database, safe="")
        address = "{}:{}/{}".format(*where)
    return PostgresServer(_DEFAULTS | parameters, address)


def _environment() -> dict[str, str | int]:
    """What libpq would take from the environment (PGHOST …): an executor's may differ."""
    return {o.keyword.decode(): o.val.decode() for o in pq.Conninfo.get_defaults() if o.val and o.val != o.compiled}


@contextlib.contextmanager
def time_limit(connection: psycopg.Connection, seconds: float) -> Iterator[psycopg.Connection]:
    """Shuts the socket after this time: a server that neither answers nor hangs up would block forever."""

    def shut() -> None:
        with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, shut)
    timer.daemon = True
    timer.start()
    try:
        yield connection
    finally:
        timer.cancel()


# --- what an error means ---

_AGAIN = {
    "40001": "it could not be serialised with other transactions",
    "40P01": "it met other transactions in a deadlock",
    "55P03": "another transaction holds a lock on the table or on the same range",
}
_ALTERED = ("42703", "42P01", "42804", "3F000", "428C9", "42809", "42704")
_LATER = {
    "28": "the server refused the credentials",
    "3D": "the database does not exist",
    "53100": "the server's disk is full",
    "53200": "the server is out of memory",
    "53300": "the server has too many connections",
    "57P": "the server is shutting down or starting, or the connection was terminated",
    "57014": "it was cancelled, or the server's statement_timeout expired",
    "42501": "the user may not do this",
    "25006": "the server takes no writes: it is a standby or read only",
}


# Connection, transaction, credentials, database, resources, locks, operators, system, configuration, internal.
_ABOUT_THE_SERVER = {"08", "25", "28", "3D", "40", "53", "55", "57", "58", "F0", "XX"}


def lost(connection: psycopg.Connection, error: psycopg.Error) -> bool:
    """Whether the connection is gone, so that the outcome of the statement is unknown."""
    state = error.sqlstate
    return connection.closed or connection.broken or state is None or state[:2] == "08" or state.startswith("57P")


def may_pass_soon(error: psycopg.Error) -> str | None:
    """Why an immediate retry may help; None if it may not."""
    return _AGAIN.get(error.sqlstate or "")


def is_about_content(error: psycopg.Error) -> bool:
    """Whether the rows themselves were refused: class 22 is data, 23 constraints."""
    return (error.sqlstate or "")[:2] in ("22", "23")


def may_be_about_content(error: psycopg.Error) -> bool:
    """Whether the code is neither for content nor for the server's own trouble: a trigger may raise any other, and
    row-level security uses the code for missing rights. Only trying other rows can tell."""
    return (error.sqlstate or "08")[:2] not in _ABOUT_THE_SERVER


def is_about_the_table(error: psycopg.Error) -> bool:
    return error.sqlstate in _ALTERED


def explain(error: psycopg.Error) -> str:
    """One line: our words if there are any, and the server's."""
    state = error.sqlstate or ""
    ours = next((_LATER[key] for key in (state, state[:3], state[:2]) if key in _LATER), None) or may_pass_soon(error)
    theirs = " ".join((error.diag.message_primary or str(error)).split())[:500]
    return f"{ours} ({theirs})" if ours else theirs
