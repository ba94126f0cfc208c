"""Computes how many bytes an Arrow batch takes as rows of a table, from its metadata, before it is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.types as t

from strandline.iceberg.schema.columns import Column, ColumnType, ListOf, MapOf, Primitive, Struct
from strandline.receive.body.arrow_layout import Damaged, Message
from strandline.receive.body.columns import arrow_type, type_width, width_bytes

_BATCH_BYTES = 4096
_FIELD_BYTES = 512  # overhead of a batch, and of each of its fields
_UUID_TEXT_BYTES = 36


@dataclass(frozen=True, slots=True)
class Cost:
    size: int  # bytes of the rows
    made: int  # the part of `size` that has to be built: padding, nulls, and values that are cast

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.size + other.size, self.made + other.made)


def cost_of(message: Message, schema: pa.Schema, columns: tuple[Column, ...]) -> Cost:
    """The schema of the batch must fit the columns."""
    walk = _FieldWalk(iter(message.nodes), iter(message.buffers))
    known = {c.name: c for c in columns}
    rows = message.rows
    _check(rows)
    beside = _BATCH_BYTES + _FIELD_BYTES * fields_in(columns)
    total = Cost(beside, beside)
    for field in schema:
        kind = known[field.name].type
        size = walk.size(field.type, kind)
        total += Cost(size, 0 if field.type == arrow_type(kind) else size)
    missing = rows * width_bytes(c for c in columns if c.name not in schema.names)
    return total + Cost(missing, missing)


class _FieldWalk:
    """Walks fields in Arrow's order: each before its children."""

    def __init__(self, nodes: Iterator[int], buffers: Iterator[int]) -> None:
        self._nodes = nodes
        self._buffers = buffers

    def size(self, given: Any, kind: ColumnType) -> int:
        length = _check(next(self._nodes, -1))
        if t.is_null(given):
            return length * type_width(kind)
        match kind:
            case ListOf(element):
                self._skip(2)
                return length * type_width(kind) + self.size(given.value_type, element)
            case MapOf(key, value):
                self._skip(2)
                entries = _check(next(self._nodes, -1))
                self._skip(1)
                inside = self.size(given.key_type, key) + self.size(given.item_type, value)
                return length * type_width(kind) + entries + inside
            case Struct(fields):
                self._skip(1)
                return self._struct(given, fields, length)
            case Primitive():
                return length * type_width(kind) + self._texts(given, kind, length)

    def _struct(self, given: Any, fields: Sequence[Column], length: int) -> int:
        known = {f.name: f for f in fields}
        there = sum(self.size(f.type, known[f.name].type) for f in given)
        missing = width_bytes(f for name, f in known.items() if name not in {f.name for f in given})
        return there + length * (1 + missing)

    def _texts(self, given: Any, kind: Primitive, length: int) -> int:
        """Bytes of texts and binaries beyond the fixed width of a row."""
        stored = given.storage_type if isinstance(given, pa.BaseExtensionType) else given
        if t.is_string(stored) or t.is_large_string(stored) or t.is_binary(stored) or t.is_large_binary(stored):
            self._skip(2)
            return _check(next(self._buffers, -1))
        self._skip(2)
        if kind.name == "uuid":
            return length * _UUID_TEXT_BYTES
        return length * int(stored.byte_width) if t.is_fixed_size_binary(stored) else 0

    def _skip(self, buffers: int) -> None:
        for _ in range(buffers):
            _check(next(self._buffers, -1))


def _check(length: int) -> int:
    if length < 0:
        raise Damaged("a length is missing or negative")
    return length


@lru_cache(maxsize=256)
def fields_in(columns: tuple[Column, ...]) -> int:
    """Nested fields included, as Arrow counts them."""
    return sum(_fields(c.type) for c in columns)


def _fields(kind: ColumnType) -> int:
    match kind:
        case Primitive():
            return 1
        case ListOf(element):
            return 1 + _fields(element)
        case MapOf(key, value):
            return 2 + _fields(key) + _fields(value)
        case Struct(fields):
            return 1 + sum(_fields(f.type) for f in fields)
