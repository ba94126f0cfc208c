"""The Python data source `strandline` of Spark 4.1.

Spark creates `StrandlineSource` and the readers in processes of their own on the driver's machine. A stream's reader
lives as long as its query. Spark pickles `_TaskReader` for the tasks: columns, conditions, and the keys of the
warehouse. Addresses and secrets of the ledger and of the catalog stay on the driver's machine.

Spark 4.1 does not tell a Python stream where it begins when it asks for the latest offset. But it names the last offset
that it has logged, when a query is restarted (`partitions` with twice the same offset), and plans every batch before it
asks again. So the reader knows where the next batch begins, and ends it after at most `max_rows_per_trigger` rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as spark
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from strandline.core.errors import StrandlineError
from strandline.core.types import Seq
from strandline.iceberg.range_rows import RangeOfFile, RowReader
from strandline.read.source.columns import arrow_schema, choose, frame_schema, to_read
from strandline.read.source.options import SourceOptions, check_bounded, parse
from strandline.read.source.settled_source import SettledSource

if TYPE_CHECKING:
    import pyarrow as pa

    from strandline.iceberg.pyiceberg.row_filter import ColumnComparison, RowFilter
    from strandline.read.source.offsets import Offset

NAME = "strandline"


@contextmanager
def _with_hints() -> Iterator[None]:
    """Adds the hint to the message: Spark shows only the text of an error."""
    try:
        yield
    except StrandlineError as e:
        if e.hint is not None:
            e.args = (f"{e.message}. {e.hint}",)
        raise


class StrandlineSource(DataSource):
    """`spark.read.format("strandline")` and `spark.readStream.format("strandline")`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    @property
    def parsed(self) -> SourceOptions:
        return parse(dict(self.options))

    def schema(self) -> StructType:
        with _with_hints(), closing(SettledSource(self.parsed)) as source:
            source.conditions()  # raises for bad ones before a query starts
            return frame_schema(choose(source.fields(), source.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        with _with_hints():
            return _BoundedReader(SettledSource(self.parsed), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        with _with_hints():
            return _StreamReader(SettledSource(self.parsed), schema)


class PushingSource(StrandlineSource):
    """The same for sessions with `spark.sql.python.filterPushdown.enabled`: in others Spark refuses a reader that takes
    filters."""

    def reader(self, schema: StructType) -> DataSourceReader:
        with _with_hints():
            return _PushingReader(SettledSource(self.parsed), schema)


class _FilesPart(InputPartition):
    """Some files, read by one task. Holds locations and sequence numbers, and no secret."""

    def __init__(self, files: Sequence[RangeOfFile]) -> None:
        self.files = tuple(files)


class _TaskReader:
    """The part of a reader that is sent to tasks."""

    def __init__(self, rows: RowReader) -> None:
        self._rows = rows

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        with _with_hints():
            for file in (
                partition.files if isinstance(partition, _FilesPart) else ()
            ):  # a read of nothing has one task, too
                yield from self._rows.read(file)


class _SourceReader:
    """Common to both readers."""

    def __init__(self, source: SettledSource, schema: StructType) -> None:
        self.source = source
        self._schema = schema
        self._pushed: list[ColumnComparison] = []

    @cached_property
    def _conditions(self) -> list[RowFilter]:
        return self.source.conditions(self._pushed)

    @cached_property
    def _rows(self) -> RowReader:
        needed = frozenset(c for one in self._conditions for c in one.columns)
        columns = to_read(self.source.fields(), self._schema, needed)
        in_arrow = tuple(one.in_arrow for one in self._conditions)
        return RowReader(columns.read, arrow_schema(columns.read), columns.names, in_arrow, self.source.store)

    def __reduce__(self) -> tuple[Any, ...]:
        with _with_hints():
            return _TaskReader, (self._rows,)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return _TaskReader(self._rows).read(partition)

    def _planned(self, after: Seq | None, until: Seq, *, whole: bool = False) -> list[InputPartition]:
        from strandline.iceberg.pyiceberg.row_filter import all_of

        parts = self.source.plan(after, until, all_of(self._conditions), self._rows.fields, whole=whole)
        return [_FilesPart(files) for files in parts]


class _BoundedReader(_SourceReader, DataSourceReader):
    def __init__(self, source: SettledSource, schema: StructType) -> None:
        check_bounded(source.options)
        super().__init__(source, schema)

    def partitions(self) -> list[InputPartition]:
        with _with_hints():
            bounds = self.source.bounds()
            if bounds.empty or bounds.until is None:
                return []
            return self._planned(bounds.after, bounds.until, whole=bounds.after is None)


class _PushingReader(_BoundedReader):
    def pushFilters(self, filters: list[spark.Filter]) -> Iterable[spark.Filter]:
        """Returns all filters: Spark checks each row again, and pushed filters only reduce the rows that it gets."""
        self._pushed = [c for f in filters if (c := _comparison(f)) is not None]
        return filters


def _comparison(found: spark.Filter, *, negated: bool = False) -> ColumnComparison | None:
    from strandline.iceberg.pyiceberg.row_filter import ColumnComparison

    if isinstance(found, spark.Not):
        return None if negated else _comparison(found.child, negated=True)
    column: tuple[str, ...] = getattr(found, "attribute", ())
    if len(column) != 1:
        return None
    operations: dict[type[spark.Filter], str] = {
        spark.EqualTo: "=", spark.LessThan: "<", spark.LessThanOrEqual: "<=", spark.GreaterThan: ">",
        spark.GreaterThanOrEqual: ">=", spark.In: "in", spark.StringStartsWith: "starts with",
        spark.IsNull: "is null", spark.IsNotNull: "is not null",
    }  # fmt: skip
    if (operation := operations.get(type(found))) is None:
        return None
    return ColumnComparison(column[0], operation, getattr(found, "value", None), negated)


class _StreamReader(_SourceReader, DataSourceStreamReader):
    """`_at` is where the next batch begins: the end of the last one that Spark has planned or logged. Spark runs one
    batch at a time, and asks for the latest offset when everything planned or logged before is done, and logged as
    done."""

    def __init__(self, source: SettledSource, schema: StructType) -> None:
        super().__init__(source, schema)
        self._at: Offset | None = None

    def initialOffset(self) -> dict[str, Any]:
        with _with_hints():
            return self._where().first.to_json()

    def latestOffset(self) -> dict[str, Any]:
        with _with_hints():
            self.source.done(self._where())
            return self.source.latest(self._where()).to_json()

    def _where(self) -> Offset:
        """For a new query, Spark asks for the latest offset first, then for the initial one."""
        if self._at is None:
            self._at = self.source.first()
        return self._at

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with _with_hints():
            begin, self._at = self.source.offset(start), self.source.offset(end)
            if self._at.after is None or self._at.after <= (begin.after or 0):
                return []
            self.source.begin(begin)
            return self._planned(begin.after, self._at.after)

    def commit(self, end: dict[str, Any]) -> None:
        with _with_hints():
            self.source.done(self.source.offset(end))

    def stop(self) -> None:
        self.source.close()
