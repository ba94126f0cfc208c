"""Translates the migrations, which are written for SQLite, to PostgreSQL: row ids and triggers differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import sqlalchemy as sa
from alembic import op

_REFUSAL = re.compile(
    r"CREATE TRIGGER (?P<name>\w+) BEFORE (?P<action>\w+) ON (?P<table>\w+)\s+WHEN (?P<condition>.*?)\s+"
    r"BEGIN SELECT RAISE\(ABORT, '(?P=name)'\); END;\s*",
    re.DOTALL,
)


def for_postgres(statement: str) -> list[str]:
    """The statement for PostgreSQL, with `%` doubled for its driver."""
    statement = statement.replace("%", "%%")
    if (refusal := _REFUSAL.fullmatch(statement)) is None:
        return [statement.replace("id INTEGER NOT NULL", "id BIGSERIAL NOT NULL", 1)]
    name, action, table, condition = refusal.group("name", "action", "table", "condition")
    returned = "OLD" if action == "DELETE" else "NEW"
    return [
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF {condition} THEN "
        f"RAISE EXCEPTION '{name}' USING ERRCODE = 'check_violation'; END IF; RETURN {returned}; END $$",
        f"CREATE TRIGGER {name} BEFORE {action} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()",
    ]


def execute_file(connection: sa.Connection, file: Path) -> None:
    """Executes the statements of a migration. An empty line separates them."""
    for statement in file.read_text("utf-8").split("\n\n"):
        for translated in [statement] if connection.dialect.name == "sqlite" else for_postgres(statement):
            connection.exec_driver_sql(translated)


def sql_beside(module: str, *, replaced_triggers: Sequence[str] = ()) -> Callable[[], None]:
    """A migration that executes the SQL file beside its module. The file creates the replaced triggers again, or leaves
    them out."""

    def upgrade() -> None:
        connection = op.get_bind()
        for name in replaced_triggers:
            is_sqlite = connection.dialect.name == "sqlite"
            connection.exec_driver_sql(f"DROP TRIGGER {name}" if is_sqlite else f"DROP FUNCTION {name}() CASCADE")
        execute_file(connection, Path(module).with_suffix(".sql"))

    return upgrade
