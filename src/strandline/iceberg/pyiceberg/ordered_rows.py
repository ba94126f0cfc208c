"""The rows of a table between two sequence numbers, in their order, without a JVM and with bounded memory.

If no delete files apply, and each file is Parquet and in order, the files are merged: one batch of each file that is
being read is in memory. Otherwise the rows are read and sorted window by window. A window is a range of sequence
numbers, so it has at most as many rows as numbers.

Importing this imports PyIceberg: heavy paths only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.parser import parse
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from strandline.core.errors import DuplicateNumbers, TableUnfit
from strandline.core.types import SEQ_COLUMN, SEQ_MAX
from strandline.iceberg.arrow_nested import field_id as id_of
from strandline.iceberg.parquet_rows import in_order, row_groups, rows_per_batch
from strandline.iceberg.pyiceberg.arrow_values import from_file, to_iceberg
from strandline.iceberg.pyiceberg.delete_files import SnapshotDeletes
from strandline.iceberg.pyiceberg.errors import opening
from strandline.iceberg.pyiceberg.internals import projected
from strandline.iceberg.pyiceberg.number_bounds import number_bounds

WINDOW_ROWS = 1 << 16
_COMPACT = "`strandline compact` rewrites the files, in order and without deleted rows."
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class OrderedRows:
    """`schema` has the ids of the table's columns; `batches` yields each row once."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def read_ordered(
    table: Table, lo: int, hi: int, *, columns: Sequence[str] | None = None, window_rows: int = WINDOW_ROWS
) -> OrderedRows:
    """The rows from `lo` to `hi`. `columns` must have the sequence number; None: all columns, our own included. Raises
    DuplicateNumbers while iterating if two rows share a number, and TableUnfit for a table with equality deletes."""
    name = ".".join(table.name())
    with opening(name):
        schema = table.schema() if columns is None else table.schema().select(*columns)
        if lo > hi:
            return OrderedRows(schema_to_pyarrow(schema, include_field_ids=True), iter(()))
        tasks = plan_tasks(table, lo, hi)
        files = _ordered_files(table, schema, tasks, lo, hi)
        if files is None and (unsafe := [f.name for f in schema.fields if _loses_nulls(f.field_type)]):
            raise TableUnfit(
                f"{name} has delete files, or files that are not in order, and a column ({unsafe[0]}) that only Spark "
                "can read from such files",
                hint=_COMPACT,
            )
        rows = _by_window(table, schema, tasks, lo, hi, window_rows) if files is None else merged(files)
        arrow_schema = schema_to_pyarrow(schema, include_field_ids=True)
    return OrderedRows(arrow_schema, checked(rows, arrow_schema, name))


def has_rows(table: Table, lo: int, hi: int) -> bool:
    with opening(".".join(table.name())):
        return table.scan(row_filter=_between(lo, hi), selected_fields=(SEQ_COLUMN,), limit=1).to_arrow().num_rows > 0


def _between(lo: int, hi: int) -> BooleanExpression:
    return parse(f"{SEQ_COLUMN} >= {lo} AND {SEQ_COLUMN} <= {hi}")


def plan_tasks(table: Table, lo: int, hi: int) -> list[FileScanTask]:
    try:
        return list(table.scan(row_filter=_between(lo, hi)).plan_files())
    except ValueError as e:
        # PyIceberg raises a plain ValueError for what it cannot plan.
        snapshot = table.current_snapshot()
        manifests = [] if snapshot is None else snapshot.manifests(table.io)
        if not SnapshotDeletes(table, manifests).has_equality_deletes:
            raise
        raise TableUnfit(
            f"{'.'.join(table.name())} has equality deletes, which only Spark can read", hint=_COMPACT
        ) from e


# --- ordered files without deletes ---------------------------------------------------------------------------------


class OrderedFileRows:
    """A data file, and those of its rows that are in memory. `read` yields all its rows between the bounds, in
    order."""

    def __init__(self, lo: int, read: Callable[[], Generator[pa.Table]]) -> None:
        self.lo = lo
        self._read = read
        self._rows: Generator[pa.Table] | None = None
        self._buffer: pa.Table | None = None

    def fill(self) -> bool:
        """Reads rows into memory if there are none. False if the file has no more rows."""
        self._rows = self._read() if self._rows is None else self._rows
        while self._buffer is None or not self._buffer.num_rows:
            self._buffer = next(self._rows, None)
            if self._buffer is None:
                return False
        return True

    @property
    def last(self) -> int:
        return int(self._in_memory[SEQ_COLUMN][-1].as_py())

    def take(self, until: int) -> pa.Table:
        """Removes and returns the rows in memory up to this sequence number."""
        if self._buffer is None:
            return _NONE
        end = int(self._buffer[SEQ_COLUMN].to_numpy().searchsorted(until, "right"))
        taken, self._buffer = self._buffer.slice(0, end), self._buffer.slice(end)
        return taken

    @property
    def _in_memory(self) -> pa.Table:
        if self._buffer is None:
            raise ValueError("no rows are in memory")
        return self._buffer

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()


_NONE = pa.table({})


def merged(files: Sequence[OrderedFileRows]) -> Iterator[pa.Table]:
    """Yields the rows in order. Opens a file when the other files have reached its first sequence number."""
    waiting = deque(sorted(files, key=lambda f: f.lo))
    begun: list[OrderedFileRows] = []
    try:
        while waiting or begun:
            begun = [f for f in begun if f.fill()]
            horizon = min((f.last for f in begun), default=None)
            while waiting and (horizon is None or waiting[0].lo <= horizon):
                begun.append(file := waiting.popleft())
                if file.fill():
                    horizon = file.last if horizon is None else min(horizon, file.last)
            if horizon is not None:
                parts = [part for f in begun if (part := f.take(horizon)).num_rows]
                yield parts[0] if len(parts) == 1 else pa.concat_tables(parts).sort_by(SEQ_COLUMN)
    finally:
        for file in begun:
            file.close()


def _ordered_files(
    table: Table, schema: Schema, tasks: Sequence[FileScanTask], lo: int, hi: int
) -> list[OrderedFileRows] | None:
    """None if delete files apply, or a file is not Parquet or not in order."""
    field_id = schema.find_field(SEQ_COLUMN).field_id
    if any(task.delete_files or task.file.file_format != FileFormat.PARQUET for task in tasks):
        return None
    files = []
    for task in tasks:
        with opened(table.io, task.file.file_path) as file:
            if (file_schema := schema_of(file)) is None or not in_order(file, row_groups(file, lo, hi)[0]):
                return None
        first, _ = number_bounds(task.file, field_id) or (0, SEQ_MAX)
        read = partial(_rows_of, table.io, task.file.file_path, schema, file_schema, lo, hi)
        files.append(OrderedFileRows(max(first, lo), read))
    return files


def schema_of(file: pq.ParquetFile) -> Schema | None:
    """None if the file has no field ids."""
    try:
        return pyarrow_to_schema(file.schema_arrow, downcast_ns_timestamp_to_us=True)
    except ValueError:
        return None


def _rows_of(io: FileIO, location: str, schema: Schema, file_schema: Schema, lo: int, hi: int) -> Generator[pa.Table]:
    with opened(io, location) as file:
        yield from rows_between(file, schema, file_schema, lo, hi)


def rows_between(
    file: pq.ParquetFile, schema: Schema, file_schema: Schema, lo: int, hi: int, rows_max: int = WINDOW_ROWS
) -> Generator[pa.Table]:
    """A file's rows with the columns of the table, in the order of the file."""
    wanted = schema.field_ids
    names = [f.name for f in file_schema.fields if f.field_id in wanted]
    groups, only_in_range = row_groups(file, lo, hi)
    rows_max = rows_per_batch(file, groups, rows_max)
    for batch in file.iter_batches(rows_max, row_groups=groups, columns=names, use_threads=False):
        rows = _keep_nulls(pa.Table.from_batches([projected(schema, file_schema, batch)]), batch, schema)
        if not only_in_range:
            rows = rows.filter((pc.field(SEQ_COLUMN) >= lo) & (pc.field(SEQ_COLUMN) <= hi))
        if rows.num_rows:
            yield rows


def _loses_nulls(kind: IcebergType) -> bool:
    """Whether PyIceberg's projection turns null values of this type into empty ones. It does so for lists and maps that
    contain structs."""
    match kind:
        case StructType():
            return any(_loses_nulls(f.field_type) for f in kind.fields)
        case ListType() | MapType():
            return _holds_struct(kind.element_type if isinstance(kind, ListType) else kind.value_type)
    return False


def _holds_struct(kind: IcebergType) -> bool:
    match kind:
        case ListType():
            return _holds_struct(kind.element_type)
        case MapType():
            return _holds_struct(kind.value_type)
    return isinstance(kind, StructType)


def _keep_nulls(rows: pa.Table, in_file: pa.RecordBatch, schema: Schema) -> pa.Table:
    """The projected rows. Columns to which `_loses_nulls` applies are taken from the file itself."""
    index_of = {id_of(field): n for n, field in enumerate(in_file.schema)}
    for n, field in enumerate(schema.fields):
        if _loses_nulls(field.field_type) and field.field_id in index_of:
            column = _column(in_file, index_of[field.field_id], field)
            # A file without an Arrow schema in its metadata has smaller list and text types than the table. `checked`
            # casts all columns at once.
            rows = rows.set_column(n, rows.schema.field(n).with_type(column.type), column)
    return rows


def _column(in_file: pa.RecordBatch, n: int, field: NestedField) -> pa.Array[Any]:
    kind = cast("pa.DataType", schema_to_pyarrow(field.field_type, include_field_ids=False))
    return cast("pa.Array[Any]", to_iceberg(from_file(in_file.column(n), in_file.schema.field(n), field), kind))


@contextmanager
def opened(io: FileIO, location: str) -> Iterator[pq.ParquetFile]:
    is_remote = "://" in location and not location.startswith("file://")
    buffer_bytes = 0 if is_remote else _BUFFER_BYTES
    with (
        io.new_input(location).open() as handle,
        # Local files are read as needed; from S3, the columns of a whole row group are fetched at once.
        pq.ParquetFile(cast("IO[bytes]", handle), pre_buffer=is_remote, buffer_size=buffer_bytes) as file,
    ):
        yield file


# --- any other layout ----------------------------------------------------------------------------------------------


def _by_window(
    table: Table, schema: Schema, tasks: Sequence[FileScanTask], lo: int, hi: int, window_rows: int
) -> Iterator[pa.Table]:
    field_id = schema.find_field(SEQ_COLUMN).field_id
    bounded = [(task, number_bounds(task.file, field_id) or (0, SEQ_MAX)) for task in tasks]
    first = max(lo, min((b[0] for _, b in bounded), default=hi + 1))
    last = min(hi, max((b[1] for _, b in bounded), default=lo - 1))
    for start in range(first, last + 1, window_rows):
        end = min(start + window_rows - 1, last)
        inside = [task for task, (low, high) in bounded if low <= end and start <= high]
        if inside:
            scan = ArrowScan(table.metadata, table.io, schema, _between(start, end))
            yield scan.to_table(inside).sort_by(SEQ_COLUMN)


def checked(parts: Iterator[pa.Table], schema: pa.Schema, name: str) -> Iterator[pa.RecordBatch]:
    """The rows as batches of this schema. Raises DuplicateNumbers if two rows share a sequence number."""
    last = 0
    with opening(name):
        for rows in parts:
            for batch in rows.cast(schema).combine_chunks().to_batches(max_chunksize=WINDOW_ROWS):
                numbers: Any = batch.column(SEQ_COLUMN).to_numpy()
                repeated = numbers[numbers <= np.concatenate(([last], numbers[:-1]))]
                if len(repeated):
                    raise DuplicateNumbers(
                        f"{name}: sequence number {repeated[0]} is on two rows", hint=DuplicateNumbers.REMEDY
                    )
                last = int(numbers[-1])
                yield batch
