"""Copies a SQLite ledger: a consistent copy, which is opened and compared before it gets its name."""

from __future__ import annotations

import os
import shutil
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from strandline.core.errors import LedgerUnreadable, StorageError
from strandline.storage.durable import finish_file


def sqlite_uri(path: Path, mode: str) -> str:
    """The URI of exactly this file: `#`, `?` and `%` in its name are escaped."""
    return f"file://{quote(os.fsencode(path.absolute()))}?mode={mode}"


def copy_ledger(path: Path, target: Path, *, busy_seconds: float, replace: bool, revision: str | None = None) -> bool:
    """Copies the ledger to `target`. Returns False and writes nothing if the ledger's version is not `revision`.

    Raises `sqlite3.Error` if the ledger is locked or unreadable, and `LedgerUnreadable` if the copy differs from the
    ledger. In both cases `target` does not change."""
    with _unnamed_copy(target) as part:
        with closing(sqlite3.connect(sqlite_uri(path, "ro"), uri=True, timeout=busy_seconds)) as source:
            source.isolation_level = None
            # The shared lock is held until the copy has been compared, so that nobody changes the ledger in between.
            source.execute("BEGIN")
            expected = _content(source)
            with closing(sqlite3.connect(sqlite_uri(part, "rw"), uri=True)) as copy:
                source.backup(copy)
        with closing(sqlite3.connect(sqlite_uri(part, "ro"), uri=True)) as copy:
            copied = _checked_revision(copy, expected, path)
            if revision is not None and copied != revision:
                return False
        shutil.copymode(path, part)
        try:
            finish_file(part, target.absolute(), replace=replace)
        except FileExistsError as e:
            raise StorageError(f"{target} exists already") from e
    return True


@contextmanager
def _unnamed_copy(target: Path) -> Iterator[Path]:
    """An empty file beside `target` that only its owner can read; removed at the end unless it was renamed."""
    part = target.absolute().with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as e:
        raise StorageError(f"the copy cannot be written: {e}") from e
    try:
        yield part
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):
            part.with_name(part.name + suffix).unlink(missing_ok=True)


_Content = tuple[list[tuple[object, ...]], dict[str, int], list[tuple[object, ...]]]


def _content(connection: sqlite3.Connection) -> _Content:
    """The schema, the number of rows of each table, and the counter."""
    schema = connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()
    tables = [str(name) for kind, name, _ in schema if kind == "table"]
    counts = {name: int(connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]) for name in tables}
    counter = connection.execute("SELECT * FROM sequence").fetchall() if "sequence" in tables else []
    return schema, counts, counter


def _checked_revision(copy: sqlite3.Connection, expected: _Content, path: Path) -> str:
    """Returns the version that the copy states; `LedgerUnreadable` if the copy is damaged or differs from the
    ledger."""
    hint = "The copy was deleted. Check the disk, and the ledger itself with `strandline doctor`."
    result = copy.execute("PRAGMA integrity_check(1)").fetchone()
    if result != ("ok",):
        problem = result[0] if result else "the check returned nothing"
        raise LedgerUnreadable(f"the copy of {path} is damaged: {problem}", hint=hint)
    if _content(copy) != expected:
        raise LedgerUnreadable(f"the copy of {path} differs from the ledger", hint=hint)
    revision = copy.execute("SELECT version_num FROM alembic_version").fetchone() if expected[2] else None
    if revision is None:
        raise LedgerUnreadable(f"{path} is not a ledger: it has no counter, or no version", hint=hint)
    return str(revision[0])
