"""Reads the rows of a data file between two sequence numbers, as Arrow batches with the types that Spark has for them.

Spark tasks use this, so it imports pyarrow only. PyIceberg is imported when it is needed: for files with deleted rows,
and for columns whose values Spark represents differently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from strandline.core.errors import StorageError, TableUnfit
from strandline.core.types import SEQ_COLUMN, SeqRange
from strandline.iceberg import parquet_rows
from strandline.iceberg.parquet_rows import row_groups, rows_per_batch
from strandline.storage.s3_settings import S3Settings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    from pyiceberg.manifest import DataFile

_AS_IN_SPARK = frozenset({
    "boolean", "int", "long", "float", "double", "date", "string", "binary", "timestamp", "timestamptz", "decimal",
})  # fmt: skip
_WITH_DEFAULT = frozenset({"boolean", "int", "long", "float", "double", "string"})  # their values are the same in JSON
BATCH_ROWS = 1 << 15


@dataclass(frozen=True, slots=True)
class RangeOfFile:
    """The rows of one file with `lo <= _ingest_seq <= hi`, without deleted ones."""

    location: str
    lo: int
    hi: int
    deletes: tuple[DataFile, ...] = ()
    # sorted; rows with other sequence numbers are foreign. None: no row is foreign
    owned: tuple[SeqRange, ...] | None = None


@dataclass(frozen=True)
class RowReader:
    """Reads files with these columns. Can be pickled; holds the keys of the warehouse, and no other secret."""

    fields: tuple[Mapping[str, Any], ...]  # as in Iceberg's JSON of a schema, the sequence number among them
    schema: pa.Schema  # of the same columns, in Spark's types
    columns: tuple[str, ...]  # the names of those to return
    conditions: tuple[pc.Expression, ...] = ()
    store: S3Settings = field(default=S3Settings(None, None), repr=False)

    def read(self, part: RangeOfFile) -> Iterator[pa.RecordBatch]:
        try:
            with parquet_rows.opened(part.location, self.store) as file:
                yield from self._batches(file, part)
        except FileNotFoundError as e:
            raise StorageError(
                f"{part.location} is gone: the file was rewritten and its snapshot expired while it was being read",
                hint="Load the DataFrame or start the query again: it reads the same rows from the files that have "
                "them now. Let snapshots live longer than a query runs.",
            ) from e

    def _batches(self, file: pq.ParquetFile, part: RangeOfFile) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from strandline.iceberg.arrow_nested import field_id

        file_fields = {field_id(f): f for f in file.schema_arrow}
        if next(f["id"] for f in self.fields if f["name"] == SEQ_COLUMN) not in file_fields:
            if None in file_fields:
                raise TableUnfit(f"{part.location} was not written by Iceberg: its columns have no ids")
            return  # written before rows had sequence numbers
        names = [file_fields[f["id"]].name for f in self.fields if f["id"] in file_fields]
        groups, only_in_range = row_groups(file, part.lo, part.hi)
        rows_max = rows_per_batch(file, groups, BATCH_ROWS)
        deleted = _deleted_positions(part, self.store)
        starts = [0, *accumulate(file.metadata.row_group(n).num_rows for n in range(file.num_row_groups))]
        # Positions of deleted rows count from the beginning of the file, so each row group is read alone then.
        for together in [groups] if deleted is None else [[g] for g in groups]:
            end = starts[together[0]] if together else 0
            for batch in file.iter_batches(rows_max, row_groups=together, columns=names, use_threads=False):
                start, end = end, end + batch.num_rows
                rows = pa.RecordBatch.from_arrays(
                    [self._column(batch, f, file_fields) for f in self.fields], schema=self.schema
                )
                remaining = rows if deleted is None else rows.filter(_not_deleted(deleted, start, end))
                yield from self._selected(remaining, part, only_in_range=only_in_range)

    def _column(
        self, batch: pa.RecordBatch, wanted: Mapping[str, Any], file_fields: Mapping[int | None, pa.Field[Any]]
    ) -> Any:
        """The column by its id: it may have had another name, or a narrower type, when the file was written."""
        kind = self.schema.field(wanted["name"]).type
        if (in_file := file_fields.get(wanted["id"])) is None:
            return _default(wanted, batch.num_rows, kind)
        array = batch.column(in_file.name)
        if isinstance(wanted["type"], str) and wanted["type"].partition("(")[0] in _AS_IN_SPARK:
            return array if array.type == kind else array.cast(kind)
        from pyiceberg.types import NestedField

        from strandline.iceberg.pyiceberg.arrow_values import from_file, to_iceberg

        return to_iceberg(from_file(array, in_file, NestedField.model_validate(dict(wanted))), kind)

    def _selected(self, rows: pa.RecordBatch, part: RangeOfFile, *, only_in_range: bool) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        if not only_in_range or part.owned is not None:
            rows = rows.filter(_inside(rows.column(SEQ_COLUMN), part))
        if self.conditions:
            table = pa.Table.from_batches([rows])
            for condition in self.conditions:
                table = table.filter(condition)
            yield from table.select(self.columns).to_batches()
        elif rows.num_rows:
            yield rows.select(self.columns)


def _default(wanted: Mapping[str, Any], rows: int, kind: pa.DataType) -> Any:
    """The values of a column for the rows of a file that is older than the column."""
    import pyarrow as pa

    default = wanted.get("initial-default")
    if default is None:
        return pa.array([None] * rows, kind)
    if wanted["type"] not in _WITH_DEFAULT:
        raise TableUnfit(
            f"column {wanted['name']} of type {wanted['type']} has a default for old rows, which only Spark can read",
            hint="Leave the column out with the option `columns`, or read with Strandline's own session.",
        )
    return pa.array([default] * rows, kind)


def _deleted_positions(part: RangeOfFile, store: S3Settings) -> npt.NDArray[np.int64] | None:
    """The positions of deleted rows, sorted. None if the file has no delete files."""
    if not part.deletes:
        return None
    import numpy as np

    from strandline.iceberg.pyiceberg.delete_files import read_positions

    return np.sort(read_positions(part.location, part.deletes, store))


def _not_deleted(deleted: npt.NDArray[np.int64], start: int, end: int) -> Any:
    """Which rows between these positions are not deleted."""
    import numpy as np
    import pyarrow as pa

    remaining = np.ones(end - start, dtype=bool)
    first, last = np.searchsorted(deleted, (start, end))
    remaining[deleted[first:last] - start] = False
    return pa.array(remaining)


def _inside(numbers: pa.Array[Any], part: RangeOfFile) -> Any:
    """Which of these sequence numbers are in the range and not foreign. A null is not in the range."""
    import pyarrow as pa

    from strandline.iceberg.number_ranges import NumberRanges

    values = numbers.fill_null(0).to_numpy()
    inside = (values >= max(part.lo, 1)) & (values <= part.hi)
    return pa.array(inside if part.owned is None else inside & NumberRanges(part.owned).contain(values))
