"""Closes a ledger while a migration moves its lake, and after that.

Triggers on all tables of a closed ledger refuse every change. So they also stop a process that opened the ledger
before it was closed. Readers see the state in the counter's row, which they read first.

    (open) ──close──▶ leaving ──leave──▶ left        the old ledger; `leave` is the commit point of a migration
              ▲          │
              └──reopen──┘
    arriving ──reopen──▶ (open)                      the new ledger
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from strandline.core.records.ledger_moves import LedgerMove, MoveState
from strandline.ledger.schema.core import sequence

_MESSAGE_START = "the ledger is closed: "
_FUNCTION = "the_ledger_is_closed"


def explain_refusals(engine: sa.Engine) -> None:
    """Turns the refusal of a closed ledger into `LedgerMoved`, also for callers that would take it for a conflict."""

    @event.listens_for(engine, "handle_error")
    def _on_error(context: sa.engine.ExceptionContext) -> None:
        raise_if_closed(context.original_exception)


def raise_if_closed(error: BaseException) -> None:
    """Raises LedgerMoved if the error is the refusal of a closed ledger."""
    _, is_closed, rest = str(error).partition(_MESSAGE_START)
    if is_closed:
        (state, move_id, place), _ = json.JSONDecoder().raw_decode(rest)  # PostgreSQL's driver appends a context
        raise LedgerMove(MoveState(state), move_id, place).refusal() from error


def move_of(row: Any) -> LedgerMove | None:
    """The migration that the counter's row names."""
    return None if row.move_state is None else LedgerMove(MoveState(row.move_state), row.move_id, row.move_place)


def read_move(connection: sa.Connection) -> LedgerMove | None:
    row = connection.execute(sa.select(sequence)).one_or_none()
    return None if row is None else move_of(row)


def read_lake(connection: sa.Connection) -> str | None:
    """The lake of a ledger, in whatever state the ledger is; None if it has no counter."""
    return connection.scalar(sa.select(sequence.c.lake))


def lock_counter(connection: sa.Connection) -> None:
    """Waits for others that change the state of the ledger, and keeps them out."""
    connection.execute(sa.select(sequence.c.id).with_for_update()).all()


def lock_all(connection: sa.Connection) -> None:
    """Waits for the transactions of others, and keeps new ones out. SQLite's write transaction does this by itself."""
    if connection.dialect.name != "sqlite":
        names = ", ".join(sorted(_tables(connection)))
        connection.exec_driver_sql(f"LOCK TABLE {names} IN SHARE ROW EXCLUSIVE MODE")


def close(connection: sa.Connection, move: LedgerMove) -> None:
    """Closes the ledger for changes with this transaction, or stores another state if it is closed."""
    remove_triggers(connection)
    connection.execute(sequence.update().values(move_state=move.state.value, move_id=move.id, move_place=move.place))
    text = _MESSAGE_START + json.dumps([move.state.value, move.id, move.place])
    for statement in _triggers(connection, text.replace("'", "''")):
        connection.exec_driver_sql(statement)


def reopen(connection: sa.Connection) -> None:
    """Opens the ledger for changes again. The database refuses this for a ledger that was left."""
    remove_triggers(connection)
    connection.execute(sequence.update().values(move_state=None, move_id=None, move_place=None))


def remove_triggers(connection: sa.Connection) -> None:
    if connection.dialect.name != "sqlite":
        connection.exec_driver_sql(f"DROP FUNCTION IF EXISTS {_FUNCTION}() CASCADE")
        return
    triggers = connection.exec_driver_sql(
        "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name LIKE 'closed|_%' ESCAPE '|'"
    )
    for (name,) in triggers.all():
        connection.exec_driver_sql(f"DROP TRIGGER {name}")


def _triggers(connection: sa.Connection, text: str) -> Iterator[str]:
    tables = sorted(_tables(connection))
    if connection.dialect.name != "sqlite":
        text = text.replace("%", "%%")  # PostgreSQL's driver takes % for a parameter
        yield (
            f"CREATE FUNCTION {_FUNCTION}() RETURNS trigger LANGUAGE plpgsql AS $closed$ BEGIN RAISE EXCEPTION "
            f"USING MESSAGE = '{text}', ERRCODE = 'object_not_in_prerequisite_state'; END $closed$"
        )
        for table in tables:
            # A statement's trigger fires before those of its rows, which may refuse with another message.
            yield (
                f"CREATE TRIGGER closed_{table} BEFORE INSERT OR UPDATE OR DELETE ON {table} "
                f"FOR EACH STATEMENT EXECUTE FUNCTION {_FUNCTION}()"
            )
        return
    for table in tables:
        for change in ("INSERT", "UPDATE", "DELETE"):
            yield (
                f"CREATE TRIGGER closed_{change.lower()}_{table} BEFORE {change} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{text}'); END"
            )


def _tables(connection: sa.Connection) -> set[str]:
    """The tables of the ledger. A PostgreSQL database may have others."""
    from strandline.ledger.all_tables import metadata

    return set(metadata.tables)
