"""Reads the row count and the sequence numbers of a Parquet file from its footer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.core.types import SEQ_COLUMN, Seq, SeqRange

_MAGIC = b"PAR1"
_TRAILER_BYTES = 8
_FIRST_BYTES = 64 << 10
_FOOTER_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class Footer:
    row_count: int
    rows: SeqRange | None  # None if the footer does not say, or rows lack a sequence number


def read_footer(tail: Callable[[int], bytes], size: int) -> Footer | None:
    """None if it is not a readable Parquet file. `tail` returns so many bytes from the end of the file."""
    end = tail(min(size, _FIRST_BYTES))
    if len(end) < _TRAILER_BYTES or end[-4:] != _MAGIC:
        return None
    needed = int.from_bytes(end[-_TRAILER_BYTES:-4], "little") + _TRAILER_BYTES
    if needed > min(size, _FOOTER_BYTES_MAX):
        return None
    if needed > len(end):
        end = tail(needed)
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        found = pq.read_metadata(pa.BufferReader(end))
        return Footer(found.num_rows, _rows(found))
    except Exception:
        return None  # untrusted bytes may make the reader raise anything


def _rows(metadata: object) -> SeqRange | None:
    found = metadata
    schema = found.schema  # type: ignore[attr-defined]
    column = next((n for n in range(len(schema)) if schema.column(n).path == SEQ_COLUMN), None)
    groups = range(found.num_row_groups)  # type: ignore[attr-defined]
    if column is None or not groups:
        return None
    statistics = [found.row_group(n).column(column).statistics for n in groups]  # type: ignore[attr-defined]
    if any(s is None or not s.has_min_max or s.null_count for s in statistics):
        return None
    lo, hi = min(s.min for s in statistics), max(s.max for s in statistics)
    return SeqRange(Seq(lo), Seq(hi)) if isinstance(lo, int) and isinstance(hi, int) and 1 <= lo <= hi else None
