"""Finds the row groups of a Parquet file with given sequence numbers, and checks the order of its rows. pyarrow
only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from strandline.core.types import SEQ_COLUMN, SEQ_MAX
from strandline.storage.s3_settings import S3Settings

if TYPE_CHECKING:
    import pyarrow.parquet as pq

BATCH_ROWS = 1 << 16
_BUFFER_BYTES = 1 << 20
_BATCH_BYTES = 32 << 20


@contextmanager
def opened(location: str, store: S3Settings) -> Iterator[pq.ParquetFile]:
    """Opens a data file of a table, in a folder or in a bucket."""
    import pyarrow.parquet as pq
    from pyarrow import fs  # noqa: TID251 - data files of tables are read here, with the options that `storage` gives

    # Local files are read as needed; from S3, the columns of a whole row group are fetched at once.
    is_s3 = location.startswith("s3://")
    files: fs.FileSystem = fs.S3FileSystem(**store.pyarrow_options()) if is_s3 else fs.LocalFileSystem()
    path = location.removeprefix("s3://").removeprefix("file://").removeprefix("file:")
    with (
        files.open_input_file(path) as handle,
        pq.ParquetFile(handle, pre_buffer=is_s3, buffer_size=0 if is_s3 else _BUFFER_BYTES) as file,
    ):
        yield file


def row_groups(file: pq.ParquetFile, lo: int, hi: int) -> tuple[list[int], bool]:
    """The row groups that may have sequence numbers from `lo` to `hi`, and whether they have no other numbers."""
    bounds = [bound or (0, SEQ_MAX) for bound in footer_bounds(file.metadata)]
    groups = [g for g, (first, last) in enumerate(bounds) if lo <= last and first <= hi]
    return groups, all(lo <= bounds[g][0] and bounds[g][1] <= hi for g in groups)


def footer_bounds(footer: pq.FileMetaData, name: str = SEQ_COLUMN) -> list[tuple[int, int] | None]:
    """The lowest and the highest sequence number of each row group. None if the footer has no bounds, or if a row of
    the group has no number: then the bounds would not hold for all rows."""
    # The footer lists leaf columns: a struct counts as several.
    column = next((i for i in range(len(footer.schema)) if footer.schema.column(i).path == name), None)
    if column is None:
        return [None] * footer.num_row_groups
    return [_bounds(footer.row_group(g).column(column).statistics) for g in range(footer.num_row_groups)]


def _bounds(statistics: Any) -> tuple[int, int] | None:
    if statistics is None or not statistics.has_min_max or not statistics.has_null_count or statistics.null_count:
        return None
    lo, hi = statistics.min, statistics.max
    return (lo, hi) if isinstance(lo, int) and isinstance(hi, int) else None


def rows_per_batch(file: pq.ParquetFile, groups: Sequence[int], rows_max: int = BATCH_ROWS) -> int:
    """A batch size that keeps memory small, by the average row size in the footer."""
    rows = sum(file.metadata.row_group(g).num_rows for g in groups)
    total_bytes = sum(file.metadata.row_group(g).total_byte_size for g in groups)
    return max(1, min(rows_max, _BATCH_BYTES * rows // max(1, total_bytes)))


def in_order(file: pq.ParquetFile, groups: Sequence[int]) -> bool:
    """Whether the rows in these row groups are in the order of their sequence numbers, without duplicates. Reads only
    the numbers."""
    import numpy as np

    last = -1
    for batch in file.iter_batches(BATCH_ROWS, row_groups=list(groups), columns=[SEQ_COLUMN], use_threads=False):
        numbers = batch.column(0).drop_null().to_numpy()
        if len(numbers) and (numbers[0] <= last or (np.diff(numbers) <= 0).any()):
            return False
        last = int(numbers[-1]) if len(numbers) else last
    return True
