"""Reads the metadata of an Arrow IPC message before Arrow does: how many fields, nodes and bytes it will have.

Arrow trusts lengths that cost a sender no bytes: nulls, structs without fields, buffers that several columns share,
compression, and flatbuffer tables to which many offsets point. This module counts them first. It reads only what it
needs for that, and leaves all other validation to Arrow.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from strandline.core.errors import BadRow

SCHEMA, RECORD_BATCH = 1, 3
_KINDS = {0: "message without a header", 2: "dictionary batch", 4: "tensor", 5: "sparse tensor"}
_V5 = 4
_CONTINUES = 0xFFFFFFFF
METADATA_BYTES_MAX = 1 << 20  # of one message: a field takes about 100 bytes, a node or a buffer 16


class Damaged(ValueError):
    """An offset points outside the data."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Position and metadata of one message in the stream."""

    start: int
    end: int
    metadata: memoryview


def frames(data: memoryview) -> Iterator[Frame]:
    """The messages, up to the end of the stream or of the data. Raises Damaged for a truncated message."""
    at = 0
    while at + 4 <= len(data):
        start = at
        [length] = struct.unpack_from("<I", data, at)
        at += 4
        if length == _CONTINUES:  # always present since Arrow 0.15
            [length] = struct.unpack_from("<I", data, at)
            at += 4
        if length == 0:
            return
        if length > METADATA_BYTES_MAX:
            raise BadRow(None, f"the metadata of an Arrow message has {length:,} bytes, at most {METADATA_BYTES_MAX:,}")
        if at + length > len(data):
            raise Damaged("a message is truncated")
        metadata = data[at : at + length]
        body = Message(metadata).body_length
        at += length
        if not 0 <= body <= len(data) - at:
            raise Damaged("the body of a message is truncated")
        at += body
        yield Frame(start, at, metadata)


@dataclass(frozen=True, slots=True)
class _FlatTable:
    data: memoryview
    at: int

    def slot(self, field: int) -> int | None:
        """The position of the field; None if it is absent."""
        vtable = self.at - _read("<i", self.data, self.at)
        if 4 + 2 * field >= _read("<H", self.data, vtable):
            return None
        offset = _read("<H", self.data, vtable + 4 + 2 * field)
        return self.at + offset if offset else None

    def number(self, field: int, form: str) -> int:
        found = self.slot(field)
        return 0 if found is None else _read(form, self.data, found)

    def table(self, field: int) -> _FlatTable | None:
        found = self.slot(field)
        return None if found is None else _FlatTable(self.data, _follow(self.data, found))

    def text_bytes(self, field: int) -> int:
        found = self.slot(field)
        return 0 if found is None else _read("<I", self.data, _follow(self.data, found))

    def vector(self, field: int) -> tuple[int, int]:
        """The number of elements, and the position of the first."""
        found = self.slot(field)
        if found is None:
            return 0, 0
        at = _follow(self.data, found)
        return _read("<I", self.data, at), at + 4

    def tables(self, field: int) -> Iterator[_FlatTable]:
        count, at = self.vector(field)
        for n in range(count):
            yield _FlatTable(self.data, _follow(self.data, at + 4 * n))

    def pairs(self, field: int) -> list[tuple[int, int]]:
        count, at = self.vector(field)
        if at + 16 * count > len(self.data):
            raise Damaged("a vector is truncated")
        return list(struct.iter_unpack("<qq", self.data[at : at + 16 * count]))


def _read(form: str, data: memoryview, at: int) -> int:
    if at < 0:  # `struct` would count from the end
        raise Damaged("an offset points before the beginning")
    found: int = struct.unpack_from(form, data, at)[0]
    return found


def _follow(data: memoryview, at: int) -> int:
    return at + _read("<I", data, at)


class Message:
    """Raises `Damaged` or `struct.error` if an offset points outside the data."""

    def __init__(self, metadata: memoryview) -> None:
        self._table = _FlatTable(metadata, _follow(metadata, 0))

    @property
    def kind(self) -> int:
        return self._table.number(1, "<B")

    @property
    def kind_name(self) -> str:
        return _KINDS.get(self.kind, f"message of kind {self.kind}")

    @property
    def body_length(self) -> int:
        return self._table.number(3, "<q")

    @property
    def _header(self) -> _FlatTable:
        found = self._table.table(2)
        if found is None:
            raise Damaged("a message without a header")
        return found

    def check_schema(self, fields_max: int, text_bytes_max: int) -> None:
        """Counts fields and texts once per offset that points to them, because Arrow copies them as often."""
        room = _RoomLeft(fields_max, text_bytes_max)
        schema = self._header
        if schema.number(0, "<h") != 0:
            raise BadRow(None, "big-endian Arrow is not accepted")  # Arrow would copy every buffer
        room.take_texts(schema, 2)
        for field in schema.tables(1):
            room.take_field(field, depth=1)

    @property
    def is_compressed(self) -> bool:
        """Version 4 put the compression into the message's own metadata, which Strandline's senders leave empty."""
        hidden = self._table.number(0, "<h") < _V5 and self._table.vector(4)[0] > 0
        return hidden or self._header.slot(3) is not None

    @property
    def rows(self) -> int:
        return self._header.number(0, "<q")

    @property
    def nodes(self) -> list[int]:
        """The length of every field, in the order of the schema, parents before children."""
        return [length for length, _ in self._header.pairs(1)]

    @property
    def buffers(self) -> list[int]:
        return [length for _, length in self._header.pairs(2)]


_DEPTH_MAX = 64


class _RoomLeft:
    def __init__(self, fields_max: int, text_bytes_max: int) -> None:
        self.fields = fields_max
        self.text_bytes = text_bytes_max

    def take_field(self, field: _FlatTable, depth: int) -> None:
        self.fields -= 1
        if self.fields < 0 or depth > _DEPTH_MAX:
            raise BadRow(None, "the Arrow schema has more fields than the dataset")
        self._take_text(field.text_bytes(0))
        self.take_texts(field, 6)
        kind = field.table(3)
        if kind is not None and field.number(2, "<B") == _TIMESTAMP:
            self._take_text(kind.text_bytes(1))
        for child in field.tables(5):
            self.take_field(child, depth + 1)

    def take_texts(self, table: _FlatTable, field: int) -> None:
        for pair in table.tables(field):
            self._take_text(pair.text_bytes(0) + pair.text_bytes(1) + 64)

    def _take_text(self, size: int) -> None:
        self.text_bytes -= size
        if self.text_bytes < 0:
            raise BadRow(None, "the Arrow schema has more text than a schema needs")


_TIMESTAMP = 10
