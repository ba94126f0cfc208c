"""Parses JSON lines into rows, a slice at a time, and bounds what a slice can become before it parses it.

A few bytes of JSON can expand to very many. `{}` is a row of nulls in every column, and a `null` in a list of structs
is a struct of nulls. So the reader takes slices that are small enough with any content. A line that is too long
for a slice is counted value by value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.core.errors import BadRow
from strandline.core.text.wording import plural
from strandline.iceberg.schema.columns import Column, ColumnType, ListOf, MapOf, Primitive, Struct
from strandline.receive.body.columns import type_width, width_bytes
from strandline.receive.body.decompress import TooLarge

# Parses JSON lines into rows, with the line number of each; raises BadRow. It is ingest's own parser, so that the same
# rules decide whether a row fits.
ReadLines = Callable[[bytes, Sequence[Column]], tuple[pa.Table, Any]]

_SLICE_BYTES = 1 << 20
_SLICE_PARTS = 16  # a slice, and the rows it can become, take at most this fraction of the limit
_LINE_PARTS = 3  # so does a line, which cannot be cut: its text and its values are in memory at once
_NEWLINE = ord("\n")
_BOM = b"\xef\xbb\xbf"


def read_json(
    pieces: Iterable[bytes], columns: tuple[Column, ...], bytes_max: int, room: int, read_lines: ReadLines
) -> Iterator[tuple[pa.Table, Any]]:
    """Yields rows and their line numbers. The rows take at most `bytes_max`, and at most `room` together with the text
    read so far. Raises TooLarge and BadRow."""
    reader = _JsonLineReader(columns, bytes_max, room, read_lines)
    for data in whole_lines(pieces, min(_SLICE_BYTES, max(1, bytes_max // _SLICE_PARTS)), bytes_max // _LINE_PARTS):
        yield from reader.read(data)


def whole_lines(pieces: Iterable[bytes], slice_bytes: int, line_bytes_max: int) -> Iterator[bytes]:
    """Cuts after line ends, into slices of about `slice_bytes`; longer only for a longer line. A body that fits into
    one slice is one slice, even if its last line has no end. Raises TooLarge."""
    waiting: list[bytes] = []
    size = ended = 0  # bytes that wait, and how many of them are whole lines
    for piece in pieces:
        at = 0
        while at < len(piece):
            part = piece[at : at + (slice_bytes - size if size < slice_bytes else slice_bytes)]
            at += len(part)
            if end := part.rfind(b"\n") + 1:
                ended = size + end
            waiting.append(part)
            size += len(part)
            if size - ended > line_bytes_max:
                raise TooLarge(line_bytes_max, "a line has more bytes")
            if ended and size >= slice_bytes:
                data = b"".join(waiting)
                waiting, size = [data[ended:]], size - ended
                yield data[:ended]
                ended = 0
    if size:
        data = b"".join(waiting)
        waiting.clear()
        yield data


def count_lines(data: bytes) -> int:
    """How many lines end in `data`. Bodies have many short lines, and `bytes.count` would stop at each of them."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == _NEWLINE))


class _JsonLineReader:
    def __init__(self, columns: tuple[Column, ...], bytes_max: int, room: int, read_lines: ReadLines) -> None:
        self._columns = columns
        self._bytes_max = bytes_max
        self._room = room
        self._read_lines = read_lines
        self._width = max(1, width_bytes(columns))
        self._element = widest_element(columns)
        self._lines = 0
        self._text = 0
        self._rows = 0
        self._made = 0

    def read(self, data: bytes) -> Iterator[tuple[pa.Table, Any]]:
        """`data` is whole lines."""
        ends = count_lines(data)
        may_become = self._may_become(data, ends)
        if may_become > self._bytes_max // _SLICE_PARTS:
            middle = data.rfind(b"\n", 0, len(data) // 2) + 1 or data.find(b"\n") + 1
            if 0 < middle < len(data):
                yield from self.read(data[:middle])
                yield from self.read(data[middle:])
                return
            may_become = self._becomes(data)
        self._text += len(data)
        self._take(may_become)
        yield self._read_here(data, ends)

    def _may_become(self, data: bytes, ends: int) -> int:
        """Upper bound: each line is a row of nulls, and each comma or bracket an element of the widest type."""
        rows = ends + (not data.endswith(b"\n"))
        elements = 0
        if self._element:
            elements = data.count(b",") + data.count(b"[") + data.count(b"{")
        return rows * self._width + elements * self._element

    def _becomes(self, line: bytes) -> int:
        """The exact size of one line. Raises TooLarge if computing it could take as much memory as the rows."""
        if not self._element:
            return self._width
        if python_bytes(line) > self._bytes_max // _LINE_PARTS:
            raise TooLarge(self._bytes_max, f"line {self._lines + 1} may take more bytes than that")
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            return self._width  # ingest's parser reports what is wrong with it
        return self._width + sum(inside(row.get(c.name), c.type) for c in self._columns if isinstance(row, dict))

    def _take(self, may_become: int) -> None:
        """Raises TooLarge before the rows are built."""
        if self._made + may_become > self._bytes_max or self._made + self._text + may_become > self._room:
            raise TooLarge(
                self._bytes_max, f"{plural(self._rows, 'row')} and those after them take more bytes than that"
            )

    def _read_here(self, data: bytes, ends: int) -> tuple[pa.Table, Any]:
        before = self._lines
        if before and data.startswith(_BOM):  # only the start of a body may have a BOM
            data, before = b"\n" + data, before - 1
        try:
            rows, lines = self._read_lines(data, self._columns)
        except BadRow as e:
            raise BadRow(None if e.line is None else e.line + before, e.message) from e
        self._lines += ends
        self._rows += rows.num_rows
        self._made += rows.get_total_buffer_size()
        return rows, lines + before


@lru_cache(maxsize=256)
def widest_element(columns: tuple[Column, ...]) -> int:
    """Bytes of a null element in the widest list, or of an entry in the widest map; 0 without lists and maps."""
    return max((_widest(c.type) for c in columns), default=0)


def _widest(kind: ColumnType) -> int:
    match kind:
        case ListOf(element):
            return max(type_width(element), _widest(element))
        case MapOf(key, value):
            return max(type_width(key) + type_width(value) + 1, _widest(value))
        case Struct(fields):
            return max((_widest(f.type) for f in fields), default=0)
        case Primitive():
            return 0


def inside(value: Any, kind: ColumnType) -> int:
    """The bytes of all list elements and map entries in a value; a null counts like any other."""
    match kind:
        case ListOf(element) if isinstance(value, list):
            return len(value) * type_width(element) + sum(inside(v, element) for v in value)
        case MapOf(key, each) if isinstance(value, dict):
            return len(value) * (type_width(key) + type_width(each) + 1) + sum(inside(v, each) for v in value.values())
        case Struct(fields) if isinstance(value, dict):
            return sum(inside(value.get(f.name), f.type) for f in fields)
    return 0


def python_bytes(text: bytes) -> int:
    """About how much memory the Python objects of a JSON text take."""
    return len(text) + 64 * text.count(b"[") + 72 * text.count(b"{") + 200 * text.count(b":") + 40 * text.count(b",")
