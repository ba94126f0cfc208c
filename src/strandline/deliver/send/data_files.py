"""A table's Parquet files as tasks read them without Spark, and when that is correct.

It is if there are no delete files, only one schema since the beginning, and plain columns.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from strandline.core.types import SEQ_COLUMN, SEQ_MAX
from strandline.deliver.context import DeliverContext
from strandline.iceberg.metadata.table_metadata import TableView
from strandline.iceberg.spark.tables import DataFile
from strandline.read.settled_view import SettledView
from strandline.storage.s3_settings import S3Settings

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

FILES_MAX = 2000
BATCH_ROWS = 1 << 16
_BATCH_BYTES = 32 << 20
_BUFFER_BYTES = 1 << 20
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN_TYPES = (
    T.BooleanType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType, T.DateType, T.StringType, T.BinaryType,
    T.TimestampType, T.TimestampNTZType, T.DecimalType,
)  # fmt: skip
_PLAIN_ICEBERG = frozenset({
    "boolean", "int", "long", "float", "double", "date", "string", "binary", "timestamp", "timestamptz", "decimal",
})  # fmt: skip


def plain_files(
    context: DeliverContext, source: SettledView, fields: Sequence[T.StructField], after: int, until: int
) -> list[DataFile] | None:
    """The files that may hold rows between these sequence numbers, sorted; None if they alone do not give the rows."""
    view = source.view
    fits = (
        view.main is not None
        and source.is_clean
        and source.all_numbered
        and not source.dataset.deliver_by
        and view.schemas == 1
        and "schema.name-mapping.default" not in view.properties
        and all(_is_plain(f, view) for f in fields)
    )
    if not fits or view.main is None:
        return None
    files = context.tables().data_files(source.dataset.name, view.main, after, until, files_max=FILES_MAX)
    if files is None or not all(f.is_parquet and not f.has_deletes for f in files):
        return None
    return sorted(files, key=lambda f: f.lo)


def one_after_the_other(files: Sequence[DataFile]) -> bool:
    """Whether no file has sequence numbers between those of another; `files` are sorted."""
    return all(a.hi < b.lo for a, b in itertools.pairwise(files))


def _is_plain(field: T.StructField, view: TableView) -> bool:
    """Iceberg's types distinguish what Spark's do not: a uuid is a string in Spark, and sixteen bytes in the file."""
    column = view.column(field.name)
    kind = "" if column is None else column["type"]
    return (
        isinstance(field.dataType, _PLAIN_TYPES)
        and isinstance(kind, str)
        and kind.partition("(")[0] in _PLAIN_ICEBERG
        and _PLAIN_NAME.fullmatch(field.name) is not None
    )


def parts(
    location: str,
    store: S3Settings,
    schema: pa.Schema,
    lo: int,
    hi: int,
    rows_max: int = BATCH_ROWS,
    *,
    ordered: bool = False,
) -> Iterator[pa.Table]:
    """The rows of one file between two sequence numbers, in small tables: row groups may be larger than a chunk. With
    `ordered`, which the caller checked with `in_order`, reading ends after the last number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    with _opened(location, store) as file:
        groups, whole = _groups(file, lo, hi)
        few = _few_rows(file, groups, rows_max)
        for batch in file.iter_batches(few, row_groups=groups, columns=schema.names, use_threads=False):
            rows, last = pa.Table.from_batches([batch]), None
            if not whole and ordered and not rows[SEQ_COLUMN].null_count:
                numbers = rows[SEQ_COLUMN].to_numpy()
                start, end = int(numbers.searchsorted(lo, "left")), int(numbers.searchsorted(hi, "right"))
                rows, last = rows.slice(start, end - start), numbers[-1]
            elif not whole:
                rows = rows.filter((pc.field(SEQ_COLUMN) >= lo) & (pc.field(SEQ_COLUMN) <= hi))
            if rows.num_rows:  # one file may say that a column has no nulls, and the next may not
                yield rows.select(schema.names).cast(schema)
            if last is not None and last >= hi:
                return


def _few_rows(file: pq.ParquetFile, groups: Sequence[int], rows_max: int) -> int:
    """A batch size that keeps memory small, by the average row size in the footer: a task holds what it reads."""
    rows = sum(file.metadata.row_group(g).num_rows for g in groups)
    weight = sum(file.metadata.row_group(g).total_byte_size for g in groups)
    return max(1, min(rows_max, _BATCH_BYTES * rows // max(1, weight)))


def in_order(location: str, store: S3Settings, lo: int, hi: int) -> bool:
    """Whether the file's rows are in the order of their sequence numbers, each number once, in all row groups that may
    hold numbers between these two. Reads only the numbers."""
    import numpy as np

    last = -1
    with _opened(location, store) as file:
        groups, _ = _groups(file, lo, hi)
        for batch in file.iter_batches(BATCH_ROWS, row_groups=groups, columns=[SEQ_COLUMN], use_threads=False):
            numbers = batch.column(0).drop_null().to_numpy()
            if len(numbers) and (numbers[0] <= last or (np.diff(numbers) <= 0).any()):
                return False
            last = int(numbers[-1]) if len(numbers) else last
    return True


@contextmanager
def _opened(location: str, store: S3Settings) -> Iterator[pq.ParquetFile]:
    import pyarrow.parquet as pq
    from pyarrow import fs

    # Local files are read as needed; from S3, the columns of a whole row group are fetched at once.
    away = location.startswith("s3://")
    files: fs.FileSystem = fs.S3FileSystem(**store.pyarrow_options()) if away else fs.LocalFileSystem()
    path = location.removeprefix("s3://").removeprefix("file://").removeprefix("file:")
    with (
        files.open_input_file(path) as handle,
        pq.ParquetFile(handle, pre_buffer=away, buffer_size=0 if away else _BUFFER_BYTES) as file,
    ):
        yield file


def _groups(file: pq.ParquetFile, lo: int, hi: int) -> tuple[list[int], bool]:
    """The row groups that may hold numbers between these two, and whether they hold no others."""
    at = file.schema_arrow.get_field_index(SEQ_COLUMN)
    bounds = [_bounds(file.metadata.row_group(g).column(at).statistics) for g in range(file.num_row_groups)]
    groups = [g for g, (first, last) in enumerate(bounds) if lo <= last and first <= hi]
    return groups, all(lo <= bounds[g][0] and bounds[g][1] <= hi for g in groups)


def _bounds(statistics: Any) -> tuple[int, int]:
    if statistics is None or not statistics.has_min_max or not statistics.has_null_count or statistics.null_count:
        return 0, SEQ_MAX  # unknown, or rows without a number among them, which the filter drops
    return statistics.min, statistics.max
