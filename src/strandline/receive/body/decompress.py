"""Decompresses bodies under a limit: bytes beyond it never get into memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa

from strandline.core.errors import BadRow

_STEP_BYTES = 1 << 20


class TooLarge(Exception):
    def __init__(self, limit: int, what: str) -> None:
        super().__init__(f"{what}; the limit is {limit:,} bytes")
        self.limit = limit


def unpack(body: bytes, encoding: str, bytes_max: int) -> bytes | memoryview:
    """The whole body, in one buffer. Concatenated streams are one body. Raises BadRow if truncated, or TooLarge."""
    if encoding == "identity":
        return next(decompress_chunks(body, encoding, bytes_max), b"")
    # The OS commits a page when it is written: the buffer takes no more than the body, and is never copied to grow.
    whole = np.empty(bytes_max, np.uint8).data
    size = 0
    for piece in decompress_chunks(body, encoding, bytes_max):
        whole[size : size + len(piece)] = piece
        size += len(piece)
    return whole[:size]


def decompress_chunks(body: bytes, encoding: str, bytes_max: int) -> Iterator[bytes]:
    """`encoding` is one of forward_protocol.ENCODINGS."""
    if encoding == "identity":
        if len(body) > bytes_max:
            raise TooLarge(bytes_max, f"the body has {len(body):,} bytes")
        yield body
        return
    size = 0
    try:
        codec = cast("Literal['gzip', 'zstd']", encoding)
        with pa.CompressedInputStream(cast("Any", pa.BufferReader(body)), codec) as stream:
            while piece := stream.read(min(_STEP_BYTES, bytes_max + 1 - size)):
                size += len(piece)
                if size > bytes_max:
                    raise TooLarge(bytes_max, "the body has more bytes after decompression")
                yield piece
    except OSError as e:
        raise BadRow(None, f"the body cannot be decompressed as {encoding}: it is damaged or truncated") from e
