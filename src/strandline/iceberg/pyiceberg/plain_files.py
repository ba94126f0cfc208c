"""Plans and reads a table's rows between two sequence numbers from Parquet files to which no deletes apply.

Planning reads manifests only. Reading opens a file when the rows before it have been read, so the first few rows need
only the first file. Importing this imports PyIceberg: heavy paths only.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from strandline.core.errors import TableUnfit
from strandline.core.types import SEQ_COLUMN
from strandline.iceberg.pyiceberg.errors import opening
from strandline.iceberg.pyiceberg.number_bounds import number_bounds
from strandline.iceberg.pyiceberg.ordered_rows import (
    WINDOW_ROWS,
    OrderedFileRows,
    checked,
    merged,
    opened,
    plan_tasks,
    rows_between,
    schema_of,
)


@dataclass(frozen=True, slots=True)
class PlainFile:
    """A Parquet file to which no delete file applies."""

    location: str
    lo: int  # the lowest and the highest sequence number in it
    hi: int
    rows: int
    bytes: int


def plan_plain_files(table: Table, lo: int, hi: int, *, files_max: int) -> list[PlainFile] | None:
    """The files that may have rows from `lo` to `hi`, ordered by their lowest sequence number. None if this module
    cannot read the table: it has too many files, delete files, files that are not Parquet or have no bounds, or columns
    with a default that is not in the files."""
    schema = table.schema()
    with opening(".".join(table.name())):
        if any(schema.find_field(n).initial_default is not None for n in schema.field_ids):
            return None
        if (snapshot := table.current_snapshot()) is None:
            return []
        total = None if snapshot.summary is None else snapshot.summary["total-data-files"]
        if total is not None and int(total) > files_max:
            return None
        files = []
        seq_field_id = schema.find_field(SEQ_COLUMN).field_id
        for task in plan_tasks(table, lo, hi):
            bounds = number_bounds(task.file, seq_field_id)
            if task.delete_files or task.file.file_format != FileFormat.PARQUET or bounds is None:
                return None
            file = task.file
            files.append(PlainFile(file.file_path, *bounds, file.record_count, file.file_size_in_bytes))
    return sorted(files, key=lambda f: f.lo)


def read_plain_files(
    table: Table,
    files: Sequence[PlainFile],
    lo: int,
    hi: int,
    *,
    columns: Sequence[str] | None = None,
    rows_max: int = WINDOW_ROWS,
) -> Iterator[pa.RecordBatch]:
    """The rows in batches of at most about `rows_max`, with the names and types that the table has now. `columns` must
    have the sequence number; None: all. While iterating, raises TableUnfit if a file is not in order or has no field
    ids, and DuplicateNumbers if two rows share a number."""
    name = ".".join(table.name())
    schema = table.schema() if columns is None else table.schema().select(*columns)
    arrow_schema = schema_to_pyarrow(schema, include_field_ids=True)
    rows = [
        OrderedFileRows(max(f.lo, lo), partial(_rows_of, table.io, f.location, schema, lo, hi, rows_max)) for f in files
    ]
    return checked(merged(rows), arrow_schema, name)


def _rows_of(io: FileIO, location: str, schema: Schema, lo: int, hi: int, rows_max: int) -> Generator[pa.Table]:
    last = 0
    with opened(io, location) as file:
        if (file_schema := schema_of(file)) is None:
            raise TableUnfit(f"{location} has no field ids")
        for rows in rows_between(file, schema, file_schema, lo, hi, rows_max):
            numbers: Any = rows[SEQ_COLUMN].to_numpy()
            if numbers[0] < last or (np.diff(numbers) < 0).any():
                raise TableUnfit(f"the rows of {location} are not in the order of their sequence numbers")
            last = int(numbers[-1])
            yield rows
