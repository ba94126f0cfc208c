"""Encodes rows as bytes. The same rows give the same bytes, however Arrow divides their table into chunks.

Everything that a library might choose by itself is fixed here. The bytes still depend on the versions of the libraries;
ranges, not bytes, identify a chunk.
"""

from __future__ import annotations

import gzip
import hashlib
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

from strandline.core.errors import UsageError
from strandline.core.partition import encode_part
from strandline.core.types import SeqRange
from strandline.deliver.sink import Address
from strandline.deliver.sinks.blobs.names import shorten
from strandline.deliver.sinks.chunk_rows import joined_lines

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_ROWS = 131_072  # compresses well, and still suits a reader that wants a few columns of a few rows
_SLICE_ROWS = 65_536  # so many lines are joined at a time, so that the whole text is never in memory twice
_READ_BYTES = 1 << 20
_ZSTD_LEVEL = 3
_GZIP_LEVEL = 6
# Pinned, because a library's defaults may change. Encoded columns gain little from more than zstd's first level.
_PARQUET_LEVELS = {"zstd": 1, "gzip": 6}

FORMATS = ("parquet", "jsonl", "csv")
# The first of each is the default.
_COMPRESSIONS = {"parquet": ("zstd", "snappy", "gzip", "none"), "text": ("none", "gz", "zst")}


@dataclass(frozen=True, slots=True)
class ObjectFormat:
    """How a sink writes: the options `format` and `compression`."""

    name: str
    compression: str

    @property
    def extension(self) -> str:
        if self.name == "parquet" or self.compression == "none":
            return self.name
        return f"{self.name}.{self.compression}"

    @property
    def form(self) -> str:
        """What the chunks hold: see `Sink.form`."""
        return "rows" if self.name == "parquet" else self.name


def choose_format(name: str, compression: str | None) -> ObjectFormat:
    if name not in FORMATS:
        raise UsageError(f"format cannot be {name!r}", hint=f"It is one of: {', '.join(FORMATS)}.")
    possible = _COMPRESSIONS["parquet" if name == "parquet" else "text"]
    if compression is None:
        return ObjectFormat(name, possible[0])
    if compression not in possible:
        raise UsageError(
            f"compression of {name} cannot be {compression!r}", hint=f"It is one of: {', '.join(possible)}."
        )
    return ObjectFormat(name, compression)


def identity_of(address: Address, rows: SeqRange) -> dict[str, str]:
    """Which chunk of which lane an object is, in characters that fit any kind of metadata."""
    return {
        "lake": encode_part(address.lake),
        "sink": encode_part(address.instance),
        "generation": str(address.generation),
        "dataset": shorten(encode_part(address.dataset)),
        "partition": shorten(address.partition),
        "range": f"{rows.lo}-{rows.hi}",
    }


@dataclass(frozen=True, slots=True)
class Encoded:
    count: int
    digest: str
    size: int


class _Writable(Protocol):
    def write(self, data: Any, /) -> int: ...


class _Hashing(io.RawIOBase):
    """Passes on what is written, and computes its digest and size."""

    def __init__(self, out: _Writable) -> None:
        self._out = out
        self._hash = hashlib.sha256()
        self._bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        self._hash.update(view)
        done = 0
        while done < len(view):
            done += self._out.write(view[done:])
        self._bytes += len(view)
        return len(view)

    def encoded(self, count: int) -> Encoded:
        return Encoded(count, f"sha256:{self._hash.hexdigest()}", self._bytes)


def encode(
    rows: pa.Table, how: ObjectFormat, header: Sequence[str], identity: dict[str, str], out: _Writable
) -> Encoded:
    """Writes one object to `out`. `header` is the first record of CSV: the names of the columns in the lines."""
    hashing = _Hashing(out)
    if how.name == "parquet":
        _write_parquet(rows, how, identity, hashing)
    else:
        with _compressing(how.compression, hashing) as text:
            if how.name == "csv":
                text.write((",".join(_quoted(name) for name in header) + "\n").encode())
            # In pieces of so many rows, so that the compressor sees the same writes however Arrow divides the table.
            for piece in joined_lines(rows, _SLICE_ROWS):
                text.write(piece)
    return hashing.encoded(rows.num_rows)


def _write_parquet(rows: pa.Table, how: ObjectFormat, identity: dict[str, str], out: _Hashing) -> None:
    import pyarrow.parquet as pq

    # Spark's metadata about columns does not concern the reader.
    table = rows.replace_schema_metadata(None)
    with pq.ParquetWriter(
        cast("IO[bytes]", out),
        table.schema,
        version="2.6",
        compression=cast("Any", how.compression),
        compression_level=_PARQUET_LEVELS.get(how.compression),
        use_dictionary=cast("Any", _worth_a_dictionary(table)),
        write_statistics=True,
        data_page_size=1 << 20,
        data_page_version="1.0",
        dictionary_pagesize_limit=1 << 20,
        write_batch_size=1024,
        store_schema=True,
        write_page_checksum=True,
    ) as writer:
        for start in range(0, table.num_rows, ROW_GROUP_ROWS):
            # Pages end where Arrow chunks end, so a row group must be one chunk; only that much is in memory twice.
            group = table.slice(start, ROW_GROUP_ROWS).combine_chunks()
            writer.write_table(group, row_group_size=ROW_GROUP_ROWS)
        writer.add_key_value_metadata(
            {f"strandline.{key}": value for key, value in identity.items()} | {"strandline.rows": str(rows.num_rows)}
        )


def _worth_a_dictionary(table: pa.Table) -> list[str]:
    """Columns whose values repeat, judged by the first rows of the table, so that the same rows give the same bytes. A
    dictionary of distinct values takes longest to write, and is discarded in the end."""
    import pyarrow as pa
    import pyarrow.compute as pc

    first = table.slice(0, _SAMPLE_ROWS)

    def repeats(field: pa.Field[Any]) -> bool:
        if pa.types.is_nested(field.type) or pa.types.is_null(field.type):
            return True
        distinct = cast("Any", pc).count_distinct(first.column(field.name)).as_py()
        return bool(distinct * 2 <= first.num_rows)

    return [field.name for field in table.schema if repeats(field)]


_SAMPLE_ROWS = 8192


def _quoted(name: str) -> str:
    if any(c in name for c in ',"\r\n') or name != name.strip():
        return '"' + name.replace('"', '""') + '"'
    return name


@contextmanager
def _compressing(compression: str, out: _Hashing) -> Iterator[IO[bytes]]:
    match compression:
        case "gz":
            # No time and no name in the header.
            with gzip.GzipFile(filename="", mode="wb", compresslevel=_GZIP_LEVEL, fileobj=out, mtime=0) as zipped:
                yield cast("IO[bytes]", zipped)
        case "zst":
            import zstandard

            with zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True, threads=0).stream_writer(
                cast("IO[bytes]", out), closefd=False
            ) as squeezed:
                yield cast("IO[bytes]", squeezed)
        case _:
            yield cast("IO[bytes]", out)


def digest_of(file: IO[bytes]) -> tuple[str, int]:
    hashing, size = hashlib.sha256(), 0
    while piece := file.read(_READ_BYTES):
        hashing.update(piece)
        size += len(piece)
    return f"sha256:{hashing.hexdigest()}", size
