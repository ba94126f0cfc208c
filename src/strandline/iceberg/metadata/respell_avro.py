"""Changes paths and lengths in Iceberg's Avro files, and nothing else: all other bytes of a record stay as they are.

The same input gives the same bytes each time, so that an interrupted copy can be continued.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from strandline.core.errors import TableUnfit

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_FIXED_BYTES = {"float": 4, "double": 8, "boolean": 1}
_VARINTS = ("int", "long")


@dataclass
class Record:
    """The wanted fields of one record, by field id."""

    values: dict[int, Any] = field(default_factory=dict)


Change = Callable[[Record, Any], Any]


@dataclass(frozen=True)
class Wanted:
    """`read`: the fields whose values the caller gets. `change`: the fields that get another value. It is computed from
    the record as far as it was read, and the old value. Both name fields by Iceberg's field id. The fields hold strings
    or whole numbers."""

    read: frozenset[int]
    change: Mapping[int, Change]

    @property
    def ids(self) -> frozenset[int]:
        return self.read | self.change.keys()


def respell_avro(content: bytes, wanted: Wanted, on_record: Callable[[Record], None]) -> bytes:
    """The file with its changed fields. `on_record` gets each record with its new values. Raises TableUnfit for a file
    that is damaged, or whose compression is not supported."""
    try:
        return _respell(content, wanted, on_record)
    except (IndexError, ValueError, KeyError, zlib.error) as e:
        raise TableUnfit(f"an Avro file of the table cannot be read: {type(e).__name__} {e}") from e


def _respell(content: bytes, wanted: Wanted, on_record: Callable[[Record], None]) -> bytes:
    if not content.startswith(_MAGIC):
        raise ValueError("it is not Avro")
    header, at = _read_header(content)
    codec = header.get("avro.codec", b"null").decode()
    unpack, pack = _codec(codec)
    walk = _walker(json.loads(header["avro.schema"]), wanted)
    sync = content[at : at + _SYNC_BYTES]
    at += _SYNC_BYTES
    written = bytearray(content[:at])
    while at < len(content):
        count, at = _read_long(content, at)
        size, at = _read_long(content, at)
        block = unpack(content[at : at + size])
        at += size
        if content[at : at + _SYNC_BYTES] != sync:
            raise ValueError("a block does not end with the file's sync marker")
        at += _SYNC_BYTES
        changed = pack(_respell_block(block, count, walk, on_record))
        written += _long(count) + _long(len(changed)) + changed + sync
    return bytes(written)


class _Splice:
    """A copy of a block in which some values are replaced."""

    def __init__(self, block: bytes) -> None:
        self.block = block
        self.out = bytearray()
        self._copied = 0
        self.record = Record()

    def put(self, start: int, end: int, new: bytes) -> None:
        self.out += self.block[self._copied : start]
        self.out += new
        self._copied = end

    def result(self) -> bytes:
        self.out += self.block[self._copied :]
        return bytes(self.out)


_ValueWalk = Callable[[_Splice, int], int]  # from the position of a value to the position after it


def _respell_block(block: bytes, count: int, walk: _ValueWalk, on_record: Callable[[Record], None]) -> bytes:
    splice, at = _Splice(block), 0
    for _ in range(count):
        splice.record = Record()
        at = walk(splice, at)
        on_record(splice.record)
    if at != len(block):
        raise ValueError("a block has more bytes than its records")
    return splice.result()


def _walker(schema: Any, wanted: Wanted, field_id: int | None = None) -> _ValueWalk:
    if isinstance(schema, list):
        return _union([_walker(branch, wanted, field_id) for branch in schema])
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return _walker(kind, wanted, field_id)
    if kind == "record":
        return _in_order([_walker(f["type"], wanted, f.get("field-id")) for f in schema["fields"]])
    if kind == "array":
        return _repeated(_walker(schema["items"], wanted))
    if kind == "map":
        return _repeated(_in_order([_skip_bytes, _walker(schema["values"], wanted)]))
    if kind == "fixed":
        size = int(schema["size"])
        return lambda _, at: at + size
    if kind == "null":
        return lambda _, at: at
    if kind in _FIXED_BYTES:
        size = _FIXED_BYTES[kind]
        return lambda _, at: at + size
    if kind in _VARINTS or kind == "enum":
        return _number(field_id, wanted) if field_id in wanted.ids else _skip_number
    if kind == "string":
        return _text(field_id, wanted) if field_id in wanted.ids else _skip_bytes
    if kind == "bytes":
        return _skip_bytes
    raise ValueError(f"an unknown type {kind!r}")


def _union(branches: list[_ValueWalk]) -> _ValueWalk:
    def walk(splice: _Splice, at: int) -> int:
        branch, at = _read_long(splice.block, at)
        return branches[branch](splice, at)

    return walk


def _in_order(fields: list[_ValueWalk]) -> _ValueWalk:
    def walk(splice: _Splice, at: int) -> int:
        for one in fields:
            at = one(splice, at)
        return at

    return walk


def _repeated(item: _ValueWalk) -> _ValueWalk:
    def walk(splice: _Splice, at: int) -> int:
        while True:
            count, at = _read_long(splice.block, at)
            if count == 0:
                return at
            if count < 0:  # the block's size in bytes follows; it stays right only because no item changes
                _, at = _read_long(splice.block, at)
                count = -count
            for _ in range(count):
                at = item(splice, at)

    return walk


def _number(field_id: int | None, wanted: Wanted) -> _ValueWalk:
    assert field_id is not None
    change = wanted.change.get(field_id)

    def walk(splice: _Splice, at: int) -> int:
        value, end = _read_long(splice.block, at)
        if change is not None:
            value = change(splice.record, value)
            splice.put(at, end, _long(value))
        splice.record.values[field_id] = value
        return end

    return walk


def _text(field_id: int | None, wanted: Wanted) -> _ValueWalk:
    assert field_id is not None
    change = wanted.change.get(field_id)

    def walk(splice: _Splice, at: int) -> int:
        size, start = _read_long(splice.block, at)
        end = start + size
        value = splice.block[start:end].decode("utf-8")
        if change is not None:
            value = change(splice.record, value)
            encoded = value.encode("utf-8")
            splice.put(at, end, _long(len(encoded)) + encoded)
        splice.record.values[field_id] = value
        return end

    return walk


def _skip_number(splice: _Splice, at: int) -> int:
    return _read_long(splice.block, at)[1]


def _skip_bytes(splice: _Splice, at: int) -> int:
    size, at = _read_long(splice.block, at)
    if size < 0 or at + size > len(splice.block):
        raise ValueError("a value ends after its block")
    return at + size


def _read_header(content: bytes) -> tuple[dict[str, bytes], int]:
    """The file's properties, and the position after them."""
    header: dict[str, bytes] = {}
    at = len(_MAGIC)
    while True:
        count, at = _read_long(content, at)
        if count == 0:
            return header, at
        if count < 0:
            _, at = _read_long(content, at)
        for _ in range(abs(count)):
            size, at = _read_long(content, at)
            key, at = content[at : at + size].decode(), at + size
            size, at = _read_long(content, at)
            header[key], at = content[at : at + size], at + size


def _read_long(content: bytes, at: int) -> tuple[int, int]:
    """The number at this position, and the position after it."""
    zigzag = shift = 0
    while True:
        byte = content[at]
        at += 1
        zigzag |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (zigzag >> 1) ^ -(zigzag & 1), at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _long(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def _codec(name: str) -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]:
    if name == "null":
        return bytes, bytes
    if name == "deflate":
        return lambda packed: zlib.decompress(packed, -15), _deflate
    if name == "zstandard":
        import zstandard

        def unpack(packed: bytes) -> bytes:
            try:
                return zstandard.ZstdDecompressor().decompressobj().decompress(packed)
            except zstandard.ZstdError as e:
                raise ValueError(str(e)) from e

        return unpack, lambda plain: zstandard.ZstdCompressor().compress(plain)
    raise ValueError(f"its compression {name} is not supported; rewrite the manifests with Iceberg's default")


def _deflate(plain: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(plain) + packer.flush()
