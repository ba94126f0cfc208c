"""The planning scan: counts and weighs the new rows of each lane, in portions that chunks are made of.

One pass over the sequence numbers and the columns of varying size; the driver gets one result per portion, never a row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from strandline.core.types import PARTITION_COLUMN, SEQ_COLUMN, Seq, SeqRange
from strandline.deliver.plan.chunking import FoundAtSink, RowPortion, segments
from strandline.deliver.sink_options import DeliveryOptions
from strandline.iceberg.metadata.identifier import quoted
from strandline.iceberg.spark.java_errors import explaining
from strandline.iceberg.spark.row_text import lane_of

# A chunk is filled to at least fifteen sixteenths, and a plan of a thousand chunks is 16,000 results for the driver.
PORTIONS_PER_CHUNK = 16


@dataclass(frozen=True, slots=True)
class LaneBounds:
    """Where the lanes of a plan begin."""

    default: Seq | None
    exceptions: Mapping[str, Seq | None]  # lanes with another watermark than `default`
    left_out: frozenset[str]  # lanes with an open intent

    @property
    def lowest(self) -> Seq | None:
        """The watermark below which no lane of the plan has anything new."""
        marks = [self.default, *self.exceptions.values()]
        return None if any(m is None for m in marks) else min(m for m in marks if m is not None)


def rows_above_watermarks(df: DataFrame, bounds: LaneBounds) -> DataFrame:
    """Only the rows that are new to their lane."""
    lane = F.col("_sl_lane")
    df = df.withColumn("_sl_lane", lane_of(df))
    if bounds.left_out:
        df = df.where(~lane.isin(sorted(bounds.left_out)))
    mark: Column = F.lit(int(bounds.default or 0)).cast("long")
    if bounds.exceptions:
        rows = [(name, int(mark_ or 0)) for name, mark_ in bounds.exceptions.items()]
        known = df.sparkSession.createDataFrame(rows, "_sl_lane string, _sl_mark long")
        df = df.join(F.broadcast(known), "_sl_lane", "left")
        mark = F.coalesce(F.col("_sl_mark"), mark)
    return df.where(F.col(SEQ_COLUMN) > mark)


def scan_portions(
    df: DataFrame, fields: Sequence[T.StructField], bounds: LaneBounds, options: DeliveryOptions
) -> dict[str, list[RowPortion]]:
    """The sorted portions of every lane that has new rows."""
    weighed = rows_above_watermarks(df, bounds).select("_sl_lane", SEQ_COLUMN, weight(fields).alias("_sl_size"))
    found = _collect(_by_bucket(weighed, options, []))
    return {lane: [p for _, p in sorted(own.items())] for lane, own in _refined(weighed, found, options).items()}


def scan_portions_around(
    df: DataFrame,
    fields: Sequence[T.StructField],
    marks: Mapping[str, Seq | None],
    found: Mapping[str, FoundAtSink],
    until: Seq,
    options: DeliveryOptions,
) -> dict[str, dict[SeqRange, list[RowPortion]]]:
    """The portions of these lanes, by segment around what the sink holds."""
    cuts = {lane: segments(marks[lane], until, f) for lane, f in found.items()}
    rows = [(lane, s.lo, s.hi) for lane, parts in cuts.items() for s, _, _ in parts]
    known = df.sparkSession.createDataFrame(rows, "_sl_lane string, _sl_segment long, _sl_end long")
    within = df.withColumn("_sl_lane", lane_of(df)).join(F.broadcast(known), "_sl_lane")
    within = within.where(F.col(SEQ_COLUMN).between(F.col("_sl_segment"), F.col("_sl_end")))
    matching = F.lit(True) if options.where is None else F.coalesce(F.expr(options.where), F.lit(False))
    weighed = within.select(
        "_sl_lane",
        "_sl_segment",
        SEQ_COLUMN,
        weight(fields).alias("_sl_size"),
        matching.cast("int").alias("_sl_matching"),
    )
    found_portions = _refined(weighed, _collect(_by_bucket(weighed, options, ["_sl_segment"])), options)
    result: dict[str, dict[SeqRange, list[RowPortion]]] = defaultdict(dict)
    for lane, own in found_portions.items():
        bounds = [s for s, _, _ in cuts[lane]]
        starts = [int(s.lo) for s in bounds]
        for first, portion in sorted(own.items()):
            result[lane].setdefault(bounds[bisect_right(starts, first) - 1], []).append(portion)
    return result


def portion_rows(options: DeliveryOptions) -> int:
    return max(1, options.chunk_rows_max // PORTIONS_PER_CHUNK)


def _by_bucket(weighed: DataFrame, options: DeliveryOptions, keys: list[str]) -> DataFrame:
    bucket = F.floor(F.col(SEQ_COLUMN) / F.lit(portion_rows(options))).alias("_sl_bucket")
    return weighed.groupBy("_sl_lane", *keys, bucket).agg(*_measures(weighed))


def _measures(weighed: DataFrame) -> list[Column]:
    return [
        F.min(SEQ_COLUMN).alias("first"),
        F.max(SEQ_COLUMN).alias("last"),
        F.count("*").alias("rows"),
        F.sum("_sl_size").alias("size"),
        *(F.sum(name).alias("matching") for name in weighed.columns if name == "_sl_matching"),
    ]


def _collect(df: DataFrame) -> list[Any]:
    with explaining("the rows cannot be planned"):
        return df.collect()  # one row per portion


def _portion(row: Any) -> RowPortion:
    return RowPortion(row["first"], row["last"], row["rows"], row["size"], getattr(row, "matching", None))


def _refined(weighed: DataFrame, found: list[Any], options: DeliveryOptions) -> dict[str, dict[int, RowPortion]]:
    """Cuts buckets that are too heavy for one chunk by weight. A row that is too heavy by itself is a portion, too."""
    result: dict[str, dict[int, RowPortion]] = defaultdict(dict)
    heavy = [r for r in found if r["size"] > options.chunk_bytes_max and r["rows"] > 1]
    for r in found:
        if r["size"] <= options.chunk_bytes_max or r["rows"] <= 1:
            result[r["_sl_lane"]][r["first"]] = _portion(r)
    if not heavy:
        return result
    known = weighed.sparkSession.createDataFrame(
        [(r["_sl_lane"], r["first"], r["last"]) for r in heavy],
        "_sl_lane string, _sl_from long, _sl_to long",
    )
    own = weighed.join(F.broadcast(known), "_sl_lane").where(
        F.col(SEQ_COLUMN).between(F.col("_sl_from"), F.col("_sl_to"))
    )
    half = max(1, options.chunk_bytes_max // 2)
    order = Window.partitionBy("_sl_lane", "_sl_from").orderBy(SEQ_COLUMN)
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    large = (F.col("_sl_size") > half).cast("int")
    # Rows below `half` that start in the same half of the running total weigh at most one chunk together.
    cut = own.select(
        "_sl_lane",
        "_sl_from",
        SEQ_COLUMN,
        "_sl_size",
        F.coalesce(F.sum("_sl_size").over(before), F.lit(0)).alias("_sl_before"),
        F.coalesce(F.sum(large).over(before), F.lit(0)).alias("_sl_larges"),
        large.alias("_sl_large"),
        *(name for name in weighed.columns if name == "_sl_matching"),
    )
    halves = F.floor(F.col("_sl_before") / half)
    for r in _collect(cut.groupBy("_sl_lane", "_sl_from", halves, "_sl_larges", "_sl_large").agg(*_measures(own))):
        result[r["_sl_lane"]][r["first"]] = _portion(r)
    return result


def delivered_fields(schema: T.StructType, columns: Sequence[str] | None, *, is_numbered: bool) -> list[T.StructField]:
    """The chosen columns, or `_ingest_seq` and all of the user's. A table always gets `_ingest_seq`."""
    by_name = {f.name: f for f in schema.fields}
    if columns is None:
        rest = [f for f in schema.fields if f.name not in (SEQ_COLUMN, PARTITION_COLUMN)]
        return [by_name[SEQ_COLUMN], *rest]
    if is_numbered:
        columns = [SEQ_COLUMN, *(c for c in columns if c != SEQ_COLUMN)]
    return [by_name[c] for c in columns]


def weight(fields: Sequence[T.StructField]) -> Column:
    """The approximate size of a row in bytes: exact for columns of varying size, the width of the type for others."""
    total = F.lit(sum(width(f.dataType) for f in fields)).cast("long")
    for f in fields:
        value = F.col(quoted(f.name))
        match f.dataType:
            case T.StringType() | T.BinaryType():
                total = total + F.coalesce(F.octet_length(value), F.lit(0))
            case T.StructType() | T.ArrayType() | T.MapType() | T.VariantType():
                total = total + F.coalesce(F.octet_length(F.to_json(value)), F.lit(0))
    return total


def width(kind: T.DataType) -> int:
    match kind:
        case T.BooleanType() | T.ByteType():
            return 1
        case T.IntegerType() | T.FloatType() | T.DateType() | T.ShortType() | T.StringType() | T.BinaryType():
            return 4
        case T.DecimalType():
            return 16
    return 8


def selected(fields: Sequence[T.StructField]) -> list[Column]:
    return [F.col(quoted(f.name)) for f in fields]
