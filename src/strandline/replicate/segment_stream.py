"""The wire format of a segment's rows: an Arrow IPC stream with digests, which its reader verifies.

The first batch has no rows. Its custom metadata name the request, so that a reader notices an answer to another one.
Each further batch carries the digest of all bytes before it. The last batch has no rows either, and also carries the
number of rows and the last sequence number. So a reader knows that a batch arrived unchanged as soon as it has the next
message, and at the end that nothing is missing. If the stream breaks off, it keeps the verified rows and requests the
rest.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from strandline.core.errors import SegmentDamaged
from strandline.core.types import SEQ_COLUMN, Seq

if TYPE_CHECKING:
    import pyarrow as pa

MEDIA_TYPE = "application/vnd.apache.arrow.stream"

_DIGEST, _ROWS, _LAST = b"strandline.digest", b"strandline.rows", b"strandline.last"
_REQUEST = b"strandline.asked"


def request_name(dataset: str, lo: int, hi: int, behind: int, only_numbers: bool) -> bytes:
    """Identifies the request that a stream answers."""
    return f"{dataset} {lo} {hi} {behind} {only_numbers}".encode()


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """The totals at the end of a stream."""

    rows: int
    last: Seq | None  # None: no rows
    digest: str  # of all bytes before


class _Hashed(io.RawIOBase):
    """Hashes all bytes that pass."""

    def __init__(self) -> None:
        super().__init__()
        self.digest = hashlib.sha256()

    @property
    def hexdigest(self) -> bytes:
        return self.digest.hexdigest().encode()


class _Written(_Hashed):
    """A buffer that Arrow writes to; `take` returns and removes its bytes."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    def write(self, part: Any) -> int:
        copied = bytes(part)
        self.digest.update(copied)
        self._parts.append(copied)
        return len(copied)

    def writable(self) -> bool:
        return True

    def take(self) -> bytes:
        taken, self._parts = b"".join(self._parts), []
        return taken


def encode(schema: pa.Schema, batches: Iterable[pa.RecordBatch], request: bytes = b"") -> Iterator[bytes]:
    """The bytes of the stream, one message at a time. The batches must be in the order of sequence numbers. `request`:
    as `request_name` returns it."""
    import pyarrow as pa

    file, rows, last = _Written(), 0, 0
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    nothing = pa.RecordBatch.from_pylist([], schema)
    with pa.ipc.new_stream(pa.PythonFile(file, mode="w"), schema, options=options) as writer:
        # With the first batch, Arrow writes the schema.
        writer.write_batch(nothing, custom_metadata={_REQUEST: request})
        for batch in batches:
            if batch.num_rows:
                writer.write_batch(batch, custom_metadata={_DIGEST: file.hexdigest})
                rows, last = rows + batch.num_rows, int(batch.column(SEQ_COLUMN)[-1].as_py())
                yield file.take()
        end = {_DIGEST: file.hexdigest, _ROWS: b"%d" % rows, _LAST: b"%d" % last}
        writer.write_batch(nothing, custom_metadata=end)
    yield file.take()


class Readable(Protocol):
    """A body as it arrives. Returns fewer than `size` bytes only at its end."""

    def read(self, size: int) -> bytes: ...


class _ReadBody(_Hashed):
    """A body that Arrow reads from."""

    def __init__(self, body: Readable) -> None:
        super().__init__()
        self._body = body

    def read(self, size: int = -1) -> bytes:
        part = self._body.read(size)
        self.digest.update(part)
        return part

    def readable(self) -> bool:
        return True


class SegmentReader:
    """Reads a stream. Yields a batch when the message after it has verified it. Raises SegmentDamaged if bytes were
    changed on the way, if the stream ends too early, or if it answers another request; batches yielded before that are
    good. The schema is verified once the first batch was yielded, or the end was read."""

    def __init__(self, body: Readable, *, behind: int = 0, request: bytes = b"") -> None:
        self._file = _ReadBody(body)
        self._behind = behind
        self._request = request
        self._reader = self._open()
        self.schema: pa.Schema = self._reader.schema
        self.end: SegmentEnd | None = None

    def _open(self) -> pa.ipc.RecordBatchStreamReader:
        import pyarrow as pa

        try:
            return pa.ipc.open_stream(pa.PythonFile(self._file, mode="r"))
        except (pa.ArrowException, OSError, EOFError) as e:
            raise _damaged(f"its beginning cannot be read ({e})") from e

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        unverified, metadata = self._next()
        if metadata.get(_REQUEST, b"") != self._request:
            raise _damaged("it answers another request")
        rows, last = 0, self._behind
        while self.end is None:
            before = self._file.hexdigest
            batch, metadata = self._next()
            if metadata.get(_DIGEST) != before:
                raise _damaged("its bytes were changed on the way")
            if unverified.num_rows:
                last = _check_order(unverified, last)
                rows += unverified.num_rows
                yield unverified
            unverified = batch
            if _ROWS in metadata:
                self.end = _end_of(metadata, before)
        if self.end.rows != rows or (self.end.last or self._behind) != last:
            raise _damaged(f"it has {rows} rows up to {last}, and should have {self.end.rows} up to {self.end.last}")

    def _next(self) -> tuple[pa.RecordBatch, dict[bytes, bytes]]:
        import pyarrow as pa

        try:
            found = self._reader.read_next_batch_with_custom_metadata()
            found.batch.validate()
        except StopIteration as e:
            raise _damaged("it ended before it was complete") from e
        except (pa.ArrowException, OSError, EOFError, ValueError) as e:
            raise _damaged(f"it cannot be read ({e})") from e
        return found.batch, dict(found.custom_metadata or {})


def _end_of(metadata: Mapping[bytes, bytes], digest: bytes) -> SegmentEnd:
    """The totals in the last message. No digest covers this message itself."""
    try:
        rows, last = int(metadata[_ROWS]), int(metadata[_LAST])
    except (KeyError, ValueError) as e:
        raise _damaged("its end cannot be read") from e
    return SegmentEnd(rows, Seq(last) if last else None, digest.decode())


def _check_order(batch: pa.RecordBatch, last: int) -> int:
    import numpy as np

    numbers = batch.column(SEQ_COLUMN).to_numpy()
    if numbers[0] <= last or (np.diff(numbers) <= 0).any():
        raise _damaged("its rows are not in the order of their sequence numbers")
    return int(numbers[-1])


def _damaged(why: str) -> SegmentDamaged:
    return SegmentDamaged(f"what the leader sent cannot be used: {why}", hint="The follower requests it again.")
