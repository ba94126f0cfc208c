"""Reads a file as a DataFrame: the dataset's columns, then the line and, for a row that does not fit, the reason and
its text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t

from strandline.core.errors import InputError
from strandline.iceberg.metadata.identifier import quoted
from strandline.iceberg.metadata.table_metadata import TableView
from strandline.iceberg.spark.row_text import line
from strandline.ingest.sources import delimited, jsonl, parquet
from strandline.ingest.sources.blocks import COUNT_SCHEMA, LINE, RAW, RAW_CHARS_MAX, REJECT, count_rows, result_schema
from strandline.ingest.sources.columns import arrow_type
from strandline.ingest.sources.failures import TaskFailure, translate
from strandline.ingest.sources.identify import SourceFile, unreadable
from strandline.ingest.sources.lines import ByteRange, plan_ranges
from strandline.ingest.sources.positions import Positions, report_to
from strandline.ingest.stamp import PartitionCount

RangeReader = Callable[[ByteRange], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class SourceRows:
    frame: DataFrame
    """The file's rows. Running it twice gives the same rows in the same partitions and order."""
    count: Callable[[], list[PartitionCount]] | None = None
    """Counts the frame's partitions inside the Python workers. None if Spark itself counts as fast."""


def read_source(
    spark: SparkSession, source: SourceFile, fields: t.StructType, positions: Positions | None = None
) -> SourceRows:
    """The file's rows as a lazy frame. Reads only the header or footer. The lines of a large uncompressed file are also
    counted, so that each of its ranges knows its line numbers. Raises InputError and SchemaError."""
    schema = result_schema(fields)
    arrow_type(fields)  # raises here, and not in a task, for a type that no file can have
    if source.size_bytes == 0 and source.format != "parquet":
        return SourceRows(spark.createDataFrame([], schema))
    try:
        match source.format:
            case "parquet":
                return SourceRows(parquet.read_parquet(spark, source, fields))
            case "jsonl":
                return _in_tasks(spark, source, schema, lambda span: jsonl.read_range(source, span, fields), positions)
            case "csv":
                if (header := delimited.read_header(source, fields)) is None:
                    return SourceRows(spark.createDataFrame([], schema))
                return _in_tasks(
                    spark, source, schema, lambda span: delimited.read_records(source, span, fields, header), positions
                )
    except OSError as e:
        raise unreadable(source.path, e) from e
    except TaskFailure as e:
        raise translate(e, source) or InputError(f"{source.path} cannot be read") from e


def absent_columns(source: SourceFile, fields: t.StructType) -> tuple[str, ...] | None:
    """The dataset's columns that the file does not have, so that they are null in all of its rows. None for JSON lines,
    which name the columns in each row."""
    match source.format:
        case "csv":
            names = delimited.read_header(source, fields) or tuple(fields.fieldNames())
        case "parquet":
            names = parquet.column_names(source)
        case "jsonl":
            return None
    return tuple(f.name for f in fields if f.name not in names)


def _in_tasks(
    spark: SparkSession, source: SourceFile, schema: t.StructType, read: RangeReader, positions: Positions | None
) -> SourceRows:
    spans = plan_ranges(source, spark.sparkContext.defaultParallelism)
    reported_to = None if positions is None else positions.path
    first = 0 if positions is None else positions.take(len(spans))

    def of_range(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
        for batch in batches:
            for value in batch.column(0):
                index = int(value.as_py())
                with report_to(reported_to, first + index):
                    yield index, read(spans[index])

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _, rows in of_range(batches):
            yield from rows

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for index, rows in of_range(batches):
            yield count_rows(index, rows)

    # one partition per range: `range` distributes its numbers evenly and in order
    ranges = spark.range(0, len(spans), 1, len(spans))

    def counted() -> list[PartitionCount]:
        rows = sorted(ranges.mapInArrow(count, COUNT_SCHEMA).collect())
        return [PartitionCount(r["fit"], r["rejected"], tuple(r["filled"])) for r in rows]

    return SourceRows(ranges.mapInArrow(run, schema), counted)


_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\\z"


def fit_values(df: DataFrame, view: TableView) -> DataFrame:
    """Adds a reason to rows with a value that its column cannot store. Otherwise the whole write would fail: a `uuid`
    is a string in Spark, and a `fixed[L]` is binary. Nested columns are not checked: for a bad value in one, the write
    refuses the batch."""
    reason: Column = F.col(REJECT)
    checked = False
    for field in view.schema["fields"]:
        name, kind = field["name"], field["type"]
        if not isinstance(kind, str) or name not in df.columns:
            continue
        value = F.col(quoted(name))
        if kind == "uuid":
            text = F.concat(F.lit(f'column "{name}": "'), value, F.lit('" is not a uuid'))
            reason = F.coalesce(reason, F.when(~value.rlike(_UUID), text))
        elif kind.startswith("fixed["):
            length = int(kind.removeprefix("fixed[").removesuffix("]"))
            text = F.concat(F.lit(f'column "{name}": '), F.length(value), F.lit(f" bytes, expected {length}"))
            reason = F.coalesce(reason, F.when(F.length(value) != length, text))
        else:
            continue
        checked = True
    if not checked:
        return df
    data = [field for field in df.schema.fields if field.name not in (LINE, REJECT, RAW)]
    raw = F.coalesce(F.col(RAW), F.when(reason.isNotNull(), F.left(line("jsonl", data), F.lit(RAW_CHARS_MAX))))
    return df.withColumns({RAW: raw, REJECT: reason})
