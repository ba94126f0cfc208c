"""Copies every row of a ledger to another database: SQLite to PostgreSQL, the other way, or to the same kind.

The copy is one transaction of the target: schema, rows, the next ids, and the state `arriving`, which refuses changes.
The rows are compared before the commit. The source must be closed, so that nobody changes it meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import sqlalchemy as sa

from strandline.core import failpoints
from strandline.core.errors import LedgerUnreadable, RefusedError, StorageError
from strandline.core.records.ledger_moves import LedgerMove, MoveState
from strandline.ledger import closed_ledger
from strandline.ledger.all_tables import metadata
from strandline.ledger.engine import Ledger
from strandline.ledger.move_steps import check_leaving

_ROWS_AT_ONCE = 1000
_MOVE_COLUMNS = frozenset({"move_state", "move_id", "move_place"})

Respell = Callable[[str], str]
Respelled = Mapping[tuple[str, str], Respell]  # by table and column: rewrites paths that move with the lake
OnCopiedRows = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class TableDigest:
    rows: int
    digest: str  # of the rows, in any order


LedgerDigest = Mapping[str, TableDigest]


class _Digest:
    """The sum of the rows' hashes: it does not depend on their order, and databases sort text differently."""

    def __init__(self) -> None:
        self._rows, self._sum = 0, 0

    def add(self, row: Mapping[str, Any]) -> None:
        text = json.dumps([[name, row[name]] for name in sorted(row)], default=str)
        self._sum += int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).digest())
        self._rows += 1

    def result(self) -> TableDigest:
        return TableDigest(self._rows, f"{self._sum % (1 << 256):064x}")


def copy_rows(
    source: Ledger,
    target: Ledger,
    move: LedgerMove,
    *,
    respelled: Respelled | None = None,
    on_rows: OnCopiedRows | None = None,
) -> LedgerDigest:
    """Copies all rows, and returns the digest of the copy. The target is then `arriving` with this move. The copy of an
    earlier attempt is replaced. Raises RefusedError if the target is a ledger in use, and LedgerUnreadable if source
    and copy differ."""
    if target.path is not None:
        check_place(target)
        target.path.touch()
    with source.read_consistent() as old, target.write() as new:
        check_leaving(old, move)
        _begin(target, new, LedgerMove(MoveState.ARRIVING, move.id, source.place), closed_ledger.read_lake(old))
        _check_schema(old, new, target)
        tables = _reflected(new)
        copied: dict[str, TableDigest] = {}
        with _without_triggers(new, tables):
            for table in reversed(tables):
                new.execute(table.delete())
            for table in tables:
                copied[table.name] = _copy_table(old, new, table, respelled or {})
                if on_rows is not None:
                    on_rows(table.name, copied[table.name].rows)
        if not target.is_sqlite:
            _set_next_ids(new, tables)
        _check(copied, _digest_of(new, tables), target)
        closed_ledger.close(new, LedgerMove(MoveState.ARRIVING, move.id, source.place))
        failpoints.hit("move.before_copy_commit")
    return copied


def check_place(target: Ledger) -> None:
    """Raises StorageError if a SQLite ledger cannot be created at the target's path."""
    if target.path is None:
        return
    folder = target.path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise StorageError(f"no ledger can be created at {target.path}: {e.strerror}", hint="Check ledger.url.") from e
    if not os.access(folder, os.W_OK) or target.path.is_dir():
        raise StorageError(f"no ledger can be created at {target.path}", hint="Check ledger.url and its folder.")


def check_texts(source: Ledger) -> None:
    """Raises RefusedError if the ledger has text that SQLite can store and PostgreSQL cannot."""
    with source.read_consistent() as connection:
        for table in _reflected(connection):
            for row in _rows(connection, table, list(table.columns)):
                if wrong := [name for name, value in row.items() if isinstance(value, str) and "\0" in value]:
                    raise RefusedError(
                        f"a row of the ledger's table {table.name} has a NUL character in {wrong[0]}, which PostgreSQL "
                        "cannot store",
                        hint="Name another SQLite file as the new ledger.",
                    )


def digest_ledger(ledger: Ledger) -> LedgerDigest:
    """The digests of all tables, without the state of a migration."""
    with ledger.read_consistent() as connection:
        return _digest_of(connection, _reflected(connection))


def _begin(target: Ledger, connection: sa.Connection, ours: LedgerMove, lake: str | None) -> None:
    """Creates the schema of `target`, or migrates that of an earlier attempt to this version. Raises RefusedError for a
    ledger in use, and for the copy of another ledger: it may be the only one that another lake has."""
    if not sa.inspect(connection).has_table("sequence"):
        target.upgrade_within(connection)
        return
    closed_ledger.lock_all(connection)  # nobody can open this ledger for changes from here on
    move = closed_ledger.read_move(connection)
    stored_lake = closed_ledger.read_lake(connection)
    if move is None or (move.state, move.place) != (ours.state, ours.place) or stored_lake not in (None, lake):
        raise RefusedError(
            f"there is a ledger already at {target.place}",
            hint="Name an empty database, or a file that does not exist.",
        )
    closed_ledger.remove_triggers(connection)
    target.upgrade_within(connection)  # an older version of this program may have made the copy


def _check_schema(old: sa.Connection, new: sa.Connection, target: Ledger) -> None:
    """Raises LedgerUnreadable unless both have the same tables and columns: some values would be lost or missing."""
    if _columns(old) != _columns(new):
        raise LedgerUnreadable(
            f"the ledger at {target.place} does not have the same columns as the ledger that moves",
            hint="Nothing was copied. Remove that copy, and run the migration again.",
        )


def _columns(connection: sa.Connection) -> dict[str, set[str]]:
    versions = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars()
    tables = sa.inspect(connection).get_multi_columns(filter_names=sorted(metadata.tables))
    return {name: {c["name"] for c in columns} for (_, name), columns in tables.items()} | {"": set(versions)}


def _reflected(connection: sa.Connection) -> list[sa.Table]:
    """The tables as the database has them, each after those that it refers to. Their types are those of the database:
    the ledger's own types would mask secrets in text a second time."""
    reflected = sa.MetaData()
    reflected.reflect(connection, only=sorted(metadata.tables))
    return list(reflected.sorted_tables)


def _copy_table(old: sa.Connection, new: sa.Connection, table: sa.Table, respelled: Respelled) -> TableDigest:
    columns = [column for column in table.columns if column.name not in _MOVE_COLUMNS]
    changed = {c.name: respelled[table.name, c.name] for c in columns if (table.name, c.name) in respelled}
    digest = _Digest()
    rows = _rows(old, table, columns)
    while page := list(islice(rows, _ROWS_AT_ONCE)):
        for row in page:
            for name, respell in changed.items():
                row[name] = row[name] if row[name] is None else respell(row[name])
            digest.add(row)
        new.execute(table.insert(), page)
    return digest.result()


def _rows(connection: sa.Connection, table: sa.Table, columns: list[sa.Column[Any]]) -> Iterator[dict[str, Any]]:
    keys = list(table.primary_key.columns)  # in the order of ids: a row may refer to an earlier one of its own table
    rows = connection.execute(sa.select(*columns).order_by(*keys), execution_options={"yield_per": _ROWS_AT_ONCE})
    for row in rows.mappings():
        yield dict(row)


def _digest_of(connection: sa.Connection, tables: list[sa.Table]) -> LedgerDigest:
    digests: dict[str, TableDigest] = {}
    for table in tables:
        digest = _Digest()
        for row in _rows(connection, table, [c for c in table.columns if c.name not in _MOVE_COLUMNS]):
            digest.add(row)
        digests[table.name] = digest.result()
    return digests


@contextmanager
def _without_triggers(connection: sa.Connection, tables: list[sa.Table]) -> Iterator[None]:
    """Switches the tables' triggers off in the block: they would refuse to insert a row in a state that only an update
    can reach. If the block fails, the rollback of the transaction brings them back."""
    if connection.dialect.name != "sqlite":
        for table in tables:
            connection.exec_driver_sql(f"ALTER TABLE {table.name} DISABLE TRIGGER USER")
        yield
        for table in tables:
            connection.exec_driver_sql(f"ALTER TABLE {table.name} ENABLE TRIGGER USER")
        return
    triggers = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").all()
    for name, _ in triggers:
        connection.exec_driver_sql(f"DROP TRIGGER {name}")
    yield
    for _, sql in triggers:
        connection.exec_driver_sql(sql)


def _set_next_ids(connection: sa.Connection, tables: list[sa.Table]) -> None:
    for table in tables:
        if "id" not in table.columns:
            continue
        counter = connection.scalar(sa.select(sa.func.pg_get_serial_sequence(table.name, "id")))
        if counter is not None:
            highest = connection.scalar(sa.select(sa.func.max(table.c.id)))
            connection.execute(sa.select(sa.func.setval(counter, highest or 1, highest is not None)))


def _check(expected: LedgerDigest, found: LedgerDigest, target: Ledger) -> None:
    if differ := sorted(name for name in expected if found.get(name) != expected[name]):
        raise LedgerUnreadable(
            f"the copy at {target.place} differs from the ledger in {', '.join(differ)}",
            hint="Nothing was copied. Check the database, and run the migration again.",
        )
