"""Encodes rows as the body of a request. The same rows give the same bytes, however Arrow divides them.

Everything that a library might choose by itself is fixed here. Compression is around the whole body, for both formats,
so that a receiver limits decompression in one place. Measured with 5,000 rows of 192 bytes: zstd's first level takes
2.2 ms for 312 kB, its third 3.6 ms for 281 kB; gzip's sixth 25 ms for 331 kB. Arrow compressed buffer by buffer takes a
quarter longer than as a whole and is a tenth smaller.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING

from strandline.core import forward_protocol
from strandline.core.errors import UsageError
from strandline.deliver.send.digests import made_by
from strandline.deliver.sink import ChunkRows, Landed
from strandline.deliver.sinks.chunk_rows import check_rows, joined_lines, numbers_in_order

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = {"jsonl": forward_protocol.JSON_LINES, "arrow": forward_protocol.ARROW}
COMPRESSIONS: dict[str, str | None] = {"zstd": "zstd", "gzip": "gzip", "none": None}
_ZSTD_LEVEL = 1
_GZIP_LEVEL = 6


@dataclass(frozen=True, slots=True)
class BodyFormat:
    name: str
    compression: str

    @property
    def form(self) -> str:
        """What the chunks hold: see `Sink.form`."""
        return "rows" if self.name == "arrow" else self.name

    @property
    def headers(self) -> dict[str, str]:
        encoding = COMPRESSIONS[self.compression]
        return {"Content-Type": FORMATS[self.name]} | ({"Content-Encoding": encoding} if encoding else {})


@dataclass(frozen=True, slots=True)
class RequestBody:
    content: bytes = field(repr=False)
    rows: int
    digest: str  # of the content, as the receiver spells it: `sha256:` and hex
    encoder: str

    @property
    def recorded(self) -> str:
        """The digest as the ledger stores it, with the encoder of the bytes, because nobody keeps the bytes."""
        return made_by(self.digest, self.encoder)


def choose_body_format(name: str, compression: str) -> BodyFormat:
    if name not in FORMATS:
        raise UsageError(f"format cannot be {name!r}", hint=f"It is one of: {', '.join(FORMATS)}.")
    if compression not in COMPRESSIONS:
        raise UsageError(f"compression cannot be {compression!r}", hint=f"It is one of: {', '.join(COMPRESSIONS)}.")
    return BodyFormat(name, compression)


def encode_body(chunk: ChunkRows, how: BodyFormat) -> RequestBody:
    check_rows(chunk)
    numbers_in_order(chunk)
    plain = _arrow(chunk.rows) if how.name == "arrow" else b"".join(joined_lines(chunk.rows, chunk.rows.num_rows))
    content = _compressed(plain, how.compression)
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return RequestBody(content, chunk.rows.num_rows, digest, encoder_of(how))


@cache
def encoder_of(how: BodyFormat) -> str:
    """What the bytes depend on beside the rows. Spark makes the lines; pyarrow packs Spark's rows as Arrow."""
    lines = f"{how.name}-{version('pyspark' if how.name == 'jsonl' else 'pyarrow')}"
    match how.compression:
        case "zstd":
            import zstandard

            return f"{lines}+zstd-{'.'.join(map(str, zstandard.ZSTD_VERSION))}"
        case "gzip":
            return f"{lines}+gzip-{zlib.ZLIB_RUNTIME_VERSION}"
    return lines


def _arrow(rows: pa.Table) -> bytes:
    """An IPC stream of one batch. Memory under a null or beside a slice is not part of the rows; the copy by `take`
    leaves it behind. The cast drops the table's metadata, and which columns it declared as not null."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import ipc

    plain = rows.cast(pa.schema([pa.field(f.name, f.type) for f in rows.schema])).combine_chunks()
    copied = plain.take(np.arange(plain.num_rows)).combine_chunks()
    out = io.BytesIO()
    options = ipc.IpcWriteOptions(metadata_version=pa.MetadataVersion.V5, compression=None, use_threads=False)
    with ipc.new_stream(out, copied.schema, options=options) as writer:
        writer.write_table(copied)
    return out.getvalue()


def _compressed(plain: bytes, compression: str) -> bytes:
    match compression:
        case "zstd":
            import zstandard

            return zstandard.ZstdCompressor(
                level=_ZSTD_LEVEL, write_checksum=True, write_content_size=True, threads=0
            ).compress(plain)
        case "gzip":
            return gzip.compress(plain, _GZIP_LEVEL, mtime=0)
    return plain


def rehearse(how: BodyFormat, chunk: ChunkRows) -> Landed:
    body = encode_body(chunk, how)
    return Landed(body.rows, body.recorded, len(body.content))
