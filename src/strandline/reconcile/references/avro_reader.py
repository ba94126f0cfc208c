"""Reads a few fields of an Avro file, with a reader that is generated from the file's schema.

A manifest holds statistics of every column for every file. To read all of it for one path costs ten times what is
needed. So this module generates a function per schema that reads the wanted fields and skips the rest, on PyIceberg's
compiled decoder. Whatever it does not understand is an error, never a shorter answer. It checks the end of every record
and of every block.

Only workers run this (`worker.py`), and it imports little: the decoder, and a fast inflate. The decoder does not check
where its input ends: a damaged file may crash the process, which must not be ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isal import isal_zlib

from strandline.iceberg.pyiceberg.internals import compiled_decoder

if TYPE_CHECKING:
    from pyiceberg.avro.decoder_fast import CythonBinaryDecoder

    ReadBlock = Callable[[CythonBinaryDecoder, int, int, list[Any]], None]

MAGIC = b"Obj\x01"
SYNC_BYTES = 16
RECORDS_AT_ONCE = 50_000
_BLOCK_BYTES = 80_000  # initial buffer for a block: Java ends one at 64,000 bytes
CODECS = ("null", "deflate", "zstandard")


class AvroUnreadable(Exception):
    """The file is damaged."""


class AvroUnknown(AvroUnreadable):
    """Written in a way that this reader does not know; another may. Raised before the first record is returned."""


@dataclass(frozen=True, slots=True)
class WantedFields:
    """The fields to read, by Iceberg's ids, and what to make of them. The expressions are ours, never from a file."""

    fields: Mapping[int, str]  # from field id to the name of a variable
    texts: frozenset[int]  # those that are text; the others are integers
    inside: frozenset[int]  # records whose fields are read
    required: frozenset[int]
    defaults: str
    keep: str


_readers: dict[tuple[str, int], ReadBlock] = {}


def read_records(content: bytes, wanted: WantedFields) -> Iterator[list[Any]]:
    if (compiled := compiled_decoder()) is None:
        raise AvroUnknown("PyIceberg has no compiled decoder here")
    try:
        decoder = compiled(content)
        schema, codec, sync = _header(decoder, len(content))
        read_block = _reader(schema, wanted)
        found: list[Any] = []
        end = len(content)
        while decoder.tell() < end:
            count = decoder.read_int()
            size = decoder.read_int()
            if count < 0 or size < 0 or decoder.tell() + size + SYNC_BYTES > end:
                raise AvroUnreadable("a block is longer than the file")
            block = _unpacked(decoder.read(size), codec)
            inner = compiled(block)
            read_block(inner, count, len(block), found)
            if inner.tell() != len(block):
                raise AvroUnreadable("a block does not end where its records do")
            if decoder.read(SYNC_BYTES) != sync:
                raise AvroUnreadable("a block does not end with the sync marker of this file")
            if len(found) >= RECORDS_AT_ONCE:
                yield found
                found = []
        yield found
    except AvroUnreadable:
        raise
    except Exception as e:
        # a damaged file may make the decoder raise anything
        raise AvroUnreadable(f"{type(e).__name__}: {e}") from e


def _header(decoder: CythonBinaryDecoder, end: int) -> tuple[str, str, bytes]:
    if end < len(MAGIC) + SYNC_BYTES or decoder.read(len(MAGIC)) != MAGIC:
        raise AvroUnreadable("not an Avro file")
    meta: dict[str, bytes] = {}
    while (count := decoder.read_int()) != 0:
        if count < 0:
            decoder.skip_int()
            count = -count
        for _ in range(count):
            name = decoder.read_utf8()
            meta[name] = decoder.read_bytes()
            if decoder.tell() > end:
                raise AvroUnreadable("its head is cut off")
    sync = decoder.read(SYNC_BYTES)
    codec = meta.get("avro.codec", b"null").decode("utf-8")
    if decoder.tell() > end or "avro.schema" not in meta:
        raise AvroUnreadable("its head is cut off, or has no schema")
    if codec not in CODECS:
        raise AvroUnknown(f"compressed with {codec}")
    return meta["avro.schema"].decode("utf-8"), codec, sync


def _unpacked(block: bytes, codec: str) -> bytes:
    if codec == "null":
        return block
    if codec == "deflate":
        return isal_zlib.decompress(block, -15, _BLOCK_BYTES)
    import zstandard

    return zstandard.ZstdDecompressor().decompressobj().decompress(block)


def _reader(schema: str, wanted: WantedFields) -> ReadBlock:
    known = (schema, id(wanted))
    if known not in _readers:
        made: dict[str, Any] = {}
        exec(compile(_Source(json.loads(schema), wanted).text(), "<avro reader>", "exec"), made)
        _readers[known] = made["read_block"]
    return _readers[known]


_SKIPS = {
    "boolean": "skip_boolean()",
    "int": "skip_int()",
    "long": "skip_int()",
    "float": "skip_float()",
    "double": "skip_double()",
    "bytes": "skip_bytes()",
    "string": "skip_utf8()",
}
_NUMBERS = {"int": "read_int()", "long": "read_int()"}
_TEXTS = {"string": "read_utf8()"}
_METHODS = (
    "tell", "read_int", "read_ints", "read_utf8", "skip", "skip_int", "skip_boolean", "skip_float", "skip_double",
    "skip_bytes", "skip_utf8",
)  # fmt: skip


class _Source:
    """The source of a reader. It contains only numbers and names made here, nothing from the file."""

    def __init__(self, schema: Any, wanted: WantedFields) -> None:
        if not isinstance(schema, dict) or schema.get("type") != "record":
            raise AvroUnknown("its schema is not a record")
        self._schema = schema
        self._wanted = wanted
        self._named: dict[str, Any] = {}
        self._lines: list[str] = []
        self._number = 0
        self._got: set[int] = set()

    def text(self) -> str:
        self._fields(self._schema, 2, looking=True)
        if not self._wanted.required <= self._got:
            raise AvroUnknown("its schema lacks a field that is needed")
        head = [
            "from itertools import repeat",
            "def read_block(decoder, count, size, found):",
            *(f"    {name} = decoder.{name}" for name in _METHODS),
            "    keep = found.append",
            f"    {self._wanted.defaults}",
            "    at = tell()",
            "    for _ in range(count):",
        ]
        tail = [
            "        if not at <= tell() <= size:",
            "            raise EOFError('a record goes beyond its block')",
            "        at = tell()",
            f"        keep({self._wanted.keep})",
            "",
        ]
        return "\n".join(head + self._lines + tail)

    def _add(self, depth: int, line: str) -> None:
        self._lines.append("    " * depth + line)

    def _fields(self, record: dict[str, Any], depth: int, *, looking: bool) -> None:
        self._remember(record)
        for field in record["fields"]:
            number, kind = field.get("field-id"), field["type"]
            if looking and number in self._wanted.fields:
                if number in self._got:
                    raise AvroUnreadable(f"its schema has the field {number} twice")
                reads = _TEXTS if number in self._wanted.texts else _NUMBERS
                self._read(self._wanted.fields[number], kind, depth, reads)
                self._got.add(number)
            elif looking and number in self._wanted.inside and isinstance(kind, dict):
                self._fields(kind, depth, looking=True)
            else:
                self._skip(kind, depth)

    def _read(self, name: str, kind: Any, depth: int, reads: Mapping[str, str]) -> None:
        if isinstance(kind, list) and len(kind) == 2 and "null" in kind:
            other = kind[1 - kind.index("null")]
            if isinstance(other, str) and other in reads:
                which = self._name()
                self._add(depth, f"{which} = read_int()")
                self._add(depth, f"if {which} == {kind.index('null')}:")
                self._add(depth + 1, f"{name} = None")
                self._add(depth, f"elif {which} == {1 - kind.index('null')}:")
                self._add(depth + 1, f"{name} = {reads[other]}")
                self._add(depth, "else:")
                self._add(depth + 1, "raise ValueError('no such branch of a union')")
                return
        if not isinstance(kind, str) or kind not in reads:
            raise AvroUnknown("a field that is needed has another type")
        self._add(depth, f"{name} = {reads[kind]}")

    def _remember(self, kind: dict[str, Any]) -> None:
        if "name" in kind:
            self._named[kind["name"]] = kind
            if "namespace" in kind:
                self._named[f"{kind['namespace']}.{kind['name']}"] = kind

    def _skip(self, kind: Any, depth: int) -> None:
        if isinstance(kind, list):
            self._skip_union(kind, depth)
        elif not isinstance(kind, str):
            self._skip_complex(kind, depth)
        elif kind in _SKIPS:
            self._add(depth, _SKIPS[kind])
        elif kind in self._named:
            self._skip(self._named[kind], depth)
        elif kind != "null":
            raise AvroUnknown(f"a type called {kind[:40]!r}")

    def _skip_complex(self, kind: dict[str, Any], depth: int) -> None:
        match kind.get("type"):
            case "record":
                self._fields(kind, depth, looking=False)
            case "array":
                self._skip_array(kind["items"], depth)
            case "map":
                self._skip_blocks(depth, ["skip_utf8()"], kind["values"])
            case "fixed":
                self._remember(kind)
                self._add(depth, f"skip({int(kind['size'])})")
            case "enum":
                self._remember(kind)
                self._add(depth, "skip_int()")
            case inner:
                self._skip(inner, depth)

    def _skip_union(self, kinds: list[Any], depth: int) -> None:
        which = self._name()
        self._add(depth, f"{which} = read_int()")
        for n, kind in enumerate(kinds):
            self._add(depth, f"{'if' if n == 0 else 'elif'} {which} == {n}:")
            self._add(depth + 1, "pass")
            self._skip(kind, depth + 1)
        self._add(depth, "else:")
        self._add(depth + 1, "raise ValueError('no such branch of a union')")

    def _skip_array(self, items: Any, depth: int) -> None:
        pair = [f["type"] for f in items["fields"]] if isinstance(items, dict) and items.get("type") == "record" else []
        numbers = ("int", "long")
        if len(pair) == 2 and all(isinstance(t, str) and t in numbers for t in pair):
            self._remember(items)
            self._at_once(depth, "read_ints(2 * {n})")
        elif isinstance(items, str) and items in numbers:
            self._at_once(depth, "read_ints({n})")
        else:
            self._skip_blocks(depth, [], items)

    def _skip_blocks(self, depth: int, first: list[str], items: Any) -> None:
        n = self._open_blocks(depth)
        self._add(depth + 2, f"for _ in repeat(None, {n}):")
        for line in ["pass", *first]:
            self._add(depth + 3, line)
        self._skip(items, depth + 3)
        self._add(depth + 1, f"{n} = read_int()")

    def _at_once(self, depth: int, body: str) -> None:
        n = self._open_blocks(depth)
        self._add(depth + 2, body.format(n=n))
        self._add(depth + 1, f"{n} = read_int()")

    def _open_blocks(self, depth: int) -> str:
        """Arrays and maps come in blocks; after a negative count follows the block's size in bytes."""
        n = self._name()
        for line in (f"{n} = read_int()", f"while {n}:"):
            self._add(depth, line)
        self._add(depth + 1, f"if {n} < 0:")
        self._add(depth + 2, f"{n} = read_int()")
        self._add(depth + 2, f"if not 0 <= {n} <= size:")
        self._add(depth + 3, "raise EOFError('more bytes than there are')")
        self._add(depth + 2, f"skip({n})")
        self._add(depth + 1, f"elif {n} > size or tell() > size:")
        self._add(depth + 2, "raise EOFError('more items than bytes')")
        self._add(depth + 1, "else:")
        return n

    def _name(self) -> str:
        self._number += 1
        return f"v{self._number}"
