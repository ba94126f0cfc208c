"""The planning scan without Spark's SQL: tasks read sequence numbers and columns of varying size from Parquet files.

It makes the same portions as `size_scan_spark`, in a fraction of the time if a plan is small.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from strandline.core.types import SEQ_COLUMN, SEQ_MAX
from strandline.deliver.context import DeliverContext
from strandline.deliver.plan.chunking import RowPortion
from strandline.deliver.plan.size_scan_spark import PORTIONS_PER_CHUNK, portion_rows, width
from strandline.deliver.send import data_files
from strandline.deliver.send.data_files import are_disjoint
from strandline.deliver.sink_options import DeliveryOptions
from strandline.iceberg.spark.java_errors import explaining
from strandline.iceberg.spark.tables import DataFile
from strandline.storage.s3_settings import S3Settings

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

_SMALL_ROWS_MAX = 20_000
# A file of at least so many chunks gets chunks of its own. One more chunk per such file is negligible.
_LARGE_FILE_CHUNKS = 10


def scan_files(
    context: DeliverContext,
    files: Sequence[DataFile],
    fields: Sequence[T.StructField],
    after: int,
    until: int,
    options: DeliveryOptions,
) -> list[RowPortion] | None:
    """Sorted portions. If files have sequence numbers between each other's, their portions are merged by number. None
    if a merged portion is too heavy for a chunk: only a scan of all rows in order can cut it."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if not files:
        return []
    apart = are_disjoint(files)
    spark_context = context.tables.settled.spark.sparkContext
    varying = [f for f in fields if isinstance(f.dataType, T.StringType | T.BinaryType)]
    work = _Weighing(
        to_arrow_schema(T.StructType([T.StructField(SEQ_COLUMN, T.LongType()), *varying])),
        sum(width(f.dataType) for f in fields),
        portion_rows(options),
        options.chunk_bytes_max if apart else SEQ_MAX,
        after,
        until,
        S3Settings.of_warehouse(context.config.settings.warehouse),
    )
    locations = [f.location for f in files]
    tasks = min(len(files), spark_context.defaultParallelism * 4)
    with explaining("the rows cannot be planned"):
        if sum(f.rows for f in files) <= _SMALL_ROWS_MAX:  # a job would cost more than the whole scan
            found = list(work.run(locations))
        else:
            found = spark_context.parallelize(locations, tasks).mapPartitions(work.run).collect()  # one row per portion
    if apart:
        return sorted(found, key=lambda p: p.first)
    return _merged_by_bucket(found, portion_rows(options), options.chunk_bytes_max)


def _merged_by_bucket(portions: Sequence[RowPortion], rows_max: int, bytes_max: int) -> list[RowPortion] | None:
    by_bucket: dict[int, RowPortion] = {}
    for p in portions:
        one = by_bucket.get(p.first // rows_max, p)
        if one is not p:
            one = RowPortion(min(one.first, p.first), max(one.last, p.last), one.rows + p.rows, one.size + p.size)
        by_bucket[p.first // rows_max] = one
    if any(p.size > bytes_max and p.rows > 1 for p in by_bucket.values()):
        return None
    return [p for _, p in sorted(by_bucket.items())]


@dataclass(frozen=True)
class _Weighing:
    columns: pa.Schema  # the sequence number, and the columns of varying size
    fixed: int  # bytes of the other columns
    rows_max: int
    bytes_max: int
    after: int
    until: int
    store: S3Settings

    def run(self, locations: Iterable[str]) -> Iterator[Any]:
        import numpy as np

        for location in locations:
            numbers, sizes = [], []
            for part in data_files.parts(location, self.store, self.columns, self.after + 1, self.until):
                numbers.append(part[SEQ_COLUMN].to_numpy())
                sizes.append(self._sizes(part))
            if numbers:
                weights = np.concatenate(sizes)
                found = divide_file_rows(np.concatenate(numbers), weights, self.rows_max, self.bytes_max)
                chunks = max(len(weights) / (self.rows_max * PORTIONS_PER_CHUNK), weights.sum() / self.bytes_max)
                if chunks >= _LARGE_FILE_CHUNKS:
                    found[-1] = replace(found[-1], ends_file=True)
                yield from found

    def _sizes(self, part: pa.Table) -> npt.NDArray[Any]:
        import numpy as np
        import pyarrow.compute as pc

        total = np.full(part.num_rows, self.fixed, dtype=np.int64)
        for name in self.columns.names[1:]:
            total += pc.fill_null(pc.binary_length(part[name]), 0).to_numpy().astype(np.int64)
        return total


def divide_file_rows(
    numbers: npt.NDArray[Any], sizes: npt.NDArray[Any], rows_max: int, bytes_max: int
) -> list[RowPortion]:
    """Pieces of one file's rows, which come in any order: cut by sequence number, and by weight if too heavy. A row
    that is too heavy by itself becomes a portion of its own."""
    import numpy as np

    if (np.diff(numbers) < 0).any():
        order = np.argsort(numbers, kind="stable")
        numbers, sizes = numbers[order], sizes[order]
    half = max(1, bytes_max // 2)
    large = sizes > half
    before = np.cumsum(sizes) - sizes
    # A portion begins with a new bucket of numbers, with each half of the running weight, and at and after a large row.
    begins = (np.diff(numbers // rows_max) != 0) | (np.diff(before // half) != 0) | large[1:] | large[:-1]
    starts = np.concatenate(([0], np.flatnonzero(begins) + 1))
    ends = np.append(starts[1:], len(numbers))
    measured = (numbers[starts], numbers[ends - 1], ends - starts, np.add.reduceat(sizes, starts))
    return [RowPortion(*one) for one in zip(*(m.tolist() for m in measured), strict=True)]
