"""The row parser: reads one line of a file by the rules of one schema, or says why it does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from pyspark.sql import types as t

from strandline.core.text.wording import plural
from strandline.core.types import INTERNAL_COLUMNS
from strandline.ingest.sources.values import Misfit, NumberText, from_json_scalar, from_text, named, show

LineReader = Callable[[bytes], dict[str, Any]]  # returns the row's values by column, as Arrow takes them; raises Misfit


def json_row(line: bytes, fields: t.StructType) -> dict[str, Any]:
    document = _parse(decode(line))
    if not isinstance(document, _JsonObject):
        raise Misfit("not an object")
    return _struct(document, fields, "")


def csv_row(record: bytes, fields: t.StructType, header: Sequence[str]) -> dict[str, Any]:
    """Reads one record. `header` has only names of `fields`, each once: `read_header` has checked it. Raises Misfit."""
    cells = csv_cells(decode(record))
    if len(cells) != len(header):
        raise Misfit(f"{plural(len(cells), 'field')}, expected {len(header)}")
    written = {name: text for name, (text, quoted) in zip(header, cells, strict=True) if text or quoted}
    row: dict[str, Any] = {}
    for field in fields:
        if field.name in written:
            row[field.name] = _at(field.name, from_text, written[field.name], field.dataType)
        elif field.nullable:
            row[field.name] = None
        else:
            raise Misfit(f'column "{field.name}" is empty and required')
    return row


def csv_cells(record: str) -> list[tuple[str, bool]]:
    """Each cell's text, and whether it was quoted. An empty cell is null, and a quoted one is the empty string."""
    if '"' not in record:
        return [(text, False) for text in record.split(",")]
    cells: list[tuple[str, bool]] = []
    at, length = 0, len(record)
    while True:
        if record.startswith('"', at):
            end = record.find('"', at + 1)
            while record.startswith('"', end + 1) and end >= 0:
                end = record.find('"', end + 2)
            if end < 0:
                raise Misfit("a quoted field does not end")
            cells.append((record[at + 1 : end].replace('""', '"'), True))
            at = end + 1
            if at < length and record[at] != ",":
                raise Misfit("there is text after the closing quote of a field")
        else:
            end = record.find(",", at)
            end = length if end < 0 else end
            cells.append((record[at:end], False))
            at = end
        if at >= length:
            return cells
        at += 1


def decode(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as e:
        raise Misfit(f"invalid UTF-8 at byte {e.start + 1}") from e


class _JsonObject(list[tuple[str, Any]]):
    """A JSON object with its keys as written, so that a duplicate key is seen."""


def _refuse_constant(name: str) -> NoReturn:
    raise Misfit(f"not JSON: {name} must be written as a string")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_JsonObject, parse_float=NumberText, parse_int=NumberText, parse_constant=_refuse_constant
)


def _parse(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as e:
        raise Misfit(f"not JSON: {e.msg} at character {e.pos + 1}") from e
    except RecursionError as e:
        raise Misfit("not JSON that can be read: nested too deeply") from e


def _value(value: Any, dt: t.DataType, path: str) -> Any:
    match dt:
        case t.StructType():
            if isinstance(value, _JsonObject):
                return _struct(value, dt, path + ".")
        case t.ArrayType():
            if isinstance(value, list) and not isinstance(value, _JsonObject):
                return [_element(v, dt.elementType, dt.containsNull, path + "[]") for v in value]
        case t.MapType():
            if isinstance(value, _JsonObject):
                return _map(value, dt, path)
        case _:
            if not isinstance(value, list):
                return _at(path, from_json_scalar, value, dt)
    written = "an object" if isinstance(value, _JsonObject) else "a list" if isinstance(value, list) else show(value)
    raise Misfit(f'column "{path}": {written} is not {named(dt)}')


def _struct(document: _JsonObject, fields: t.StructType, prefix: str) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for key, value in document:
        if key in given:
            raise Misfit(f"column {show(prefix + key)} occurs twice")
        given[key] = value
    names = set(fields.fieldNames())
    for key in given:
        if key not in names:
            if not prefix and key in INTERNAL_COLUMNS:
                raise Misfit(f'column "{key}" is Strandline\'s own')
            raise Misfit(f"unknown column {show(prefix + key)}")
    row: dict[str, Any] = {}
    for field in fields:
        value = given.get(field.name)
        if value is None and not field.nullable:
            state = "null" if field.name in given else "missing"
            raise Misfit(f'column "{prefix}{field.name}" is {state} and required')
        row[field.name] = None if value is None else _value(value, field.dataType, prefix + field.name)
    return row


def _map(document: _JsonObject, dt: t.MapType, path: str) -> list[tuple[Any, Any]]:
    entries: list[tuple[Any, Any]] = []
    seen: set[Any] = set()
    for written, value in document:
        key = _at(path + "{key}", from_text, written, dt.keyType)
        if key in seen:
            raise Misfit(f'column "{path}": the key {show(written)} occurs twice')
        seen.add(key)
        entries.append((key, _element(value, dt.valueType, dt.valueContainsNull, path + "{}")))
    return entries


def _element(value: Any, dt: t.DataType, nullable: bool, path: str) -> Any:
    if value is None:
        if not nullable:
            raise Misfit(f'column "{path}" is null and required')
        return None
    return _value(value, dt, path)


def _at(path: str, read: Callable[[Any, t.DataType], Any], value: Any, dt: t.DataType) -> Any:
    try:
        return read(value, dt)
    except Misfit as e:
        raise Misfit(f'column "{path}": {e}') from e
