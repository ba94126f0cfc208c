"""A table's Parquet files as tasks read them without Spark, and when that is correct.

It is if there are no delete files, only one schema since the beginning, and plain columns.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import types as T

from strandline.core.types import SEQ_COLUMN
from strandline.deliver.context import DeliverContext
from strandline.iceberg import parquet_rows
from strandline.iceberg.metadata.table_metadata import TableView
from strandline.iceberg.parquet_rows import BATCH_ROWS, row_groups, rows_per_batch
from strandline.iceberg.spark.tables import DataFile
from strandline.read.settled_view import SettledView
from strandline.storage.s3_settings import S3Settings

if TYPE_CHECKING:
    import pyarrow as pa

FILES_MAX = 2000
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
    files = context.tables.settled.data_files(source.dataset.name, view.main, after, until, files_max=FILES_MAX)
    if files is None or not all(f.is_parquet and not f.has_deletes for f in files):
        return None
    return sorted(files, key=lambda f: f.lo)


def are_disjoint(files: Sequence[DataFile]) -> bool:
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

    with parquet_rows.opened(location, store) as file:
        groups, whole = row_groups(file, lo, hi)
        few = rows_per_batch(file, groups, rows_max)
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


def in_order(location: str, store: S3Settings, lo: int, hi: int) -> bool:
    """Whether the file's rows are in the order of their sequence numbers, each number once, in all row groups that may
    hold numbers between these two. Reads only the numbers."""
    with parquet_rows.opened(location, store) as file:
        return parquet_rows.in_order(file, row_groups(file, lo, hi)[0])
