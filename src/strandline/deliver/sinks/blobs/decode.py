"""Reads objects back: how many rows they hold, and what is wrong with them."""

from __future__ import annotations

import gzip
import zlib
from typing import IO, TYPE_CHECKING, Any, cast

from strandline.core.text.wording import plural
from strandline.core.types import SEQ_COLUMN, SeqRange
from strandline.deliver.sink import Inspected
from strandline.deliver.sinks.blobs.encode import digest_of
from strandline.deliver.sinks.blobs.names import extension_of

if TYPE_CHECKING:
    import pyarrow as pa

_READ_BYTES = 1 << 20
_BATCH_ROWS = 65_536

GONE = Inspected(None, None, "the object is gone")


class _Bad(Exception):
    """Says what is wrong with an object."""


def inspect(file: IO[bytes], name: str, rows: SeqRange, identity: dict[str, str]) -> Inspected:
    """Reads the whole object: the digest of its bytes, and the rows that they decode to."""
    digest, _ = digest_of(file)
    file.seek(0)
    try:
        return Inspected(_count(file, name, rows, identity), digest)
    except _Bad as e:
        return Inspected(None, digest, str(e))


def count_rows(file: IO[bytes], name: str) -> int | None:
    """The rows of an object whose content is not in doubt; None if it cannot be read after all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if name.endswith(".parquet"):
            return int(pq.ParquetFile(file).metadata.num_rows)
        return _count_text(file, name)
    except (_Bad, pa.ArrowException, OSError):
        return None


def _count(file: IO[bytes], name: str, rows: SeqRange, identity: dict[str, str]) -> int:
    if name.endswith(".parquet"):
        return _count_parquet(file, rows, identity)
    return _count_text(file, name)


def _count_parquet(file: IO[bytes], rows: SeqRange, identity: dict[str, str]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        parquet = pq.ParquetFile(file, page_checksum_verification=True)
        said = {k.decode(): v.decode() for k, v in (parquet.metadata.metadata or {}).items() if k.startswith(b"strand")}
        for key, expected in identity.items():
            if (found := said.get(f"strandline.{key}", expected)) != expected:
                raise _Bad(f"it says that its {key} is {found}, and lies where {expected} should be")
        count, last = 0, rows.lo - 1
        for batch in parquet.iter_batches(batch_size=_BATCH_ROWS):
            last = _check_numbers(batch, last, rows)
            count += batch.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as e:
        raise _Bad(f"it cannot be read as Parquet: {_first_line(e)}") from e
    if count != parquet.metadata.num_rows:
        raise _Bad(f"it holds {plural(count, 'row')} and says that it holds {parquet.metadata.num_rows}")
    return count


def _check_numbers(batch: pa.RecordBatch, last: int, rows: SeqRange) -> int:
    """Returns the last sequence number. Raises _Bad unless the numbers increase and are inside the range."""
    import pyarrow.compute as pc

    if batch.schema.get_field_index(SEQ_COLUMN) < 0 or batch.num_rows == 0:
        return last
    import numpy as np

    column = batch.column(SEQ_COLUMN)
    if column.null_count:
        raise _Bad("a row in it has no sequence number")
    numbers = cast("Any", pc).cast(column, "int64").to_numpy()
    before = np.concatenate(([last], numbers[:-1]))
    wrong = np.flatnonzero(numbers <= before)
    if len(wrong):
        number = int(numbers[wrong[0]])
        if number < rows.lo:
            raise _Bad(f"the sequence number {number} in it is outside {rows}")
        raise _Bad(f"the sequence number {number} is in it twice, or out of order")
    if int(numbers[-1]) > rows.hi:
        raise _Bad(f"the sequence number {int(numbers[-1])} in it is outside {rows}")
    return int(numbers[-1])


def _count_text(file: IO[bytes], name: str) -> int:
    import zstandard

    extension = extension_of(name)
    try:
        with decompressing(file, extension) as text:
            count = _count_records(text, quoting=extension.startswith("csv"))
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as e:
        raise _Bad(f"it cannot be decompressed: {_first_line(e)}") from e
    if extension.startswith("csv"):
        if count == 0:
            raise _Bad("its header is missing")
        return count - 1
    return count


def decompressing(file: IO[bytes], extension: str) -> IO[bytes]:
    if extension.endswith(".gz"):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=file, mode="rb"))
    if extension.endswith(".zst"):
        import zstandard

        return cast("IO[bytes]", zstandard.ZstdDecompressor().stream_reader(file, closefd=False))
    return file


def _count_records(text: IO[bytes], *, quoting: bool) -> int:
    """Counts line ends; in CSV those outside quotes. Quotes inside a quoted value are doubled, so they cancel out."""
    import numpy as np

    count, open_quote, last = 0, 0, b"\n"
    while piece := text.read(_READ_BYTES):
        last = piece[-1:]
        if quoting:
            data = np.frombuffer(piece, dtype=np.uint8)
            quotes = np.cumsum(data == ord('"'), dtype=np.int64) + open_quote
            count += int(np.count_nonzero((data == ord("\n")) & (quotes % 2 == 0)))
            open_quote = int(quotes[-1]) % 2
        else:
            count += piece.count(b"\n")
    if last != b"\n" or open_quote:
        raise _Bad("its last line is cut off")
    return count


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
