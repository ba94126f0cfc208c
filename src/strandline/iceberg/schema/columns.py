"""Columns and their types, as people write them. Pure: no PyIceberg, Spark or catalog.

A type is one of Iceberg's: by its own name (`long`, `decimal(10,2)`), in short form (`list<string>`,
`map<string,long>`, `struct<a:int,b:string>`), or as Iceberg's JSON. Other libraries get a schema through that JSON
(`iceberg_schema`), so that only this module writes types. `schema_file` parses them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.core.errors import SchemaError
from strandline.core.types import is_reserved


@dataclass(frozen=True, slots=True)
class Primitive:
    name: str  # without spaces: `long`, `decimal(10,2)`, `fixed[16]`


@dataclass(frozen=True, slots=True)
class ListOf:
    element: ColumnType
    element_required: bool = False


@dataclass(frozen=True, slots=True)
class MapOf:
    key: ColumnType
    value: ColumnType
    value_required: bool = False


@dataclass(frozen=True, slots=True)
class Struct:
    fields: tuple[Column, ...]


ColumnType = Primitive | ListOf | MapOf | Struct
IcebergField = Mapping[str, Any]  # a column in the JSON of a schema, with its id


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: ColumnType
    required: bool = False
    doc: str | None = None


_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_SIMPLE_NAME = re.compile(r"[A-Za-z0-9_\-]+")

_METADATA_COLUMNS = frozenset({
    "_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number",
    "_change_type", "_change_ordinal", "_commit_snapshot_id",
})  # fmt: skip

_NO_NANOSECONDS = "Spark cannot read or write nanosecond timestamps of Iceberg"
_NO_GEOSPATIAL = ("Spark's geospatial types are switched off", "Use binary, and store WKB in it.")
_NOT_WRITABLE = {  # why not, and what to use instead
    "time": ("Spark has no time fields for Iceberg", "Use string (`12:30:00`) or long (microseconds of the day)."),
    "timestamp_ns": (_NO_NANOSECONDS, "Use timestamp (microseconds), or long for the nanoseconds."),
    "timestamptz_ns": (_NO_NANOSECONDS, "Use timestamptz (microseconds), or long for the nanoseconds."),
    "variant": ("PyIceberg cannot open a table that has one", "Use string, and store the JSON text in it."),
    "unknown": (
        "a column of this type can only be null",
        "Leave the column out and add it when its type is known: `dataset alter`.",
    ),
    "geometry": _NO_GEOSPATIAL,
    "geography": _NO_GEOSPATIAL,
}


def check_names(fields: Sequence[Column], where: str) -> tuple[Column, ...]:
    seen: dict[str, str] = {}
    for field in fields:
        path = f"{where}.{field.name}" if where else field.name
        check_name(field.name, path)
        if (other := seen.get(field.name.lower())) is not None:
            raise SchemaError(
                f"column {path}: the name occurs twice ({other} and {field.name})",
                hint="Spark does not tell names apart by upper and lower case.",
            )
        seen[field.name.lower()] = field.name
    if where and not fields:
        raise SchemaError(f"column {where}: a struct without fields cannot be written")
    return tuple(fields)


def check_name(name: str, where: str) -> None:
    if not name.strip():
        raise SchemaError(f"column {where or 'without a name'}: the name is empty")
    if "." in name:
        raise SchemaError(
            f"column {where}: a name cannot contain a dot: a.b is the field b of the struct a",
            hint="Use an underscore instead, or make it a struct.",
        )


def check_columns(columns: Sequence[Column]) -> None:
    """Checks the columns of a user, whatever their source. Raises SchemaError."""
    if not columns:
        raise SchemaError("a dataset needs at least one column")
    check_names(columns, "")
    for column in columns:
        check_free(column.name)


def check_free(name: str) -> None:
    """Raises SchemaError for a name that a user's column cannot have, or that no query could use."""
    if is_reserved(name):
        raise SchemaError(f"column {name}: the name is Strandline's own", hint="Rename the column, or leave it out.")
    if name.lower() in _METADATA_COLUMNS:
        raise SchemaError(f"column {name}: the name is Iceberg's own, for a metadata column", hint="Rename the column.")


def walk(columns: Iterable[Column], prefix: str = "") -> Iterator[tuple[str, ColumnType]]:
    """All types in the columns with their paths, outermost first."""
    for column in columns:
        yield from _walk_type(f"{prefix}{column.name}", column.type)


def _walk_type(path: str, kind: ColumnType) -> Iterator[tuple[str, ColumnType]]:
    yield path, kind
    match kind:
        case ListOf(element):
            yield from _walk_type(f"{path}.element", element)
        case MapOf(key, value):
            yield from _walk_type(f"{path}.key", key)
            yield from _walk_type(f"{path}.value", value)
        case Struct(fields):
            yield from walk(fields, f"{path}.")


def check_writable(columns: Iterable[Column]) -> None:
    """Raises SchemaError for a type of Iceberg to which no rows can be written."""
    for path, kind in walk(columns):
        name = kind.name.partition("(")[0] if isinstance(kind, Primitive) else ""
        if name in _NOT_WRITABLE:
            reason, instead = _NOT_WRITABLE[name]
            raise SchemaError(f"column {path}: {name} cannot be used here: {reason}", hint=instead)


def can_widen(old: ColumnType, new: ColumnType) -> bool:
    """Whether Iceberg reads old files as the new type without a rewrite."""
    if not (isinstance(old, Primitive) and isinstance(new, Primitive)):
        return False
    if (old.name, new.name) in (("int", "long"), ("float", "double")):
        return True
    before, after = _DECIMAL.fullmatch(old.name), _DECIMAL.fullmatch(new.name)
    return bool(before and after and before[2] == after[2] and int(before[1]) < int(after[1]))


def type_text(kind: ColumnType) -> str:
    """The type for people to read. Inside a nested type, an exclamation mark means required."""
    match kind:
        case Primitive(name):
            return name
        case ListOf(element, required):
            return f"list<{type_text(element)}{'!' if required else ''}>"
        case MapOf(key, value, required):
            return f"map<{type_text(key)},{type_text(value)}{'!' if required else ''}>"
        case Struct(fields):
            inner = ",".join(f"{f.name}:{type_text(f.type)}{'!' if f.required else ''}" for f in fields)
            return f"struct<{inner}>"


def to_json(columns: Iterable[Column]) -> list[dict[str, Any]]:
    """The content of a schema file. Parsing it gives the same columns."""
    entries = []
    for column in columns:
        entry: dict[str, Any] = {"name": column.name, "type": _type_json(column.type), "required": column.required}
        if column.doc is not None:
            entry["doc"] = column.doc
        entries.append(entry)
    return entries


def _type_json(kind: ColumnType) -> str | dict[str, Any]:
    if _is_short(kind):
        return type_text(kind)
    match kind:
        case ListOf(element, required):
            return {"type": "list", "element": _type_json(element), "element-required": required}
        case MapOf(key, value, required):
            return {"type": "map", "key": _type_json(key), "value": _type_json(value), "value-required": required}
        case Struct(fields):
            return {"type": "struct", "fields": to_json(fields)}
        case Primitive(name):
            return name


def _is_short(kind: ColumnType) -> bool:
    """Whether the short form can express all of the type."""
    match kind:
        case Primitive():
            return True
        case ListOf(element, required):
            return not required and _is_short(element)
        case MapOf(key, value, required):
            return not required and _is_short(key) and _is_short(value)
        case Struct(fields):
            plain = (f for f in fields if not f.required and f.doc is None and _SIMPLE_NAME.fullmatch(f.name))
            return sum(_is_short(f.type) for f in plain) == len(fields)


def iceberg_schema(columns: Sequence[Column]) -> dict[str, Any]:
    """Iceberg's JSON of a schema with fresh ids, for PyIceberg and Iceberg's Java library."""
    ids = itertools.count(1)
    return {"type": "struct", "schema-id": 0, "fields": _iceberg_fields(columns, ids)}


def _iceberg_fields(columns: Sequence[Column], ids: Iterator[int]) -> list[dict[str, Any]]:
    fields = []
    for own_id, column in zip([next(ids) for _ in columns], columns, strict=True):
        field: dict[str, Any] = {"id": own_id, "name": column.name, "required": column.required}
        field["type"] = iceberg_type(column.type, ids)
        if column.doc is not None:
            field["doc"] = column.doc
        fields.append(field)
    return fields


def iceberg_type(kind: ColumnType, ids: Iterator[int]) -> str | dict[str, Any]:
    match kind:
        case Primitive(name):
            return name.replace(",", ", ") if name.startswith("decimal") else name
        case ListOf(element, required):
            own_id = next(ids)
            inner = iceberg_type(element, ids)
            return {"type": "list", "element-id": own_id, "element": inner, "element-required": required}
        case MapOf(key, value, required):
            key_id, value_id = next(ids), next(ids)
            return {
                "type": "map", "key-id": key_id, "key": iceberg_type(key, ids),
                "value-id": value_id, "value": iceberg_type(value, ids), "value-required": required,
            }  # fmt: skip
        case Struct(fields):
            return {"type": "struct", "fields": _iceberg_fields(fields, ids)}


def from_iceberg(fields: Iterable[IcebergField]) -> tuple[Column, ...]:
    """The columns of a schema in a table's metadata."""
    return tuple(Column(f["name"], type_from_iceberg(f["type"]), f["required"], f.get("doc")) for f in fields)


def type_from_iceberg(kind: str | Mapping[str, Any]) -> ColumnType:
    if isinstance(kind, str):
        return Primitive(kind.replace(" ", ""))
    match kind["type"]:
        case "list":
            return ListOf(type_from_iceberg(kind["element"]), kind["element-required"])
        case "map":
            return MapOf(type_from_iceberg(kind["key"]), type_from_iceberg(kind["value"]), kind["value-required"])
        case _:
            return Struct(from_iceberg(kind["fields"]))
