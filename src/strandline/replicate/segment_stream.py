"""The rows of a segment on the wire: an Arrow IPC stream that proves what it brings.

The first batch has no rows and says, in its custom metadata, what was asked for: an answer to another request is not
taken for this one's. Each further one carries the digest of all bytes before it. The last one has no rows either, and
also carries the number of rows and the last sequence number. So whoever reads it knows of each batch, as soon as the
next message is there, that it arrived unchanged, and of the whole that nothing is missing. Rows of a stream that was
cut off can be kept, and the rest asked for behind them.
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
_ASKED = b"strandline.asked"


def request_name(dataset: str, lo: int, hi: int, behind: int, only_numbers: bool) -> bytes:
    """What a stream answers."""
    return f"{dataset} {lo} {hi} {behind} {only_numbers}".encode()


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """What the leader says at the end of a stream."""

    rows: int
    last: Seq | None  # None: no rows
    digest: str  # of all bytes before


class _Written(io.RawIOBase):
    """A file whose bytes are taken out as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.digest = hashlib.sha256()
        self._parts: list[bytes] = []

    def write(self, part: Any) -> int:
        copied = bytes(part)
        self.digest.update(copied)
        self._parts.append(copied)
        return len(copied)

    @property
    def hexdigest(self) -> bytes:
        return self.digest.hexdigest().encode()

    def writable(self) -> bool:
        return True

    def take(self) -> bytes:
        taken, self._parts = b"".join(self._parts), []
        return taken


def encode(schema: pa.Schema, batches: Iterable[pa.RecordBatch], asked: bytes = b"") -> Iterator[bytes]:
    """The bytes of the stream, one message at a time. The batches must be in the order of sequence numbers. `asked`:
    its `request_name`."""
    import pyarrow as pa

    file, rows, last = _Written(), 0, 0
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    nothing = pa.RecordBatch.from_pylist([], schema)
    with pa.ipc.new_stream(pa.PythonFile(file, mode="w"), schema, options=options) as writer:
        writer.write_batch(nothing, custom_metadata={_ASKED: asked})  # with the first batch, Arrow writes the schema
        for batch in batches:
            if batch.num_rows:
                writer.write_batch(batch, custom_metadata={_DIGEST: file.hexdigest})
                rows, last = rows + batch.num_rows, int(batch.column(SEQ_COLUMN)[-1].as_py())
                yield file.take()
        end = {_DIGEST: file.hexdigest, _ROWS: b"%d" % rows, _LAST: b"%d" % last}
        writer.write_batch(nothing, custom_metadata=end)
    yield file.take()


class Readable(Protocol):
    """A body as it arrives. Returns fewer bytes than asked for at its end only."""

    def read(self, size: int) -> bytes: ...


class _Read(io.RawIOBase):
    """Counts and hashes what is read."""

    def __init__(self, body: Readable) -> None:
        super().__init__()
        self.digest = hashlib.sha256()
        self._body = body

    def read(self, size: int = -1) -> bytes:
        part = self._body.read(size)
        self.digest.update(part)
        return part

    @property
    def hexdigest(self) -> bytes:
        return self.digest.hexdigest().encode()

    def readable(self) -> bool:
        return True


class SegmentReader:
    """Reads a stream. Iterating gives each batch once the message behind it has proven it. Raises SegmentDamaged if
    something was changed on the way, if the stream ends too early, or if it answers another request; the batches that
    were given before are good. The schema is proven once the first batch was given, or the end was reached."""

    def __init__(self, body: Readable, *, behind: int = 0, asked: bytes = b"") -> None:
        self._file = _Read(body)
        self._behind = behind
        self._asked = asked
        self._reader = self._opened()
        self.schema: pa.Schema = self._reader.schema
        self.end: SegmentEnd | None = None

    def _opened(self) -> pa.ipc.RecordBatchStreamReader:
        import pyarrow as pa

        try:
            return pa.ipc.open_stream(pa.PythonFile(self._file, mode="r"))
        except (pa.ArrowException, OSError, EOFError) as e:
            raise _damaged(f"it does not begin as it must ({e})") from e

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        unproven, said = self._next()
        if said.get(_ASKED, b"") != self._asked:
            raise _damaged("it answers another request")
        rows, last = 0, self._behind
        while self.end is None:
            before = self._file.hexdigest
            batch, said = self._next()
            if said.get(_DIGEST) != before:
                raise _damaged("its bytes are not those that were sent")
            if unproven.num_rows:
                last = _check_order(unproven, last)
                rows += unproven.num_rows
                yield unproven
            unproven = batch
            if _ROWS in said:
                self.end = _end_of(said, before)
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


def _end_of(said: Mapping[bytes, bytes], digest: bytes) -> SegmentEnd:
    """What the last message says of all rows. No digest covers this message itself."""
    try:
        rows, last = int(said[_ROWS]), int(said[_LAST])
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
    return SegmentDamaged(f"what the leader sent cannot be used: {why}", hint="It is asked for again.")
