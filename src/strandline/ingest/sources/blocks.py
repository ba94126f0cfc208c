"""Converts blocks of records to Arrow batches: the columns of the records that fit, and why the others do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as t

from strandline.core.errors import SchemaError
from strandline.iceberg.arrow_nested import Array
from strandline.ingest.sources.columns import Unfit, arrow_type
from strandline.ingest.sources.lines import LineBlock
from strandline.ingest.sources.misfits import Mask
from strandline.ingest.sources.rows import LineReader
from strandline.ingest.sources.values import Misfit

LINE, REJECT, RAW = "_sl_line", "_sl_reject", "_sl_raw"  # no dataset has columns of these names

ROW_BY_ROW_MAX = 32  # reading up to so many rows one by one costs less than another attempt at all of them
RAW_CHARS_MAX = 64 * 1024  # rejected rows pass through the driver, so a longer text is cut

# Returns the typed columns, in the schema's order, of the records that surely fit, and which records these are (None:
# all of them). Raises Unfit or ArrowInvalid if it cannot tell which records do not fit.
ColumnsReader = Callable[[LineBlock], tuple[list[Array], Mask | None]]


def result_schema(fields: t.StructType) -> t.StructType:
    """The schema of a file that was read. Rejected rows are null in all columns of the dataset. Raises SchemaError."""
    if taken := [name for name in (LINE, REJECT, RAW) if name in fields.fieldNames()]:
        raise SchemaError(
            f"files cannot be read into a dataset with a column named {taken[0]}",
            hint="Rename the column, or use append().",
        )
    columns = [t.StructField(f.name, f.dataType, True) for f in fields]
    reading = [(LINE, t.LongType()), (REJECT, t.StringType()), (RAW, t.StringType())]
    return t.StructType(columns + [t.StructField(name, dt) for name, dt in reading])


COUNT_SCHEMA = "partition bigint, fit bigint, rejected bigint, filled array<boolean>"


def count_rows(partition: int, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """Counts the rows of one partition of a file: those that fit, and those that do not. Also tells which of the
    dataset's columns have a value."""
    fit, rejected, filled = 0, 0, list[bool]()
    for batch in batches:
        fitting = int(batch.column(REJECT).null_count)
        fit, rejected = fit + fitting, rejected + batch.num_rows - fitting
        in_batch = [batch.column(i).null_count < batch.num_rows for i in range(batch.schema.get_field_index(LINE))]
        filled = [a or b for a, b in zip(filled, in_batch, strict=True)] if filled else in_batch
    counted = {"partition": [partition], "fit": [fit], "rejected": [rejected]}
    return pa.RecordBatch.from_arrays(
        [*(pa.array(values, pa.int64()) for values in counted.values()), pa.array([filled], pa.list_(pa.bool_()))],
        names=[*counted, "filled"],
    )


def to_batches(
    blocks: Iterable[LineBlock], fields: t.StructType, read_columns: ColumnsReader, read_row: LineReader
) -> Iterator[pa.RecordBatch]:
    for block in blocks:
        yield from _convert(block, fields, read_columns, read_row)


def _convert(
    block: LineBlock, fields: t.StructType, read_columns: ColumnsReader, read_row: LineReader
) -> Iterator[pa.RecordBatch]:
    try:
        columns, fit = read_columns(block)
    except (Unfit, pa.ArrowInvalid):
        if len(block) <= ROW_BY_ROW_MAX:
            yield _row_by_row(block, fields, read_row)
        else:
            middle = len(block) // 2
            yield from _convert(block.part(0, middle), fields, read_columns, read_row)
            yield from _convert(block.part(middle, len(block)), fields, read_columns, read_row)
        return
    lines = pa.array(block.lines if fit is None else block.lines[fit])
    none = pa.nulls(len(lines), pa.string())
    fitting = _batch(fields, columns, lines, none, none)
    if fit is None:
        yield fitting
    else:
        yield _in_order(fitting, _row_by_row(block.only(~fit), fields, read_row), fit)


def _in_order(fitting: pa.RecordBatch, others: pa.RecordBatch, fit: Mask) -> pa.RecordBatch:
    """All rows in the order of the file, in which they are numbered."""
    both = pa.Table.from_batches([fitting, others]).combine_chunks()
    places = np.empty(len(fit), np.int64)
    places[fit] = np.arange(fitting.num_rows)
    places[~fit] = np.arange(fitting.num_rows, both.num_rows)
    return both.take(places).combine_chunks().to_batches()[0]


def _row_by_row(block: LineBlock, fields: t.StructType, read_row: LineReader) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = []
    reasons: list[str | None] = []
    raws: list[str | None] = []
    for index in range(len(block)):
        record = block.record(index)
        try:
            rows.append(read_row(record))
            reasons.append(None)
            raws.append(None)
        except Misfit as e:
            rows.append({})
            reasons.append(str(e))
            raws.append(_as_text(record))
    columns = [pa.array([row.get(f.name) for row in rows], arrow_type(f.dataType)) for f in fields]
    return _batch(fields, columns, pa.array(block.lines), pa.array(reasons, pa.string()), pa.array(raws, pa.string()))


def _as_text(record: bytes) -> str:
    text = record[: 4 * RAW_CHARS_MAX].decode("utf-8", "backslashreplace")
    return text if len(text) <= RAW_CHARS_MAX else text[:RAW_CHARS_MAX] + "…"


def _batch(fields: t.StructType, columns: list[Array], *reading: Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*columns, *reading], names=[*fields.fieldNames(), LINE, REJECT, RAW])
