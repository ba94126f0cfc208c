"""Writes Arrow rows into data files of a table of another catalog, and reads rows back by their sequence numbers.
Importing this imports PyIceberg and Arrow.

Rows have Spark's types: a `uuid` is text, a `fixed` is bytes.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import ParquetFormatModel, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from strandline.core.errors import SchemaError, StorageError
from strandline.core.types import PARTITION_COLUMN, SEQ_COLUMN, SeqRange
from strandline.iceberg.arrow_nested import field_id, list_parts
from strandline.iceberg.parquet_rows import footer_bounds
from strandline.iceberg.pyiceberg.arrow_values import from_file, to_iceberg
from strandline.iceberg.pyiceberg.errors import explained
from strandline.iceberg.pyiceberg.internals import deleted_positions
from strandline.iceberg.pyiceberg.number_bounds import number_bounds
from strandline.iceberg.pyiceberg.other_table import LoadedTable, WrittenFiles
from strandline.iceberg.pyiceberg.partition_groups import divide

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionKey
    from pyiceberg.table import FileScanTask
    from pyiceberg.table.metadata import TableMetadata

    from strandline.iceberg.number_ranges import Numbers


_DAYS = (-719_162, 2_932_896)  # the first and the last day of Python's dates, since 1970-01-01
_MICROSECONDS = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)


def write_rows(loaded: LoadedTable, rows: pa.Table) -> WrittenFiles:
    """Writes the rows into data files, one for each partition. Columns that the rows do not have become null. Raises
    ValueError or ArrowInvalid for a value that the table cannot store, and StorageError."""
    table = loaded.table
    schema = table.schema()
    arrow = schema_to_pyarrow(schema)  # with field ids, by which readers find the columns of a file
    rows = rows.combine_chunks()
    columns = [
        to_iceberg(rows.column(f.name).combine_chunks(), f.type)
        if f.name in rows.column_names
        else pa.nulls(rows.num_rows, f.type)
        for f in arrow
    ]
    converted = pa.Table.from_arrays(columns, schema=arrow)
    metadata, name = _without_far_bounds(table.metadata, converted), uuid.uuid4()
    locations, model = table.location_provider(), ParquetFormatModel()
    files = []
    with explained(loaded.name):
        for n, (key, group) in enumerate(divide(table.spec(), schema, converted)):
            path = locations.new_data_location(f"00000-{n}-{name}.parquet", cast("PartitionKey | None", key))
            output = table.io.new_output(path)
            writer = model.create_writer(output, schema, metadata.properties)
            with writer:
                writer.write(group)
            files.append(
                DataFile.from_args(
                    content=DataFileContent.DATA,
                    file_path=path,
                    file_format=FileFormat.PARQUET,
                    partition=Record() if key is None else key.partition,
                    file_size_in_bytes=len(output),
                    sort_order_id=None,
                    spec_id=metadata.default_spec_id,
                    equality_ids=None,
                    key_metadata=None,
                    **writer.result().to_serialized_dict(),
                )
            )
    return WrittenFiles(loaded.schema_id, loaded.spec_id, sum(f.file_size_in_bytes for f in files), files)


def _without_far_bounds(metadata: TableMetadata, rows: pa.Table) -> TableMetadata:
    """The metadata to write these rows with: columns with dates or times beyond Python's years get no bounds. PyIceberg
    reads bounds as Python's dates and times, which have fewer years than Iceberg's. Without bounds, it opens the
    files."""
    far = [name for name in rows.column_names if _has_far_times(rows.column(name).combine_chunks())]
    metrics = {f"write.metadata.metrics.column.{name}": "counts" for name in far}
    return metadata.model_copy(update={"properties": {**metadata.properties, **metrics}}) if far else metadata


def _has_far_times(array: Any) -> bool:
    """Whether the column has a date or time that Python's own cannot represent."""
    kind = array.type
    if pa.types.is_struct(kind):
        return any(map(_has_far_times, array.flatten()))
    if pa.types.is_map(kind) or pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return _has_far_times(list_parts(array)[1])
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        return False
    first, last = _DAYS if pa.types.is_date(kind) else _MICROSECONDS
    numbers = array.cast(pa.int32() if pa.types.is_date(kind) else pa.int64()).drop_null()
    numbers = numbers.to_numpy(zero_copy_only=False)
    return bool(len(numbers)) and not (first <= numbers.min() and numbers.max() <= last)


@dataclass(frozen=True, slots=True)
class _File:
    task: FileScanTask
    bounds: tuple[int, int] | None  # the lowest and highest sequence number; None if the manifest has none


class OtherTableReader:
    """Reads main as it was loaded. Files are planned once. Reading a range opens only files that may have rows of
    it."""

    def __init__(self, loaded: LoadedTable) -> None:
        self._table = loaded.table
        self._name = loaded.name
        self.has_numbers = SEQ_COLUMN in self._table.schema().column_names

    def numbers(self, rows: SeqRange | None, lane: str | None) -> Iterator[Numbers]:
        """The sequence numbers in a range, part by part. A number that is on two rows appears twice. `lane` chooses the
        rows of one logical partition. Raises StorageError."""
        for part in self._parts(rows, lane, (SEQ_COLUMN,)):
            yield part.column(0).to_numpy()

    def rows(self, rows: SeqRange, lane: str | None) -> pa.Table | None:
        """The rows of a range in order, in Spark's types, with all columns but the lane's. None if there are none.
        Raises StorageError."""
        names = tuple(f.name for f in self._table.schema().fields if f.name != PARTITION_COLUMN)
        parts = list(self._parts(rows, lane, names))
        return pa.concat_tables(parts, promote_options="permissive").sort_by(SEQ_COLUMN) if parts else None

    def _parts(self, rows: SeqRange | None, lane: str | None, columns: tuple[str, ...]) -> Iterator[pa.Table]:
        """The rows with a sequence number, one row group at a time: files may be too large for memory."""
        for name in (SEQ_COLUMN, PARTITION_COLUMN)[: 1 if lane is None else 2]:
            if name not in self._table.schema().column_names:
                raise SchemaError(f"{self._name} has no column {name}")
        with explained(self._name):
            for file in self._files:
                if _may_have(file.bounds, rows):
                    yield from self._parts_of(file.task, rows, lane, columns)

    def _parts_of(
        self, task: FileScanTask, rows: SeqRange | None, lane: str | None, columns: tuple[str, ...]
    ) -> Iterator[pa.Table]:
        if task.file.file_format != FileFormat.PARQUET:
            raise StorageError(f"{self._name} has {task.file.file_format} files, and only Parquet files can be read")
        schema, needed = self._table.schema(), {*columns, SEQ_COLUMN, *([] if lane is None else [PARTITION_COLUMN])}
        fields = [f for f in schema.fields if f.name in needed]
        deleted = deleted_positions(self._table.io, task)
        with self._table.io.new_input(task.file.file_path).open() as source:
            file = pq.ParquetFile(cast("Any", source))
            in_file = {field_id(f): f for f in file.schema_arrow}
            number = in_file.get(schema.find_field(SEQ_COLUMN).field_id)
            end = 0
            bounds = [] if number is None else footer_bounds(file.metadata, number.name)
            for group, group_bounds in enumerate(bounds):
                start, end = end, end + file.metadata.row_group(group).num_rows
                if not _may_have(group_bounds, rows):
                    continue
                names = [in_file[f.field_id].name for f in fields if f.field_id in in_file]
                read = file.read_row_group(group, columns=names)
                arrays = [
                    from_file(read[in_file[f.field_id].name].combine_chunks(), in_file[f.field_id], f)
                    if f.field_id in in_file
                    else pa.nulls(read.num_rows)
                    for f in fields
                ]
                part = pa.table(arrays, names=[f.name for f in fields])
                if len(deleted):
                    part = part.filter(pa.array(~np.isin(np.arange(start, end), deleted)))
                chosen = part.filter(_condition(rows, lane)).select(list(columns))
                if chosen.num_rows:
                    yield chosen

    @cached_property
    def _files(self) -> Sequence[_File]:
        field_id = self._table.schema().find_field(SEQ_COLUMN).field_id
        try:
            return [_File(t, number_bounds(t.file, field_id)) for t in self._table.scan().plan_files()]
        except ValueError as e:  # a table with equality deletes, for example
            raise StorageError(f"{self._name} cannot be read: {e}") from e


def _may_have(bounds: tuple[int, int] | None, rows: SeqRange | None) -> bool:
    return rows is None or bounds is None or (bounds[0] <= rows.hi and rows.lo <= bounds[1])


def _condition(rows: SeqRange | None, lane: str | None) -> pc.Expression:
    number: Any = pc.field(SEQ_COLUMN)
    condition = number.is_valid()
    if rows is not None:
        condition = condition & (number >= int(rows.lo)) & (number <= int(rows.hi))
    return cast("pc.Expression", condition if lane is None else condition & (pc.field(PARTITION_COLUMN) == lane))
