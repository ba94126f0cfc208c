"""What an error of the ledger's database means, by its code: the messages of a server are in its language."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError

from strandline.core.errors import (
    LedgerBusy,
    LedgerMissing,
    LedgerRefused,
    LedgerUnreadable,
    StorageError,
    StrandlineError,
)
from strandline.ledger.lock_holder import find_holder
from strandline.ledger.postgres import find_lock_holder, without_secrets

REBUILD_HINT = "Restore a backup of the ledger, or make a new one from the tables with `strandline ledger rebuild`."

_UNDEFINED_TABLE = "42P01"
_LOCK_NOT_AVAILABLE = "55P03"
_QUERY_CANCELED = "57014"
_PROGRAM_LIMIT = "54"


def explain_sqlite(error: BaseException, path: Path, *, answered: bool) -> StrandlineError:
    text, name = str(error).strip(), _sqlite_code(error)
    if not path.exists():
        return LedgerMissing(f"there is no ledger at {path}", hint=REBUILD_HINT)
    if is_locked(error):
        holder = find_holder(path, path.with_name(f"{path.name}-shm"))
        if holder is None:
            return LedgerBusy("the ledger is locked by another process", hint="Try again; see `strandline status`.")
        return LedgerBusy(f"the ledger {path} is locked by {holder}", hint=holder.hint)
    # A missing table has only SQLite's general code.
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")) or "no such table" in text:
        return LedgerUnreadable(f"{path} is damaged or is not a ledger: {text}", hint=REBUILD_HINT)
    if name.startswith(("SQLITE_FULL", "SQLITE_IOERR")):
        return StorageError(f"the ledger cannot be written: {text}", hint="Free some disk space and try again.")
    if not answered:
        return StorageError(f"the ledger cannot be used: {text}", hint=f"Check {path} and the disk.")
    first_line = text.partition("\n")[0]
    return LedgerRefused(f"the ledger's database refused: {first_line}", hint="Check the request.")


def explain_postgres(error: BaseException, engine: sa.Engine, *, answered: bool) -> StrandlineError:
    text = without_secrets(engine.url, str(error)).strip()
    first_line = text.partition("\n")[0]
    state = getattr(error, "sqlstate", None)
    if state == _LOCK_NOT_AVAILABLE:
        holder = find_lock_holder(engine)
        return LedgerBusy(
            f"the ledger is locked by {holder or 'another process'}",
            hint="Try again. If it lasts, check that process: until it ends, nothing else can be written.",
        )
    if state == _QUERY_CANCELED:
        return LedgerBusy(
            f"the ledger's database took too long: {first_line}",
            hint="See ledger.statement_seconds_max, and the server.",
        )
    if state == _UNDEFINED_TABLE:
        return LedgerMissing(f"the database holds no ledger: {first_line}", hint=REBUILD_HINT)
    if not answered:
        # A connection that fails has no SQLSTATE.
        if "does not exist" in text:
            return LedgerMissing(f"the ledger cannot be opened: {text}", hint=REBUILD_HINT)
        return StorageError(f"the ledger did not answer: {text}", hint="Check ledger.url and the server.")
    hint = "Check the request, and the user's rights."
    return LedgerRefused(f"the ledger's database refused: {first_line}", hint=hint)


def is_locked(error: BaseException) -> bool:
    return _sqlite_code(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _sqlite_code(error: BaseException) -> str:
    return getattr(error, "sqlite_errorname", None) or ""


def is_answer(error: DBAPIError) -> bool:
    """Whether the database understood the statement and refused it. psycopg reports an exceeded limit of the server,
    such as an index row that is too large, as an `OperationalError`, though it is such a refusal."""
    limit = str(getattr(error.orig, "sqlstate", None) or "").startswith(_PROGRAM_LIMIT)
    return limit or not isinstance(error, OperationalError)
