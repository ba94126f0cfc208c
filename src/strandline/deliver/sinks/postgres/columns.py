"""Maps a dataset's columns to those of a PostgreSQL table, and checks whether an existing table takes them.

Pure, except for reading a table's columns. A type fits if it takes the text that is sent without losing anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.core.errors import SchemaError
from strandline.core.types import SEQ_COLUMN
from strandline.iceberg.schema.columns import Column, ColumnType, ListOf, MapOf, Primitive, Struct, type_text

if TYPE_CHECKING:
    import psycopg


@dataclass(frozen=True, slots=True)
class TypeRule:
    iceberg: str
    created: str  # what CREATE TABLE and ADD COLUMN say
    also: tuple[str, ...] = ()  # what an existing table may have instead, beside text and varchar without a length
    note: str = ""


_NUMERIC = "numeric"
_JSONB = "numbers in jsonb are decimal, so -0.0 becomes 0.0; json keeps the text"

TYPE_RULES = (
    TypeRule("boolean", "boolean"),
    TypeRule("int", "integer", ("bigint", "double precision", _NUMERIC), "numeric needs 10 digits before the point"),
    TypeRule("long", "bigint", (_NUMERIC,), "numeric needs 19 digits before the point"),
    TypeRule("float", "real", ("double precision",)),
    TypeRule("double", "double precision"),
    TypeRule("decimal", "numeric(p,s)", (_NUMERIC,), "with at least as many digits before and after the point"),
    TypeRule("date", "date"),
    TypeRule("time", "time without time zone"),
    TypeRule("timestamp", "timestamp without time zone"),
    TypeRule("timestamptz", "timestamp with time zone"),
    TypeRule("timestamp_ns", "timestamp without time zone", (), "PostgreSQL rounds to microseconds; text keeps all"),
    TypeRule("timestamptz_ns", "timestamp with time zone", (), "PostgreSQL rounds to microseconds; text keeps all"),
    TypeRule("string", "text", (), "a text with a NUL character is refused: PostgreSQL has no such text"),
    TypeRule("uuid", "uuid"),
    TypeRule("fixed", "bytea"),
    TypeRule("binary", "bytea"),
    TypeRule("struct", "jsonb", ("json",), _JSONB),
    TypeRule("list", "jsonb", ("json",), _JSONB),
    TypeRule("map", "jsonb", ("json",), _JSONB),
    TypeRule("variant", "jsonb", ("json",)),
    TypeRule("unknown", "text", (), "it can only contain null"),
    TypeRule("geometry", "bytea", (), "as WKB"),
    TypeRule("geography", "bytea", (), "as WKB"),
)
ANY_TYPE = ("text", "character varying")  # text takes any value as it is sent

NAME_BYTES_MAX = 63  # PostgreSQL truncates longer names, and two could become one

_RULES = {rule.iceberg: rule for rule in TYPE_RULES}
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
_NUMERIC_TYPE = re.compile(r"numeric\((\d+),(-?\d+)\)")
_DIGITS = {"int": (10, 0), "long": (19, 0)}


@dataclass(frozen=True, slots=True)
class TableName:
    schema: str
    name: str

    def __str__(self) -> str:
        return f"{quote(self.schema)}.{quote(self.name)}"

    @property
    def plain(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class TableColumn:
    type: str  # as PostgreSQL spells it: `character varying(20)`
    generated: bool
    must_be_given: bool  # NOT NULL without a default


@dataclass(frozen=True, slots=True)
class Shape:
    kind: str  # pg_class.relkind: `r` a table, `p` a partitioned one
    persistent: bool
    columns: Mapping[str, TableColumn]


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def rule_of(kind: ColumnType) -> TypeRule:
    match kind:
        case Primitive(name):
            base = re.split(r"[(\[]", name, maxsplit=1)[0].strip()
        case ListOf():
            base = "list"
        case MapOf():
            base = "map"
        case Struct():
            base = "struct"
    if base not in _RULES:
        raise SchemaError(f"there is no type in PostgreSQL for {type_text(kind)}")
    return _RULES[base]


def pg_type(column: Column) -> str:
    rule = rule_of(column.type)
    if rule.iceberg == "decimal":
        precision, scale = _decimal_digits(column.type)
        return f"numeric({precision},{scale})"
    return rule.created


def in_order(columns: Sequence[Column]) -> tuple[Column, ...]:
    """In the order of a line's fields: the sequence number first."""
    number = [c for c in columns if c.name == SEQ_COLUMN]
    if len(number) != 1:
        raise SchemaError(f"the column {SEQ_COLUMN} is not among those that are delivered")
    return (*number, *(c for c in columns if c.name != SEQ_COLUMN))


def check_names(columns: Sequence[Column]) -> None:
    for column in columns:
        if len(column.name.encode()) > NAME_BYTES_MAX or "\0" in column.name:
            raise SchemaError(
                f"column {column.name}: PostgreSQL takes names of at most {NAME_BYTES_MAX} bytes",
                hint="Rename the column, or leave it out: --option columns=a,b,c",
            )


def takes(table_type: str, column: Column) -> bool:
    """Whether a column of this type takes all our values without losing anything."""
    rule = rule_of(column.type)
    if rule.iceberg == "unknown":
        return True
    if table_type in (*ANY_TYPE, pg_type(column)):
        return True
    if _NUMERIC in rule.also and table_type.startswith(_NUMERIC):
        return _numeric_takes(table_type, column.type, rule)
    return table_type in rule.also


def _numeric_takes(table_type: str, kind: ColumnType, rule: TypeRule) -> bool:
    if table_type == _NUMERIC:
        return True
    there = _NUMERIC_TYPE.fullmatch(table_type)
    if there is None:
        return False
    precision, scale = _DIGITS.get(rule.iceberg) or _decimal_digits(kind)
    return int(there[2]) >= scale and int(there[1]) - int(there[2]) >= precision - scale


def _decimal_digits(kind: ColumnType) -> tuple[int, int]:
    found = _DECIMAL.fullmatch(kind.name) if isinstance(kind, Primitive) else None
    if found is None:
        raise SchemaError(f"not a decimal type: {type_text(kind)}")
    return int(found[1]), int(found[2])


# --- statements ---


def create_table(table: TableName, columns: Sequence[Column]) -> str:
    # Everything may be null: a person may add rows of their own, and a column that is required today may become
    # optional. For the same reason the sequence number is no key.
    return f"CREATE TABLE {table} ({', '.join(f'{quote(c.name)} {pg_type(c)}' for c in columns)})"


def create_index(table: TableName) -> str:
    return f"CREATE INDEX ON {table} ({quote(SEQ_COLUMN)})"


def add_columns(table: TableName, columns: Sequence[Column]) -> str:
    added = ", ".join(f"ADD COLUMN IF NOT EXISTS {quote(c.name)} {pg_type(c)}" for c in columns)
    return f"ALTER TABLE {table} {added}"


def copy_in(table: TableName, columns: Sequence[Column]) -> str:
    names = ", ".join(quote(c.name) for c in columns)
    return f"COPY {table} ({names}) FROM STDIN WITH (FORMAT text, ENCODING 'UTF8')"


# --- does it fit ---


@dataclass(frozen=True, slots=True)
class PostgresColumnMisfit:
    what: str
    remedy: str


def missing_columns(columns: Sequence[Column], shape: Shape) -> list[Column]:
    return [c for c in columns if c.name not in shape.columns]


def misfits(table: TableName, columns: Sequence[Column], shape: Shape) -> list[PostgresColumnMisfit]:
    """Why the table does not take these columns; empty if it does."""
    if shape.kind not in ("r", "p"):
        return [
            PostgresColumnMisfit(f"{table.plain} is not a table", "Name a table: rows and their range go in together.")
        ]
    if not shape.persistent:
        remedy = f"ALTER TABLE {table} SET LOGGED"
        return [
            PostgresColumnMisfit(
                f"{table.plain} is unlogged or temporary: a crash of the server would empty it", remedy
            )
        ]
    found = [
        PostgresColumnMisfit(f"column {c.name} ({type_text(c.type)}) is not there", add_columns(table, [c]))
        for c in missing_columns(columns, shape)
    ]
    for column in columns:
        there = shape.columns.get(column.name)
        if there is None:
            continue
        alter = f"ALTER TABLE {table} ALTER COLUMN {quote(column.name)}"
        if there.generated:
            found.append(
                PostgresColumnMisfit(
                    f"column {column.name} is generated: it cannot be written", f"{alter} DROP EXPRESSION"
                )
            )
        elif not takes(there.type, column):
            what = f"column {column.name} is {there.type}, which does not take every {type_text(column.type)}"
            found.append(PostgresColumnMisfit(what, f"{alter} TYPE {pg_type(column)}"))
    delivered = {c.name for c in columns}
    for name, there in shape.columns.items():
        if there.must_be_given and name not in delivered:
            remedy = f"ALTER TABLE {table} ALTER COLUMN {quote(name)} DROP NOT NULL"
            found.append(
                PostgresColumnMisfit(f"column {name} must not be null, has no default, and is not delivered", remedy)
            )
    return found


_SHAPE = """
SELECT c.relkind::text, c.relpersistence = 'p', a.attname, format_type(a.atttypid, a.atttypmod),
       a.attgenerated <> '', a.attnotnull AND NOT a.atthasdef AND a.attidentity = ''
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE n.nspname = %s AND c.relname = %s
ORDER BY a.attnum
"""


def read_shape(connection: psycopg.Connection, table: TableName) -> Shape | None:
    rows = connection.execute(_SHAPE, (table.schema, table.name)).fetchall()
    if not rows:
        return None
    columns = {name: TableColumn(kind, generated, must) for _, _, name, kind, generated, must in rows if name}
    return Shape(rows[0][0], rows[0][1], columns)
