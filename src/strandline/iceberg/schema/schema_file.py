"""Parses columns and types that people write: `--schema FILE`, and types on the command line. All errors name the
column."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from strandline.core.errors import InputError, SchemaError
from strandline.core.text.whole_number import whole_number
from strandline.iceberg.schema.columns import (
    Column,
    ColumnType,
    ListOf,
    MapOf,
    Primitive,
    Struct,
    check_columns,
    check_names,
)

DEPTH_MAX = 32  # deeper than any real schema; the bound keeps a hostile file from exhausting the stack

_PLAIN = frozenset({
    "boolean", "int", "long", "float", "double", "date", "time", "timestamp", "timestamptz", "timestamp_ns",
    "timestamptz_ns", "string", "uuid", "binary", "variant", "unknown",
})  # fmt: skip
_DECIMAL = re.compile(r"decimal\(\s*([0-9]+)\s*,\s*([0-9]+)\s*\)")
_FIXED = re.compile(r"fixed\[\s*([0-9]+)\s*\]")
_GEO = re.compile(r"(geometry|geography)(\(.*\))?")

# type names of other systems, and Iceberg's names for them
_OTHER_NAMES = {
    "bigint": "long", "integer": "int", "smallint": "int", "tinyint": "int", "short": "int", "byte": "int",
    "bool": "boolean", "text": "string", "varchar": "string", "char": "string", "str": "string", "json": "string",
    "real": "float", "number": "double", "numeric": "decimal(P,S)", "decimal": "decimal(P,S)", "fixed": "fixed[L]",
    "datetime": "timestamp", "timestamp_ntz": "timestamp", "timestamp_ltz": "timestamptz", "bytes": "binary",
    "blob": "binary", "bytea": "binary", "array": "list<…>", "list": "list<…>", "map": "map<…,…>",
    "struct": "struct<…:…>", "record": "struct<…:…>", "row": "struct<…:…>",
}  # fmt: skip


def parse_type(value: object, *, where: str) -> ColumnType:
    """`where` names the column in error messages. Raises SchemaError."""
    return _parse(value, where, 0)


def _parse(value: object, where: str, depth: int) -> ColumnType:
    if depth > DEPTH_MAX:
        raise SchemaError(f"column {where}: types are nested more than {DEPTH_MAX} deep")
    match value:
        case str():
            return _parse_text(value.strip(), where, depth)
        case {"type": "struct", "fields": list() as fields, **rest}:
            _check_keys(rest, {"schema-id", "identifier-field-ids"}, where)
            return Struct(_parse_fields(fields, where, depth + 1))
        case {"type": "list", "element": element, **rest}:
            _check_keys(rest, {"element-id", "element-required"}, where)
            required = _flag(rest.get("element-required", False), f"{where}: element-required")
            return ListOf(_parse(element, f"{where}.element", depth + 1), required)
        case {"type": "map", "key": key, "value": item, **rest}:
            _check_keys(rest, {"key-id", "value-id", "value-required"}, where)
            required = _flag(rest.get("value-required", False), f"{where}: value-required")
            return MapOf(_parse(key, f"{where}.key", depth + 1), _parse(item, f"{where}.value", depth + 1), required)
    raise SchemaError(
        f"column {where}: this is not a type: {value!r}",
        hint="A type is text such as long or list<string>, or Iceberg's JSON for struct, list or map.",
    )


def _parse_text(text: str, where: str, depth: int) -> ColumnType:
    outer, bracket, rest = text.partition("<")
    if bracket and outer.strip() in ("list", "map", "struct"):
        if not rest.endswith(">"):
            raise SchemaError(f"column {where}: {text!r} has no closing >")
        parts = split_at_commas(rest[:-1], f"column {where}")
        match outer.strip(), parts:
            case "list", [element]:
                return ListOf(_parse(element, f"{where}.element", depth + 1))
            case "map", [key, value]:
                return MapOf(_parse(key, f"{where}.key", depth + 1), _parse(value, f"{where}.value", depth + 1))
            case "struct", _:
                return Struct(check_names([_short_field(part, where, depth) for part in parts], where))
        raise SchemaError(f"column {where}: {text!r} is not list<type>, map<type,type> or struct<name:type,…>")
    return _parse_primitive(text, where)


def _short_field(text: str, where: str, depth: int) -> Column:
    name, colon, kind = text.partition(":")
    if not colon:
        raise SchemaError(f"column {where}: {text!r} is not name:type")
    name = name.strip()
    return Column(name, _parse(kind, f"{where}.{name}", depth + 1))


def split_at_commas(text: str, where: str) -> list[str]:
    """Splits at commas outside of brackets."""
    parts, start, open_brackets = [], 0, 0
    for i, char in enumerate(text):
        if char in "<([":
            open_brackets += 1
        elif char in ">)]":
            open_brackets -= 1
        elif char == "," and open_brackets == 0:
            parts.append(text[start:i])
            start = i + 1
        if open_brackets < 0:
            break
    if open_brackets != 0:
        raise SchemaError(f"{where}: brackets do not match in {text!r}")
    return [part.strip() for part in [*parts, text[start:]]]


def _parse_primitive(text: str, where: str) -> Primitive:
    if text in _PLAIN:
        return Primitive(text)
    if match := _DECIMAL.fullmatch(text):
        precision, scale = whole_number(match[1]), whole_number(match[2])
        if precision is None or scale is None or not (1 <= precision <= 38 and scale <= precision):
            raise SchemaError(
                f"column {where}: {text} is not possible: the precision is 1 to 38, and the scale 0 to the precision"
            )
        return Primitive(f"decimal({precision},{scale})")
    if match := _FIXED.fullmatch(text):
        length = whole_number(match[1])
        if length is None or not 1 <= length < 2**31:
            raise SchemaError(f"column {where}: {text} is too {'short' if length == 0 else 'long'}")
        return Primitive(f"fixed[{length}]")
    if _GEO.fullmatch(text):
        return Primitive(text)
    outer = re.split(r"[<(\[]", text.lower(), maxsplit=1)[0].strip()
    own_name = _OTHER_NAMES.get(outer) or (outer if outer in _PLAIN else None)
    raise SchemaError(
        f"column {where}: there is no type {text!r}",
        hint=f"Iceberg calls it {own_name}." if own_name else "`docs/types.md` lists the types.",
    )


def parse_schema_file(path: Path) -> tuple[Column, ...]:
    """The columns in a file. It is JSON if its name ends with `.json`, otherwise YAML. Raises SchemaError and
    InputError."""
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as e:
        raise SchemaError(f"{path} is not UTF-8 text: {e.reason} at byte {e.start}") from e
    except OSError as e:
        raise InputError(f"{path} cannot be read: {e.strerror}") from e
    try:
        value = json.loads(text) if path.suffix.lower() == ".json" else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError, RecursionError) as e:
        kind = "JSON" if path.suffix.lower() == ".json" else "YAML"
        raise SchemaError(f"{path} is not {kind}: {e}", hint="A schema is a JSON or YAML list of columns.") from e
    try:
        return parse_columns(value)
    except SchemaError as e:
        raise SchemaError(f"{path}: {e.message}", hint=e.hint) from e


def parse_columns(value: object) -> tuple[Column, ...]:
    """The columns of a dataset, from the content of a schema file. Raises SchemaError."""
    if isinstance(value, dict) and value.get("type") == "struct":
        value = value.get("fields")
    if not isinstance(value, list):
        raise SchemaError("a schema is a list of columns", hint="Each has name and type, and may have required, doc.")
    columns = _parse_fields(value, "", 0)
    check_columns(columns)
    return columns


def _parse_fields(values: list[Any], where: str, depth: int) -> tuple[Column, ...]:
    return check_names([_parse_field(v, n, where, depth) for n, v in enumerate(values, 1)], where)


def _parse_field(value: object, number: int, where: str, depth: int) -> Column:
    at = f"{where}, field {number}" if where else f"number {number}"
    if not isinstance(value, dict):
        raise SchemaError(f"column {at}: not a column but {value!r}", hint="A column has a name and a type.")
    name = value.get("name")
    if not isinstance(name, str):
        raise SchemaError(
            f"column {at}: its name is {'missing' if name is None else f'not text: {name!r}'}",
            hint="YAML reads on, off, yes, no and numbers as other types than text: put the name in quotes.",
        )
    path = f"{where}.{name}" if where else name
    if "type" not in value:
        raise SchemaError(f"column {path}: its type is missing")
    _check_keys(value, {"name", "type", "required", "doc", "id"}, path)
    doc = value.get("doc")
    if doc is not None and not isinstance(doc, str):
        raise SchemaError(f"column {path}: doc is not text: {doc!r}")
    required = _flag(value.get("required", False), f"{path}: required")
    return Column(name, _parse(value["type"], path, depth), required, doc)


def _check_keys(value: dict[Any, Any], known: set[str], where: str) -> None:
    if unknown := [str(key) for key in value if key not in known]:
        raise SchemaError(f"column {where}: unknown keys: {', '.join(sorted(unknown))}")


def _flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise SchemaError(f"column {where} is true or false, not {value!r}")
    return value
