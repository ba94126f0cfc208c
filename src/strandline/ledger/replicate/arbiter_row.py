"""The arbiter's record as one row in PostgreSQL, which need not be the database of any site's ledger."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from strandline.core.errors import StorageError
from strandline.core.sites.arbiter import CellMoved, CellUnclear, StoredRecord, count_and_digest, version_of
from strandline.ledger.postgres import parse_url, printable, without_secrets

_METADATA = sa.MetaData()
_ROW = sa.Table(
    "strandline_arbiter",
    _METADATA,
    sa.Column("lake", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)
_TABLE_MADE_MEANWHILE = ("42P07", "42710", "23505")  # a table, its row type, or an entry of either in the catalog


class RowCell:
    """Opens a connection for each call: there are few calls, and none may wait for another one's connection."""

    def __init__(self, url: str, lake: str, call_seconds_max: float) -> None:
        self._url = parse_url("postgresql+psycopg://" + url.partition("://")[2], setting="replication.arbiter")
        self._lake = lake
        milliseconds = max(1000, int(call_seconds_max * 1000))
        limits: dict[str, object] = {
            "connect_timeout": max(2, int(call_seconds_max)),  # libpq rounds 1 up to 2
            "tcp_user_timeout": milliseconds,
            # A server that acknowledges before it is durable would break every promise.
            "options": f"-c statement_timeout={milliseconds} -c lock_timeout={milliseconds} -c synchronous_commit=on",
        }
        unset = {key: value for key, value in limits.items() if key not in self._url.query}
        self._engine = sa.create_engine(self._url, poolclass=NullPool, connect_args=unset, hide_parameters=True)

    @property
    def place(self) -> str:
        return printable(self._url)

    def read(self) -> StoredRecord | None:
        try:
            with self._engine.connect() as connection:
                if not sa.inspect(connection).has_table(_ROW.name):
                    return None
                row = connection.execute(sa.select(_ROW).where(_ROW.c.lake == self._lake)).one_or_none()
        except sa.exc.DBAPIError as e:
            raise StorageError(self._failed(e)) from e
        return None if row is None else StoredRecord(row.body.encode(), version_of(row.version, row.body.encode()))

    def write(self, body: bytes, *, over: str | None) -> str:
        version = 1 if over is None else count_and_digest(over)[0] + 1
        committing = False
        try:
            if over is None:
                self._make_table()
            with self._engine.connect() as connection, connection.begin() as transaction:
                self._put(connection, body, version, over)
                committing = True
                transaction.commit()
        except sa.exc.DBAPIError as e:
            if committing and not isinstance(e, sa.exc.IntegrityError):
                raise CellUnclear(self._failed(e)) from e
            raise StorageError(self._failed(e)) from e
        return version_of(version, body)

    def _put(self, connection: sa.Connection, body: bytes, version: int, over: str | None) -> None:
        from sqlalchemy.dialects.postgresql import insert

        values = {"version": version, "body": body.decode()}
        if over is None:
            new = insert(_ROW).values(lake=self._lake, **values).on_conflict_do_nothing()
            stored = connection.execute(new.returning(_ROW.c.version)).scalar()
        else:
            count, digest = count_and_digest(over)
            is_same = sa.func.encode(sa.func.sha256(sa.func.convert_to(_ROW.c.body, "UTF8")), "hex") == digest
            own = (_ROW.c.lake == self._lake, _ROW.c.version == count, is_same)
            stored = connection.execute(_ROW.update().where(*own).values(**values).returning(_ROW.c.version)).scalar()
        if stored is None:
            raise CellMoved

    def _make_table(self) -> None:
        try:
            with self._engine.begin() as connection:
                _METADATA.create_all(connection)
        except sa.exc.DBAPIError as e:
            if getattr(e.orig, "sqlstate", None) not in _TABLE_MADE_MEANWHILE:
                raise

    def _failed(self, error: sa.exc.DBAPIError) -> str:
        first_line = without_secrets(self._url, str(error.orig or error)).strip().partition("\n")[0]
        return f"the arbiter at {self.place} does not answer: {first_line}"
