"""The columns that the Spark source reads and returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from strandline.core.errors import SchemaError, TableUnfit
from strandline.core.types import INTERNAL_COLUMNS, SEQ_COLUMN
from strandline.iceberg.schema.columns import IcebergField, from_iceberg, type_from_iceberg
from strandline.iceberg.spark.spark_types import spark_schema, spark_type
from strandline.read.source.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa


def frame_schema(fields: Sequence[IcebergField]) -> T.StructType:
    return spark_schema(from_iceberg(fields))


def arrow_schema(fields: Sequence[IcebergField]) -> pa.Schema:
    """The Arrow schema in which Spark's JVM takes rows from a Python worker."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(frame_schema(fields))


def choose(fields: Sequence[IcebergField], options: SourceOptions) -> list[IcebergField]:
    """The columns that the source returns: the user's, or those of the option; the sequence number first if
    requested."""
    names = [f["name"] for f in fields if f["name"] not in INTERNAL_COLUMNS]
    if (wanted := options.columns) is not None:
        if len(set(wanted)) != len(wanted):
            raise SchemaError("the option `columns` names a column twice")
        if unknown := [c for c in wanted if c not in (*names, SEQ_COLUMN)]:
            raise SchemaError(f"there is no column {unknown[0]!r}", hint=f"Columns: {', '.join(names)}.")
        names = list(wanted)
    if options.with_sequence and SEQ_COLUMN not in names:
        names = [SEQ_COLUMN, *names]
    by_name = {f["name"]: f for f in fields}
    return [by_name[n] for n in names]


def types_by_id(fields: Sequence[IcebergField]) -> dict[int, str]:
    """The types of all columns and nested fields by their ids: files are read by id, whatever the names are now."""
    found: dict[int, str] = {}
    for field in fields:
        _add_types(field["id"], field["type"], found)
    return found


def _add_types(id: int, kind: str | Mapping[str, Any], found: dict[int, str]) -> None:
    if isinstance(kind, str):
        found[id] = kind
        return
    found[id] = kind["type"]
    match kind["type"]:
        case "list":
            _add_types(kind["element-id"], kind["element"], found)
        case "map":
            _add_types(kind["key-id"], kind["key"], found)
            _add_types(kind["value-id"], kind["value"], found)
        case _:
            found |= types_by_id(kind["fields"])


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns to read from files, and the names of those to return."""

    read: tuple[IcebergField, ...]
    names: tuple[str, ...]


def to_read(fields: Sequence[IcebergField], schema: T.StructType, conditions: frozenset[str]) -> Columns:
    """The columns for a frame with this schema, which may come from the user. Raises SchemaError if the table lacks a
    column."""
    by_name = {f["name"]: f for f in fields}
    for field in schema.fields:
        if field.name not in by_name:
            raise SchemaError(f"there is no column {field.name!r}", hint=f"Columns: {', '.join(by_name)}.")
        kind = spark_type(type_from_iceberg(by_name[field.name]["type"]), field.name)
        if kind.simpleString() != field.dataType.simpleString():
            raise SchemaError(
                f"column {field.name} is {kind.simpleString()}, and the schema has {field.dataType.simpleString()}",
                hint="Leave the schema out, or use the table's types. Start a query again that began before the column "
                "was changed.",
            )
    names = schema.fieldNames()
    needed = {*names, *conditions, SEQ_COLUMN}
    read = tuple(f for f in fields if f["name"] in needed)
    if given := next((f for f in read if not isinstance(f["type"], str) and _has_default(f["type"])), None):
        raise TableUnfit(
            f"a field inside column {given['name']} has a default for old rows, which only Spark can read",
            hint="Leave the column out with the option `columns`, or read with Strandline's own session.",
        )
    return Columns(read, tuple(names))


def _has_default(part: object) -> bool:
    """Of a nested type, in Iceberg's JSON."""
    match part:
        case Mapping():
            return part.get("initial-default") is not None or any(_has_default(p) for p in part.values())
        case tuple() | list():
            return any(_has_default(p) for p in part)
    return False
