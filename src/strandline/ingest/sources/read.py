"""A file as a DataFrame: the dataset's columns, then the line; for a row that does not fit, the reason and its text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from strandline.core.errors import InputError
from strandline.ingest.sources import delimited, jsonl, parquet
from strandline.ingest.sources.blocks import result_schema
from strandline.ingest.sources.columns import arrow_type
from strandline.ingest.sources.failures import TaskFailure, translate
from strandline.ingest.sources.identify import SourceFile, unreadable
from strandline.ingest.sources.lines import ByteRange, plan_ranges
from strandline.ingest.sources.positions import Positions, telling

RangeReader = Callable[[ByteRange], Iterator[pa.RecordBatch]]


def read_source(
    spark: SparkSession, source: SourceFile, fields: t.StructType, positions: Positions | None = None
) -> DataFrame:
    """Lazy: only the header or footer is read here. The lines of a large uncompressed file are counted, so that its
    parts know their line numbers. Running it twice gives the same rows in the same partitions and order."""
    schema = result_schema(fields)
    arrow_type(fields)  # raises now, not in a task, for a type that no file can hold
    if source.size_bytes == 0 and source.format != "parquet":
        return spark.createDataFrame([], schema)
    try:
        match source.format:
            case "parquet":
                return parquet.read_parquet(spark, source, fields)
            case "jsonl":
                return _in_tasks(spark, source, schema, lambda span: jsonl.read_range(source, span, fields), positions)
            case "csv":
                if (header := delimited.read_header(source, fields)) is None:
                    return spark.createDataFrame([], schema)
                return _in_tasks(
                    spark, source, schema, lambda span: delimited.read_records(source, span, fields, header), positions
                )
    except OSError as e:
        raise unreadable(source.path, e) from e
    except TaskFailure as e:
        raise translate(e, source) or InputError(f"{source.path} cannot be read") from e


def absent_columns(source: SourceFile, fields: t.StructType) -> tuple[str, ...] | None:
    """The dataset's columns that the file does not have at all: they are null in each of its rows. None for JSON lines,
    which name their columns in each row: only the values tell."""
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
) -> DataFrame:
    spans = plan_ranges(source, spark.sparkContext.defaultParallelism)
    reported_to = None if positions is None else positions.path
    first = 0 if positions is None else positions.take(len(spans))

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0):
                at = int(index.as_py())
                with telling(reported_to, first + at):
                    yield from read(spans[at])

    # one partition per range: `range` distributes its numbers evenly and in order
    return spark.range(0, len(spans), 1, len(spans)).mapInArrow(run, schema)
