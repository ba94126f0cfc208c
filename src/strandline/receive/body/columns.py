"""Maps a table's columns to Arrow types, and checks what Arrow's types cannot express: required values, uuids, fixed
lengths.

Rows that pass these checks fit the table completely, so ingest cannot fail on them later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute

from strandline.iceberg.arrow_nested import Array
from strandline.iceberg.schema.columns import Column, ColumnType, ListOf, MapOf, Primitive, Struct

pc: Any = pyarrow.compute

_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_ARROW: dict[str, Any] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "string": pa.string(),
    "uuid": pa.string(),
    "binary": pa.binary(),
}


class BodyMisfit(Exception):
    """A value that its column cannot store: the row's index in the array, and why."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row = row
        self.why = why


@lru_cache(maxsize=256)
def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """The types that Spark accepts: a uuid is text, a fixed is binary. Nullable; `check` checks required values."""
    return pa.schema([pa.field(c.name, arrow_type(c.type)) for c in columns])


def arrow_type(kind: ColumnType) -> Any:
    match kind:
        case Primitive(name) if name.startswith("decimal("):
            precision, scale = name.removeprefix("decimal(").removesuffix(")").split(",")
            return pa.decimal128(int(precision), int(scale))
        case Primitive(name) if name.startswith("fixed["):
            return pa.binary()
        case Primitive(name):
            return _ARROW[name]
        case ListOf(element):
            return pa.list_(arrow_type(element))
        case MapOf(key, value):
            return pa.map_(arrow_type(key), arrow_type(value))
        case Struct(fields):
            return pa.struct([pa.field(f.name, arrow_type(f.type)) for f in fields])


def width_bytes(columns: Iterable[Column]) -> int:
    """Bytes that a row of nulls takes in Arrow."""
    return sum(type_width(c.type) for c in columns)


@lru_cache(maxsize=1024)
def type_width(kind: ColumnType) -> int:
    return _width(arrow_type(kind))


def _width(kind: Any) -> int:
    if pa.types.is_struct(kind):
        return 1 + sum(_width(f.type) for f in kind)
    if pa.types.is_nested(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 5
    return 1 + int(kind.bit_width) // 8


def check(rows: pa.Table, columns: Sequence[Column]) -> None:
    """Raises BodyMisfit for the first column with a value that the table cannot store."""
    for column in columns:
        if not _is_narrow(column):
            continue
        before = 0
        for chunk in rows.column(column.name).chunks:
            try:
                _check_required(chunk, None, column.required, column.name)
                _check(chunk, column.type, column.name)
            except BodyMisfit as e:
                raise BodyMisfit(before + e.row, e.why) from e
            before += len(chunk)


def _is_narrow(column: Column) -> bool:
    return column.required or _needs_check(column.type)


def _needs_check(kind: ColumnType) -> bool:
    match kind:
        case Primitive(name):
            return name == "uuid" or name.startswith("fixed[")
        case ListOf(element, required):
            return required or _needs_check(element)
        case MapOf():
            return True
        case Struct(fields):
            return any(map(_is_narrow, fields))


def _check(array: Array, kind: ColumnType, path: str) -> None:
    match kind:
        case Primitive("uuid"):
            _demand(pc.match_substring_regex(array, _UUID), f'column "{path}" is not a uuid')
        case Primitive(name) if name.startswith("fixed["):
            length = int(name.removeprefix("fixed[").removesuffix("]"))
            _demand(pc.equal(pc.binary_length(array), length), f'column "{path}" has not {length} bytes')
        case ListOf(element, required) if required or _needs_check(element):
            inner = array.flatten()
            with _owners(array):
                _check_required(inner, None, required, path + "[]")
                _check(inner, element, path + "[]")
        case MapOf(key, value, required):
            with _owners(array):
                keys, items = _entries(array)
                _check_required(keys, None, True, path + "{key}")
                _check(keys, key, path + "{key}")
                _check_required(items, None, required, path + "{}")
                _check(items, value, path + "{}")
        case Struct(fields):
            for index, field in enumerate(fields):
                if _is_narrow(field):
                    child, name = array.field(index), f"{path}.{field.name}"
                    _check_required(child, array, field.required, name)
                    _check(pc.if_else(array.is_valid(), child, None) if array.null_count else child, field.type, name)
        case _:
            pass


@contextmanager
def _owners(array: Array) -> Iterator[None]:
    """Translates the index of a list element into the index of its list."""
    try:
        yield
    except BodyMisfit as e:
        parents = pc.list_parent_indices(_as_list(array))
        raise BodyMisfit(parents[e.row].as_py(), e.why) from e


def _as_list(array: Array) -> Array:
    """A map as a list of its entries."""
    if not pa.types.is_map(array.type):
        return array
    return array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))


def _entries(array: Array) -> tuple[Array, Array]:
    entries = _as_list(array).flatten()
    return entries.field(0), entries.field(1)


def _check_required(array: Array, owner: Array | None, required: bool, path: str) -> None:
    """For a field of a struct, rows whose struct (`owner`) is null are exempt."""
    if required and array.null_count:
        fits = array.is_valid() if owner is None else pc.or_(array.is_valid(), owner.is_null())
        _demand(fits, f'column "{path}" is null and required')


def _demand(fits: Array, why: str) -> None:
    if pc.all(fits).as_py() is False:
        raise BodyMisfit(pc.index(fits, False).as_py(), why)
