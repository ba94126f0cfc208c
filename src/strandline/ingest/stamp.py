"""Counts and stamps rows on the executors.

The first pass counts the rows of each partition, the second stamps them. The sequence number of a row is `lo`, plus the
position of its partition's first row, plus the row's place in the partition. Both passes run over the partitions of one
RDD. So a plan that would be partitioned differently the second time (adaptive execution, a shuffle) cannot renumber
rows. If a plan only scans, projects and filters, its source alone decides the partitions. Then it is planned twice
instead, so that the count need not read a column. If the source itself changed between the passes, the stamp fails for
a row too many, and the check of the staged files for a row too few.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from strandline.core.errors import FailedError, StampMismatch
from strandline.core.partition import NULL_PART, encode_part
from strandline.core.text.wording import plural
from strandline.core.types import PARTITION_COLUMN, SEQ_COLUMN, SeqRange
from strandline.iceberg.metadata.identifier import quoted
from strandline.iceberg.session import spark_internals
from strandline.iceberg.spark.java_errors import explaining
from strandline.iceberg.spark.number_bounds import NewFile
from strandline.ingest.digest import digest_measures, sums_text

_PLACE_BITS = (1 << 33) - 1  # the bits of monotonically_increasing_id that hold the row's place in its partition


@dataclass(frozen=True, slots=True)
class CountedRows:
    """Rows per partition of the pinned frame, and a digest of all rows that does not depend on their order."""

    per_partition: tuple[int, ...]
    rejected: int
    digest: str | None
    empty: frozenset[str] = frozenset()  # columns in which no row has a value; only for frames from a file reader

    @property
    def rows(self) -> int:
        return sum(self.per_partition)


@dataclass(frozen=True, slots=True)
class PartitionCount:
    fit: int
    rejected: int
    filled: tuple[bool, ...]  # by column of the dataset: whether a row has a value; empty if there are no rows


@dataclass(frozen=True, slots=True)
class Rejects:
    """The columns that a file reader adds to those of the dataset. The caller names them, because a table's column may
    have any name."""

    reason: str  # why the row does not fit; null for a row that fits
    about: tuple[str, ...]  # further columns that describe the row; not ingested

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.reason, *self.about)


@dataclass(frozen=True, slots=True)
class Pinned:
    df: DataFrame
    partitions: int
    rejects: Rejects | None


def pin(spark: SparkSession, df: DataFrame, *, always: bool = False, rejects: Rejects | None = None) -> Pinned:
    """The same rows over one RDD, whose partitions stay the same however often they are computed. If the frame's source
    alone decides the partitions, and `always` is not set, the frame is left as it is."""
    if spark_internals.is_connect(df):
        raise FailedError(
            "the rows of a Spark Connect DataFrame cannot be numbered",
            hint="Create it with `lake.spark`, or write it to files first.",
        )
    with explaining("the batch cannot be computed"):
        planned = spark_internals.query_execution(df)
        rdd = planned.toRdd()
        ours = spark_internals.is_of_session(df, spark)
        is_fixed = ours and not always and planned.analyzed().deterministic()
        if is_fixed and spark_internals.is_narrow(planned.executedPlan()):
            return Pinned(df, rdd.getNumPartitions(), rejects)
        pinned = spark_internals.frame_over(spark, rdd, df)
        partitions = rdd.getNumPartitions()
    return Pinned(pinned, partitions, rejects)


def count(source: Pinned, columns: Sequence[str], *, digest: bool) -> CountedRows:
    """Counts the rows in one pass. Rejected rows are counted separately, and left out of the digest."""
    pinned = source.df
    fit = "true" if source.rejects is None else f"{quoted(source.rejects.reason)} IS NULL"
    fits = F.expr(fit)
    measures = [F.expr(f"count_if({fit}) AS fit"), F.expr(f"count_if(NOT ({fit})) AS rejected")]
    if digest:
        measures += digest_measures([f for f in pinned.schema.fields if f.name in columns], fits)
    if source.rejects is not None:
        measures.append(F.expr(f"array({', '.join(f'bool_or({quoted(c)} IS NOT NULL)' for c in columns)}) AS filled"))
    with explaining("the batch cannot be counted"):
        measured = pinned.groupBy(F.expr("spark_partition_id() AS partition")).agg(*measures).collect()
    per_partition = [0] * source.partitions
    if any(r["partition"] >= source.partitions for r in measured):
        raise StampMismatch("the batch had other partitions when it was counted", hint=MISMATCH_HINT)
    for r in measured:
        per_partition[r["partition"]] = r["fit"]
    text = sums_text([r.asDict() for r in measured], sum(per_partition)) if digest else None
    empty: set[str] = set() if source.rejects is None else set(columns)
    for r in measured if empty else ():
        empty -= {column for column, is_filled in zip(columns, r["filled"], strict=True) if is_filled}
    return CountedRows(tuple(per_partition), sum(r["rejected"] for r in measured), text, frozenset(empty))


def stamp(
    source: Pinned, columns: Sequence[str], rows: SeqRange, counted: CountedRows, deliver_by: Sequence[T.StructField]
) -> DataFrame:
    """The rows that fit, with their internal columns first. `deliver_by` are the fields as the table has them."""
    pinned = source.df
    starts = [0, *accumulate(counted.per_partition)][:-1]
    if source.rejects is not None:
        pinned = pinned.where(F.col(source.rejects.reason).isNull())
    # Expressions are text: each function on a Column is a call to the JVM, and this runs for each batch.
    place = f"(monotonically_increasing_id() & {_PLACE_BITS}L)"
    internal = [
        F.expr(
            f"CASE WHEN {place} < {_of_this_partition(counted.per_partition)} "
            f"THEN {rows.lo}L + {_of_this_partition(starts)} + {place} "
            f"ELSE CAST(raise_error('{MORE_ROWS}') AS bigint) END AS {SEQ_COLUMN}"
        )
    ]
    if deliver_by:
        internal.append(partition_of(deliver_by, columns).alias(PARTITION_COLUMN))
    return pinned.select(*internal, *map(quoted, columns))


MORE_ROWS = "strandline: more rows in a partition than were counted"


def _of_this_partition(values: Sequence[int]) -> str:
    """The expression for the value of the present partition. It has one literal for all values: a job can have a
    hundred thousand partitions."""
    return f"element_at(CAST(split('{','.join(map(str, values))}', ',') AS array<bigint>), spark_partition_id() + 1)"


def partition_of(deliver_by: Sequence[T.StructField], given: Sequence[str]) -> Column:
    """The logical partition of a row, as `partition.encode_partition` computes it. A value is first cast to the table's
    type: an int that goes into a decimal column, for example, must give the same text as in the table."""
    parts = []
    for field in deliver_by:
        value = F.col(quoted(field.name)).cast(field.dataType) if field.name in given else F.lit(None)
        # Bytes are written in hex: as text, all bytes that are not UTF-8 would look the same.
        text = F.hex(value) if isinstance(field.dataType, T.BinaryType) else value.cast("string")
        parts.append(F.concat(F.lit(encode_part(field.name) + "="), F.coalesce(F.url_encode(text), F.lit(NULL_PART))))
    return F.concat_ws("/", *parts)


def check_staged(files: Sequence[NewFile], rows: SeqRange, counted: CountedRows) -> None:
    """Raises StampMismatch unless each partition has as many rows as were counted. A total alone would not show one row
    more in one partition and one fewer in another.

    A file comes from one task, so its bounds are inside one partition's numbers. Places inside a partition are
    consecutive by construction, and the stamp failed for places beyond the count. So equal counts prove that the
    numbers are dense and unique."""
    starts = [rows.lo + s for s in [0, *accumulate(counted.per_partition)]]
    written = [0] * len(counted.per_partition)
    for file in files:
        partition = bisect_right(starts, file.lo) - 1
        if not rows.lo <= file.lo <= file.hi <= rows.hi or bisect_right(starts, file.hi) != bisect_right(
            starts, file.lo
        ):
            raise StampMismatch(
                f"a staged file has sequence numbers of several tasks ({file.lo}..{file.hi})", hint=MISMATCH_HINT
            )
        written[partition] += file.rows
    if tuple(written) != counted.per_partition:
        raise StampMismatch(
            f"the batch changed while it was written: counted {plural(counted.rows, 'row')}, wrote {sum(written):,}",
            hint=MISMATCH_HINT,
        )


def counted_by_source(parts: Sequence[PartitionCount], source: Pinned, columns: Sequence[str]) -> CountedRows:
    """What `count` returns, without a digest, for a file whose reader has counted the rows."""
    if len(parts) != source.partitions:
        raise StampMismatch("the batch had other partitions when it was counted", hint=MISMATCH_HINT)
    filled = {column for part in parts for column, is_filled in zip(columns, part.filled, strict=False) if is_filled}
    rejected = sum(part.rejected for part in parts)
    return CountedRows(tuple(part.fit for part in parts), rejected, None, frozenset(set(columns) - filled))


MISMATCH_HINT = (
    "Its source gives other rows each time it is read (a changing file, a random filter). Write them to files first."
)


def staged_exactly(files: Sequence[NewFile], rows: SeqRange) -> bool | None:
    """For recovery, which has no counts per partition. True if the files' bounds prove that each sequence number is on
    one row. False if the count is wrong. None if only the rows can show it: files of a partitioned table interleave."""
    if sum(f.rows for f in files) != len(rows):
        return False
    expected = rows.lo
    for file in sorted(files, key=lambda f: f.lo):
        if file.lo != expected or file.hi - file.lo + 1 != file.rows:
            return None
        expected = type(rows.lo)(file.hi + 1)
    return True


def is_mismatch(error: Exception) -> bool:
    return isinstance(error, PySparkException | FailedError) and MORE_ROWS in str(error)
