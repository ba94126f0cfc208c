"""Connections, transactions and schema versions of the ledger, with the same code for SQLite and PostgreSQL."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.pool import QueuePool

from strandline.core.documents import field_names
from strandline.core.errors import (
    LedgerMissing,
    LedgerTooNew,
    LedgerUnreadable,
    StorageError,
    StrandlineError,
)
from strandline.core.settings.lake_config import LakeConfig
from strandline.ledger.backup import copy_ledger, sqlite_uri
from strandline.ledger.closed_ledger import explain_refusals, raise_if_closed
from strandline.ledger.database_errors import REBUILD_HINT, explain_postgres, explain_sqlite, is_answer, is_locked
from strandline.ledger.lock_holder import LOCK_HELD
from strandline.ledger.postgres import postgres_engine, printable
from strandline.ledger.schema import core
from strandline.ledger.write_right import Unlimited, WriteRight

Connection = sa.Connection  # a transaction, for other rooms that pass it from one call to the next

# Every version of the ledger's schema, oldest first. Listed here, so that a light command need not load Alembic.
REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010", "0011")

MIGRATIONS = Path(__file__).parent / "migrations"

# WAL with several connections could lose committed pages before this version of SQLite.
_WAL_IS_SAFE_FROM = (3, 51, 3)

_MIGRATION_LOCK = 0x73747261_6E646C6E  # the key of an advisory lock: any number that others do not use

_PARAMETERS_AT_ONCE_MAX = 500
_T = TypeVar("_T")
_P = ParamSpec("_P")


def utc_now() -> datetime:
    return datetime.now(UTC)


def slices(items: Iterable[_T], parameters_each: int = 1) -> Iterator[list[_T]]:
    """Cuts the items into lists that fit the number of parameters of one statement."""
    listed, step = list(items), _PARAMETERS_AT_ONCE_MAX // parameters_each
    return (listed[i : i + step] for i in range(0, len(listed), step))


def rows_with(
    connection: sa.Connection, query: sa.Select[Any], column: sa.ColumnElement[Any], values: Iterable[Any]
) -> Iterator[Any]:
    """The rows of the query in which the column has one of the values, of which there may be any number."""
    for part in slices(values):
        yield from connection.execute(query.where(column.in_(part)))


def one_of(connection: sa.Connection, values: Iterable[str]) -> sa.Select[tuple[str]]:
    """The values as a subquery for `IN`, which needs one parameter however many values there are."""
    listed = sa.bindparam(None, json.dumps(list(values)), type_=sa.Text)
    if connection.dialect.name == "sqlite":
        return sa.select(sa.func.json_each(listed).table_valued("value").c.value)
    elements = sa.func.json_array_elements_text(sa.cast(listed, sa.JSON)).table_valued("value")
    return sa.select(elements.c.value)


@dataclass(frozen=True, slots=True)
class Migrated:
    """The result of a migration to this program's version."""

    before: str
    after: str
    copy: Path | None  # the ledger as it was; None on PostgreSQL, where the migration is one transaction


class Ledger:
    """One database. Every transaction is `read()` or `write()`; nothing is cached between them."""

    def __init__(self, config: LakeConfig) -> None:
        self.config = config
        self.path = config.ledger_file  # the SQLite file; None on PostgreSQL
        self.is_sqlite = self.path is not None
        self.write_right: WriteRight = Unlimited()  # with an arbiter, the lake gives it the lease of its site
        self.engine = self._sqlite_engine(self.path) if self.path is not None else postgres_engine(config)
        explain_refusals(self.engine)

    @property
    def place(self) -> str:
        """The ledger's path, or its address without the password, for messages."""
        return str(self.path) if self.path is not None else printable(self.engine.url)

    def _sqlite_engine(self, path: Path) -> sa.Engine:
        busy_seconds = self._busy_seconds

        def connect() -> sqlite3.Connection:
            connection = sqlite3.connect(
                sqlite_uri(path, "rw"), uri=True, timeout=busy_seconds, isolation_level=None, check_same_thread=False
            )
            cursor = connection.cursor()
            # PERSIST is like DELETE, but does not create a file and sync its folder in every transaction.
            mode = "WAL" if sqlite3.sqlite_version_info >= _WAL_IS_SAFE_FROM else "PERSIST"
            cursor.execute(f"PRAGMA journal_mode={mode}")
            cursor.execute("PRAGMA synchronous=FULL")
            cursor.execute("PRAGMA foreign_keys=ON")
            return connection

        engine = sa.create_engine(
            "sqlite://",
            creator=connect,
            poolclass=QueuePool,
            pool_size=2,
            max_overflow=62,
            pool_use_lifo=True,
            hide_parameters=True,
        )
        _reuse_while_unchanged(engine, path)

        @event.listens_for(engine, "begin")
        def _begin(connection: sa.Connection) -> None:
            raw: sqlite3.Connection = connection.connection.dbapi_connection  # type: ignore[assignment]
            if connection.get_execution_options().get("strandline_write", False):
                _begin_writing(raw, busy_seconds)
            else:
                raw.execute("BEGIN")

        return engine

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        with self._translated(), self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def read_consistent(self) -> Iterator[sa.Connection]:
        """Like `read`, but all queries see the ledger as it was at the first of them. On SQLite they always do."""
        with self._translated(), self.engine.connect() as bare:
            connection = bare if self.is_sqlite else bare.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    def query(self, ask: Callable[Concatenate[sa.Connection, _P], _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """The result of one query in a transaction of its own."""
        with self.read() as connection:
            return ask(connection, *args, **kwargs)

    def change(self, make: Callable[Concatenate[sa.Connection, _P], _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """The result of one change in a transaction of its own."""
        with self.write() as connection:
            return make(connection, *args, **kwargs)

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction: it commits at the end of the block, or rolls back on an exception."""
        with self._translated(), self.engine.connect() as bare:
            connection = bare.execution_options(strandline_write=True)
            with connection.begin():
                yield connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (IntegrityError, sqlite3.IntegrityError) as e:
            raise_if_closed(e)
            raise  # the database refused an illegal transition, which the caller handles
        except DBAPIError as e:
            raise self._explain(e.orig or e, answered=is_answer(e)) from e
        except sqlite3.Error as e:
            raise self._explain(e, answered=not isinstance(e, sqlite3.OperationalError)) from e

    def _explain(self, error: BaseException, *, answered: bool) -> StrandlineError:
        if self.path is not None:
            return explain_sqlite(error, self.path, answered=answered)
        return explain_postgres(error, self.engine, answered=answered)

    def exists(self) -> bool:
        """Whether there is a ledger, readable or not."""
        if self.path is not None:
            return self.path.exists() and self.path.stat().st_size > 0  # an empty file holds nothing to lose
        with self._translated(), self.engine.connect() as connection:
            return sa.inspect(connection).has_table(core.sequence.name)

    def revision(self) -> str:
        with self.read() as connection:
            revision = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
        if not isinstance(revision, str):
            raise LedgerUnreadable("the ledger has no version", hint=REBUILD_HINT)
        return revision

    def create(self, lake: str) -> None:
        """Creates an empty ledger for a lake; `LedgerUnreadable` if there is one."""
        if self.exists():
            raise LedgerUnreadable(f"there is a ledger already at {self.place}")
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.touch()
        try:
            self._upgrade(lake)
        except IntegrityError as e:
            raise LedgerUnreadable(f"another process has just made a ledger at {self.place}") from e

    def open(self) -> Migrated | None:
        """Checks the version. Migrates an older ledger, and keeps a copy of it on SQLite.

        Raises `LedgerTooNew` for a version that this program does not know, `LedgerMissing` if there is no ledger."""
        if not self.exists():
            raise LedgerMissing(f"there is no ledger at {self.place}", hint=REBUILD_HINT)
        revision = self.revision()
        if revision == REVISIONS[-1]:
            return None
        if revision not in REVISIONS:
            raise LedgerTooNew(
                f"the ledger has version {revision}, this program knows up to {REVISIONS[-1]}",
                hint="Use the newer version of Strandline that made it.",
            )
        copy = None if self.path is None else self._copy_before_migration(self.path, revision)
        self._upgrade()
        return Migrated(revision, REVISIONS[-1], copy)

    def _copy_before_migration(self, path: Path, found: str) -> Path | None:
        """Copies the ledger while its version is `found`; None if another process has migrated it since."""
        copy = path.with_name(f"{path.name}.v{found}.bak")
        with self._translated():
            copied = copy_ledger(path, copy, busy_seconds=self._busy_seconds, replace=True, revision=found)
        return copy if copied else None

    def backup(self, target: Path) -> None:
        """Writes a consistent copy of a SQLite ledger, which others may write to meanwhile. The copy is opened and
        compared before it gets its name. An existing file is never replaced."""
        if self.path is None:
            raise StorageError("a PostgreSQL ledger is backed up with PostgreSQL's own tools", hint="Use pg_dump.")
        if not self.path.exists():
            raise LedgerMissing(f"there is no ledger at {self.path}", hint=REBUILD_HINT)
        with self._translated():
            copy_ledger(self.path, target, busy_seconds=self._busy_seconds, replace=False)

    @property
    def _busy_seconds(self) -> int:
        return self.config.settings.ledger.busy_timeout_seconds

    def _upgrade(self, new_lake: str | None = None) -> None:
        """Migrates to the newest version in one transaction; a new ledger gets its counter in it, too."""
        with self.write() as connection:
            self.upgrade_within(connection)
            if new_lake is not None:
                new = {"id": 1, "lake": new_lake, "last": 0, "epoch": 1, "created_at": utc_now()}
                connection.execute(core.sequence.insert().values(new))

    def upgrade_within(self, connection: sa.Connection) -> None:
        from alembic import command
        from alembic.config import Config

        settings = Config()
        settings.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        if not self.is_sqlite:
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")  # a migration may take its time
            # One migration at a time. A process that waited here finds the newest version and does nothing.
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
        settings.attributes["connection"] = connection
        command.upgrade(settings, "head")

    def close(self) -> None:
        self.engine.dispose()


def _reuse_while_unchanged(engine: sa.Engine, file: Path) -> None:
    """Reuses a connection only while the file is exactly as the connection left it, and opens the file again otherwise.

    So a process notices that the ledger was restored meanwhile: it never reads cached pages of the old file, and never
    writes to a deleted file."""

    def file_state() -> tuple[int, ...] | None:
        try:
            status = file.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size

    @event.listens_for(engine, "connect")
    def _connected(_connection: Any, record: Any) -> None:
        record.info["fresh"] = True

    @event.listens_for(engine, "checkout")
    def _checked_out(_connection: Any, record: Any, _proxy: Any) -> None:
        if not record.info.pop("fresh", False) and record.info.get("left") != file_state():
            raise sa.exc.DisconnectionError("the file is not as this connection left it")

    @event.listens_for(engine, "checkin")
    def _checked_in(_connection: Any, record: Any) -> None:
        # In WAL mode the file itself does not show what was written.
        record.info["left"] = file_state() if sqlite3.sqlite_version_info < _WAL_IS_SAFE_FROM else None


def _begin_writing(connection: sqlite3.Connection, busy_seconds: float) -> None:
    """Begins a write transaction, retrying every millisecond. SQLite's own wait sleeps for up to 100 ms at a time,
    which slows two busy writers down from 500 to 50 reservations per second."""
    connection.execute("PRAGMA busy_timeout = 0")
    for attempt in replace(LOCK_HELD, seconds_max=busy_seconds).attempts():
        try:
            connection.execute("BEGIN IMMEDIATE")
            break
        except sqlite3.OperationalError as e:
            if not is_locked(e) or attempt.is_last:
                raise
    connection.execute(f"PRAGMA busy_timeout = {int(busy_seconds * 1000)}")  # the commit may wait for readers


def insert_into(connection: sa.Connection, table: sa.Table) -> Any:
    """An INSERT that supports ON CONFLICT. SQLAlchemy has one class per database; both have the same syntax."""
    return import_module(f"sqlalchemy.dialects.{connection.dialect.name}").insert(table)


def upsert(connection: sa.Connection, table: sa.Table, key: Mapping[str, object], **values: object) -> None:
    """Inserts the row, or updates these values of the row that has the key."""
    new = insert_into(connection, table).values(**key, **values)
    connection.execute(new.on_conflict_do_update(index_elements=list(key), set_=values))


def lock_row(connection: sa.Connection, table: sa.Table, id: Any) -> None:
    """Locks the row until the transaction ends: others cannot change it. Rows that refer to it can still be added."""
    connection.execute(sa.select(table.c.id).where(table.c.id == id).with_for_update(key_share=True)).all()


def from_row(kind: Callable[..., _T], row: Any, /, **given: Any) -> _T:
    """A dataclass whose fields have the values of the columns with the same names, except for those that are given."""
    columns = row._mapping
    return kind(**{name: columns[name] for name in field_names(kind) if name not in given}, **given)
