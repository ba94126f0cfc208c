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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
        exec(compile(_ReaderSource(json.loads(schema), wanted).text(), "<avro reader>", "exec"), made)
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


class _ReaderSource:
    """The source of a reader. It contains only numbers and names made here, nothing from the file. Nested unions and
    arrays use the same variables: each reads its own before those inside it do, and not after."""

    def __init__(self, schema: Any, wanted: WantedFields) -> None:
        if not isinstance(schema, dict) or schema.get("type") != "record":
            raise AvroUnknown("its schema is not a record")
        self._schema = schema
        self._wanted = wanted
        self._named: dict[str, Any] = {}
        self._got: set[int] = set()

    def text(self) -> str:
        fields = self._fields(self._schema, looking=True)
        if not self._wanted.required <= self._got:
            raise AvroUnknown("its schema lacks a field that is needed")
        record = [
            *fields,
            "if not at <= tell() <= size:",
            "    raise EOFError('a record goes beyond its block')",
            "at = tell()",
            f"keep({self._wanted.keep})",
        ]
        block = [
            *(f"{name} = decoder.{name}" for name in _METHODS),
            "keep = found.append",
            self._wanted.defaults,
            "at = tell()",
            "for _ in range(count):",
            *_indented(record),
        ]
        head = ["from itertools import repeat", "def read_block(decoder, count, size, found):"]
        return "\n".join([*head, *_indented(block), ""])

    def _fields(self, record: dict[str, Any], *, looking: bool) -> list[str]:
        self._remember(record)
        lines: list[str] = []
        for field in record["fields"]:
            number, kind = field.get("field-id"), field["type"]
            if looking and number in self._wanted.fields:
                if number in self._got:
                    raise AvroUnreadable(f"its schema has the field {number} twice")
                reads = _TEXTS if number in self._wanted.texts else _NUMBERS
                lines += self._read(self._wanted.fields[number], kind, reads)
                self._got.add(number)
            elif looking and number in self._wanted.inside and isinstance(kind, dict):
                lines += self._fields(kind, looking=True)
            else:
                lines += self._skip(kind)
        return lines

    def _read(self, name: str, kind: Any, reads: Mapping[str, str]) -> list[str]:
        if isinstance(kind, list) and len(kind) == 2 and "null" in kind:
            other = kind[1 - kind.index("null")]
            if isinstance(other, str) and other in reads:
                return _union([[f"{name} = None"] if k == "null" else [f"{name} = {reads[other]}"] for k in kind])
        if not isinstance(kind, str) or kind not in reads:
            raise AvroUnknown("a field that is needed has another type")
        return [f"{name} = {reads[kind]}"]

    def _remember(self, kind: dict[str, Any]) -> None:
        if "name" in kind:
            self._named[kind["name"]] = kind
            if "namespace" in kind:
                self._named[f"{kind['namespace']}.{kind['name']}"] = kind

    def _skip(self, kind: Any) -> list[str]:
        if isinstance(kind, list):
            return _union([self._skip(one) for one in kind])
        if not isinstance(kind, str):
            return self._skip_complex(kind)
        if kind in _SKIPS:
            return [_SKIPS[kind]]
        if kind in self._named:
            return self._skip(self._named[kind])
        if kind != "null":
            raise AvroUnknown(f"a type called {kind[:40]!r}")
        return []

    def _skip_complex(self, kind: dict[str, Any]) -> list[str]:
        match kind.get("type"):
            case "record":
                return self._fields(kind, looking=False)
            case "array":
                return self._skip_array(kind["items"])
            case "map":
                return _blocks(_each(["skip_utf8()", *self._skip(kind["values"])]))
            case "fixed":
                self._remember(kind)
                return [f"skip({int(kind['size'])})"]
            case "enum":
                self._remember(kind)
                return ["skip_int()"]
            case inner:
                return self._skip(inner)

    def _skip_array(self, items: Any) -> list[str]:
        pair = [f["type"] for f in items["fields"]] if isinstance(items, dict) and items.get("type") == "record" else []
        numbers = ("int", "long")
        if len(pair) == 2 and all(isinstance(t, str) and t in numbers for t in pair):
            self._remember(items)
            return _blocks(["read_ints(2 * n)"])
        if isinstance(items, str) and items in numbers:
            return _blocks(["read_ints(n)"])
        return _blocks(_each(self._skip(items)))


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _union(branches: Sequence[Sequence[str]]) -> list[str]:
    lines = ["which = read_int()"]
    for n, branch in enumerate(branches):
        lines += [f"{'if' if n == 0 else 'elif'} which == {n}:", "    pass", *_indented(branch)]
    return [*lines, "else:", "    raise ValueError('no such branch of a union')"]


def _each(item: Sequence[str]) -> list[str]:
    return ["for _ in repeat(None, n):", "    pass", *_indented(item)]


def _blocks(items: Sequence[str]) -> list[str]:
    """Arrays and maps come in blocks; after a negative count follows the block's size in bytes."""
    return [
        "n = read_int()",
        "while n:",
        "    if n < 0:",
        "        n = read_int()",
        "        if not 0 <= n <= size:",
        "            raise EOFError('more bytes than there are')",
        "        skip(n)",
        "    elif n > size or tell() > size:",
        "        raise EOFError('more items than bytes')",
        "    else:",
        *_indented(_indented(items)),
        "    n = read_int()",
    ]
