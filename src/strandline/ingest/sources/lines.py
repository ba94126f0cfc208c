"""Splits bytes into blocks of numbered lines, with bounded memory and without a Python loop over the lines.

An uncompressed file of JSON lines is cut into ranges that begin and end at line boundaries, one for each Spark task. A
compressed file is one task. So is a CSV file: all text before a newline decides whether the newline is inside quotes.
"""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.ingest.sources.failures import TaskFailure
from strandline.ingest.sources.identify import SourceFile
from strandline.ingest.sources.positions import report

CHUNK_BYTES = 2 * 1024 * 1024  # about as many lines as Spark's own Arrow batches have, and little memory for a worker
LINE_BYTES_MAX = 64 * 1024 * 1024  # Spark and Parquet handle a row as a whole, in several copies at a time
RANGE_BYTES_MAX = 128 * 1024 * 1024
RANGE_BYTES_MIN = 4 * 1024 * 1024

_CODECS: dict[str, Literal["gzip", "zstd"]] = {"gz": "gzip", "zst": "zstd"}
_BOM = b"\xef\xbb\xbf"
_NEWLINE = 10
_RETURN = 13

Offsets = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ByteRange:
    start: int
    end: int
    first_line: int


@dataclass(frozen=True, eq=False)
class LineBlock:
    """Records of a file: where each one begins and ends in `data`, without its line end, and the number of the line on
    which it begins."""

    data: bytes
    starts: Offsets
    ends: Offsets
    lines: Offsets
    suspect: npt.NDArray[np.bool_] | None = None  # records that only the row parser may read; None if there are none

    def __len__(self) -> int:
        return len(self.starts)

    def record(self, index: int) -> bytes:
        return self.data[self.starts[index] : self.ends[index]]

    def part(self, lo: int, hi: int) -> LineBlock:
        return self._chosen(slice(lo, hi))

    def only(self, keep: npt.NDArray[np.bool_]) -> LineBlock:
        return self if keep.all() else self._chosen(keep)

    def _chosen(self, which: slice | npt.NDArray[np.bool_]) -> LineBlock:
        suspect = None if self.suspect is None else self.suspect[which]
        return LineBlock(self.data, self.starts[which], self.ends[which], self.lines[which], suspect)

    def gathered(self, keep: npt.NDArray[np.bool_]) -> LineBlock:
        """These records with their text copied together, for parsers that read from the first byte to the last."""
        chosen = np.flatnonzero(keep)
        if len(chosen) in (0, len(self)):
            return self.only(keep)
        first = np.flatnonzero(np.diff(chosen, prepend=-2) != 1)
        last = np.append(first[1:], len(chosen)) - 1
        begins, stops = self.starts[chosen[first]], self.ends[chosen[last]]
        runs = [self.data[begin:stop] for begin, stop in zip(begins.tolist(), stops.tolist(), strict=True)]
        placed = np.concatenate(([0], np.cumsum(stops - begins + 1)[:-1]))
        moved = np.repeat(placed - begins, last - first + 1)
        suspect = None if self.suspect is None else self.suspect[chosen]
        return LineBlock(
            b"\n".join(runs), self.starts[chosen] + moved, self.ends[chosen] + moved, self.lines[chosen], suspect
        )

    def not_utf8(self) -> Offsets:
        """Which records have bytes that are not UTF-8."""
        positions: list[int] = []

        def note(error: UnicodeError) -> tuple[str, int]:
            if not isinstance(error, UnicodeDecodeError):
                raise error
            positions.append(error.start)
            return "", error.end

        codecs.register_error("strandline-note", note)
        str(self.data, "utf-8", "strandline-note")
        records: Offsets = np.unique(np.searchsorted(self.ends, np.array(positions, np.int64), "right"))
        return records[records < len(self)]


# Takes bytes, the number of their first line, and whether they are the last ones. Returns the complete records in them,
# how many bytes these take, and the number of the line after them.
Splitter = Callable[[bytes, int, bool], tuple[LineBlock, int, int]]


def plan_ranges(source: SourceFile, parallelism: int) -> list[ByteRange]:
    """Cuts an uncompressed file so that every core has work, and counts the lines before each cut."""
    if source.size_bytes == 0:
        return []
    if source.format != "jsonl" or source.compression != "none":
        return [ByteRange(0, source.size_bytes, 1)]
    cores = max(parallelism, 1)
    rounds = -(-source.size_bytes // (RANGE_BYTES_MAX * cores))
    step = max(RANGE_BYTES_MIN, -(-source.size_bytes // (rounds * cores)))
    cuts = [0]
    with source.path.open("rb") as f:
        for nominal in range(step, source.size_bytes, step):
            f.seek(max(nominal, cuts[-1]) - 1)
            f.readline(LINE_BYTES_MAX)
            if cuts[-1] < f.tell() < source.size_bytes:
                cuts.append(f.tell())
    spans = list(zip(cuts, [*cuts[1:], source.size_bytes], strict=True))
    if len(spans) == 1:
        return [ByteRange(*spans[0], 1)]
    with ThreadPoolExecutor(max_workers=min(4, cores)) as pool:
        counts = list(pool.map(lambda span: _count_newlines(source.path, *span), spans[:-1]))
    firsts = [1, *(1 + int(n) for n in np.cumsum(counts))]
    return [ByteRange(start, end, first) for (start, end), first in zip(spans, firsts, strict=True)]


def read_blocks(source: SourceFile, span: ByteRange, split: Splitter) -> Iterator[LineBlock]:
    """The blocks of one range, in order. Bytes after the last complete record of a chunk are carried over to the
    next."""
    line = span.first_line
    pieces: list[bytes] = []
    carried_bytes = 0
    split_at_bytes = 0
    may_end = False
    chunks = _chunks(source, span)
    ahead = next(chunks, None)
    while ahead is not None:
        chunk, ahead = ahead, next(chunks, None)
        pieces.append(chunk)
        carried_bytes += len(chunk)
        may_end = may_end or b"\n" in chunk
        # A long record would be scanned again with each chunk, which is quadratic. So the bytes are not split before
        # they have a line end. After an attempt that found no complete record, the next one waits for twice as many
        # bytes.
        waits = not may_end or carried_bytes < split_at_bytes
        if ahead is not None and waits and carried_bytes <= LINE_BYTES_MAX + CHUNK_BYTES:
            continue
        data = b"".join(pieces)
        block, taken, line = split(data, line, ahead is None)
        if len(block):
            yield block
        pieces = [data[taken:]]
        carried_bytes = len(data) - taken
        split_at_bytes = 0 if taken else 2 * carried_bytes
        may_end = False
        _check_length(carried_bytes, line, source)


def split_lines(data: bytes, first_line: int, last: bool) -> tuple[LineBlock, int, int]:
    """Splits data into JSON lines, without the spaces around them. Blank lines are left out."""
    array = np.frombuffer(data, np.uint8)
    newlines = np.flatnonzero(array == _NEWLINE)
    starts, ends, taken = cut_at(newlines, len(data), last)
    lines = np.arange(first_line, first_line + len(ends), dtype=np.int64)
    block = LineBlock(data, *_trimmed(data, array, starts, ends), lines)
    return block.only(block.ends > block.starts), taken, first_line + len(newlines)


def cut_at(newlines: Offsets, length: int, last: bool) -> tuple[Offsets, Offsets, int]:
    """The positions where records begin and end, and how many bytes they take. Bytes after the last newline are a
    record only if they are the last ones."""
    ends = newlines
    taken = int(newlines[-1]) + 1 if len(newlines) else 0
    if last and taken < length:
        ends, taken = np.append(newlines, length), length
    return np.concatenate(([0], newlines + 1))[: len(ends)], ends, taken


def _trimmed(data: bytes, array: Bytes, starts: Offsets, ends: Offsets) -> tuple[Offsets, Offsets]:
    ends = without_return(array, starts, ends)
    if not len(starts):
        return starts, ends
    with_spaces = np.flatnonzero(
        (ends > starts) & ((array[np.minimum(starts, len(array) - 1)] <= 32) | (array[np.maximum(ends - 1, 0)] <= 32))
    )
    if len(with_spaces):  # rare, so one by one
        starts, ends = starts.copy(), ends.copy()
        for i in with_spaces:
            text = data[starts[i] : ends[i]]
            starts[i] += len(text) - len(text.lstrip(b" \t\r"))
            ends[i] = max(starts[i], ends[i] - (len(text) - len(text.rstrip(b" \t\r"))))
    return starts, ends


def without_return(array: Bytes, starts: Offsets, ends: Offsets) -> Offsets:
    """The ends, without carriage returns, for files with CRLF."""
    if not len(ends):
        return ends
    trimmed: Offsets = ends - ((ends > starts) & (array[np.maximum(ends - 1, 0)] == _RETURN))
    return trimmed


def _chunks(source: SourceFile, span: ByteRange) -> Iterator[bytes]:
    """The decompressed bytes of the range. A chunk is never empty. A byte order mark at the start of the file is
    dropped."""
    remaining = span.end - span.start if source.compression == "none" else sys.maxsize
    is_first = span.start == 0
    try:
        with pa.OSFile(str(source.location), "rb") as file:
            file.seek(span.start)
            # Unlike most readers of zstd, Arrow's raises if a stream ends too early.
            codec = _CODECS.get(source.compression)
            stream = file if codec is None else pa.CompressedInputStream(file, codec)
            while chunk := stream.read(min(CHUNK_BYTES, remaining)):
                remaining -= len(chunk)
                report(file.tell() - span.start)
                if is_first:
                    chunk = chunk.removeprefix(_BOM)
                    is_first = False
                if chunk:
                    yield chunk
    except OSError as e:
        raise TaskFailure(str(source.path), f"{source.path} cannot be read: {e}") from e


def _count_newlines(path: Path, start: int, end: int) -> int:
    total = 0
    with path.open("rb") as f:
        f.seek(start)
        while start < end and (chunk := f.read(min(CHUNK_BYTES, end - start))):
            total += int(np.count_nonzero(np.frombuffer(chunk, np.uint8) == _NEWLINE))
            start += len(chunk)
    return total


def _check_length(length: int, line: int, source: SourceFile) -> None:
    if length > LINE_BYTES_MAX + CHUNK_BYTES:
        mebibytes = LINE_BYTES_MAX // 1024 // 1024
        quote = "; a quote may be missing" if source.format == "csv" else ""
        raise TaskFailure(str(source.path), f"{source.path}: line {line} is longer than {mebibytes} MiB{quote}")
