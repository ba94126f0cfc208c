"""New ledgers in a tenth of the time: what the migrations made once in this process, and copies of it, as a SQLite file
or as a database of PostgreSQL.

That the migrations make what a lake needs is what `tests/ledger/test_versions.py` is about, where they run each time.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import sqlalchemy as sa

from strandline.ledger import copy_ledger_rows, engine
from strandline.ledger.engine import Ledger, utc_now
from strandline.ledger.schema import core

_copying = threading.Lock()
_TABLES: dict[tuple[str, str], list[sa.Table]] = {}
_reflect = copy_ledger_rows._reflected
_IS_EMPTY = """
    SELECT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
       AND NOT EXISTS (SELECT FROM pg_class WHERE oid >= 16384)
       AND NOT EXISTS (SELECT FROM pg_namespace WHERE oid >= 16384)
       AND NOT EXISTS (SELECT FROM pg_db_role_setting)
       AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid())
"""
"""And nobody else is about to use it."""


@contextmanager
def quick_ledgers() -> Iterator[None]:
    real = Ledger._upgrade

    def upgrade(self: Ledger, new_lake: str | None = None) -> None:
        if new_lake is None:
            real(self)
            return
        with _copying:
            if not self.exists():
                (_make_database if self.path is None else _make_file)(self, lambda: real(self))
        with self.write() as connection:
            new = {"id": 1, "lake": new_lake, "last": 0, "epoch": 1, "created_at": utc_now()}
            connection.execute(core.sequence.insert().values(new))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Ledger, "_upgrade", upgrade)
        patched.setattr(copy_ledger_rows, "_reflected", _reflected_once)
        yield


def _reflected_once(connection: sa.Connection) -> list[sa.Table]:
    """A migration of a lake reads the tables of its ledger from the database. A test process does so once for each kind
    of database and version: that takes as long as copying the rows."""
    version = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    key = connection.dialect.name, str(version)
    if key not in _TABLES:
        _TABLES[key] = _reflect(connection)
    return _TABLES[key]


def _make_file(ledger: Ledger, migrate: Callable[[], None]) -> None:
    assert ledger.path is not None
    template = Path(_folder().name) / f"{engine.REVISIONS[-1]}.db"
    if template.exists():
        _copy(template, ledger.path)
    else:
        migrate()
        _copy(ledger.path, template)


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory()


def _copy(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as there, closing(sqlite3.connect(target)) as here:
        there.backup(here)


def _make_database(ledger: Ledger, migrate: Callable[[], None]) -> None:
    """The empty database is made anew from one that the migrations ran in."""
    address, template = ledger.engine.url, f"migrated_{engine.REVISIONS[-1]}"
    with ledger.read() as connection:
        is_empty = connection.exec_driver_sql(_IS_EMPTY.replace("%", "%%")).scalar()
    if address.query or not is_empty:
        migrate()
        return
    ledger.engine.dispose()
    server = sa.create_engine(address.set(database="postgres"), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with server.connect() as connection:
        if connection.exec_driver_sql(f"SELECT FROM pg_database WHERE datname = '{template}'").first() is None:
            migrate()
            ledger.engine.dispose()
            connection.exec_driver_sql(f'CREATE DATABASE {template} TEMPLATE "{address.database}"')
        else:
            connection.exec_driver_sql(f'DROP DATABASE "{address.database}"')
            connection.exec_driver_sql(f'CREATE DATABASE "{address.database}" TEMPLATE {template}')
