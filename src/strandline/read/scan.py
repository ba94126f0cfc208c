"""Bounded reads through Spark: our rows between two sequence numbers, none above the seal, no foreign rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from strandline.core.errors import DuplicateNumbers
from strandline.core.read_token import Continuation
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import PARTITION_COLUMN, SEQ_COLUMN, Dataset, Seq
from strandline.iceberg.metadata.identifier import quoted
from strandline.iceberg.spark.java_errors import explaining
from strandline.iceberg.spark.row_text import line
from strandline.iceberg.spark.tables import SparkTables
from strandline.ledger.engine import Ledger
from strandline.read.request import ReadRequest, bounds, chosen_columns, partition_of
from strandline.read.settled_view import open_settled


@dataclass(frozen=True)
class Rows:
    """The rows as a DataFrame, and the token to continue with. Iterating yields them in sequence order, each with the
    token that continues after it, and with timestamps in UTC: `df.collect()` has them in the process's time zone."""

    df: DataFrame
    token: Continuation  # after the last row
    _all: DataFrame = field(repr=False)  # the same rows with all columns, the sequence number among them

    @property
    def continuation(self) -> str:
        return self.token.encode()

    def __iter__(self) -> Iterator[tuple[Row, str]]:
        fields = self.df.schema.fields
        named = Row(*(f.name for f in fields))
        zoned = [_zoned(f.dataType) for f in fields]
        for values, token in self._in_order(*(_utc(quoted(f.name), f.dataType) for f in fields)):
            yield named(*map(_through, zoned, values)), token

    def lines(self) -> Iterator[tuple[str, str]]:
        """The rows in sequence order as JSON, as sinks of JSON lines get them, each with its token."""
        for [text], token in self._in_order(line("jsonl", self.df.schema.fields)):
            yield text, token

    def _in_order(self, *columns: Column) -> Iterator[tuple[Sequence[Any], str]]:
        last = 0
        ordered = self._all.orderBy(SEQ_COLUMN).select(SEQ_COLUMN, *columns)
        with explaining("the rows cannot be read"):
            for row in ordered.toLocalIterator(prefetchPartitions=True):
                number = row[0]
                if number <= last:
                    raise DuplicateNumbers(f"sequence number {number} is on two rows", hint=DuplicateNumbers.REMEDY)
                last = number
                yield row[1:], Continuation(self.token.lake, self.token.dataset, Seq(number)).encode()


def read_rows(
    config: LakeConfig, ledger: Ledger, lake: str, tables: SparkTables, dataset: Dataset, wanted: ReadRequest
) -> Rows:
    """If two rows may share a sequence number, checks that here: the DataFrame cannot raise later."""
    settled = open_settled(config, ledger, tables, lake, dataset, bounds(ledger, lake, dataset, wanted))
    df, behind = settled.df, settled.bounds.end
    partition = partition_of(dataset, wanted, df.columns)
    chosen = chosen_columns(wanted, df.columns)
    if partition is not None:
        df = df.where(F.col(PARTITION_COLUMN) == partition)
    if wanted.limit is not None and (last := _last_of(df, wanted.limit)) is not None:
        df, behind = df.where(F.col(SEQ_COLUMN) <= last), Seq(last)
    if settled.may_repeat_numbers:
        _check_once(df)
    return Rows(df.select(*map(quoted, chosen)), Continuation(lake, dataset.uuid, behind), df)


def _check_once(df: DataFrame) -> None:
    twice = df.groupBy(SEQ_COLUMN).count().where("count > 1").select(SEQ_COLUMN).limit(1)
    with explaining("the rows cannot be read"):
        found = twice.collect()
    if found:
        raise DuplicateNumbers(f"sequence number {found[0][0]} is on two rows", hint=DuplicateNumbers.REMEDY)


def _last_of(df: DataFrame, limit: int) -> int | None:
    """The sequence number of the last row within the limit; None if there are fewer rows."""
    numbers = df.select(SEQ_COLUMN).orderBy(SEQ_COLUMN).limit(limit)
    with explaining("the rows cannot be read"):
        found = numbers.agg(F.count("*").alias("n"), F.max(SEQ_COLUMN).alias("last")).collect()[0]
    return None if found["n"] < limit else int(found["last"])


def _utc(name: str, kind: T.DataType) -> Column:
    """Timestamps as wall-clock time in UTC, which Python gets unchanged."""
    value = F.col(name)
    return value if _zoned(kind) is None else value.cast(_without_zone(kind))


def _without_zone(kind: T.DataType) -> T.DataType:
    match kind:
        case T.TimestampType():
            return T.TimestampNTZType()
        case T.StructType():
            return T.StructType([T.StructField(f.name, _without_zone(f.dataType), f.nullable) for f in kind.fields])
        case T.ArrayType():
            return T.ArrayType(_without_zone(kind.elementType), kind.containsNull)
        case T.MapType():
            return T.MapType(_without_zone(kind.keyType), _without_zone(kind.valueType), kind.valueContainsNull)
    return kind


def _zoned(kind: T.DataType) -> Callable[[Any], Any] | None:
    """A function that makes the timestamps in a value zoned again; None if it has none."""
    match kind:
        case T.TimestampType():
            return lambda value: value.replace(tzinfo=UTC)
        case T.StructType():
            inner = [_zoned(f.dataType) for f in kind.fields]
            named = Row(*(f.name for f in kind.fields))
            return None if not any(inner) else lambda row: named(*map(_through, inner, row))
        case T.ArrayType():
            element = _zoned(kind.elementType)
            return None if element is None else lambda values: [_through(element, v) for v in values]
        case T.MapType():
            key, item = _zoned(kind.keyType), _zoned(kind.valueType)
            return (
                None
                if key is None and item is None
                else lambda entries: {_through(key, k): _through(item, v) for k, v in entries.items()}
            )
    return None


def _through(zone: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if zone is None or value is None else zone(value)
