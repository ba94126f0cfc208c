"""Turns the bodies of a batch into a DataFrame whose rows are in the order of the bodies.

A partition is a run of neighbouring bodies. One task reads them one after the other and passes them to Spark. The task
fails if a body does not have the recorded number of rows. So the position of a row in the DataFrame is its body's place
in the batch plus its position in the body, and `append` derives the sequence number from the position.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from strandline.core.errors import FailedError
from strandline.core.text.wording import plural
from strandline.receive.schema_adapt import SchemaAdapter
from strandline.receive.spool import Spool

if TYPE_CHECKING:
    import pyarrow as pa

    from strandline.ledger.receive.batches import BatchBody

ROWS_PER_TASK_MIN = 50_000  # fewer rows are not worth their own task and file
_SLICE_ROWS = 20_000  # passed to the JVM at a time


@dataclass(frozen=True, slots=True)
class SpooledRows:
    """The spool file of a body, and its number of rows."""

    spool: str
    rows: int


def frame_of(spark: SparkSession, fields: T.StructType, bodies: Sequence[BatchBody], reader: Spool) -> DataFrame:
    """All rows of the bodies, once, in order, with exactly these columns."""
    from pyspark.sql.pandas.types import to_arrow_schema

    loads = in_order(bodies)
    edges = cut(loads, spark.sparkContext.defaultParallelism)
    runs = tuple(tuple(loads[a:b]) for a, b in pairwise(edges))
    adapter = SchemaAdapter(to_arrow_schema(nullable(fields)), tuple(f.name for f in fields if not f.nullable))
    task = _BodiesTask(runs, adapter, reader)
    return spark.range(0, len(runs), 1, len(runs)).mapInArrow(task.run, fields)


def nullable(kind: Any) -> Any:
    match kind:
        case T.StructType():
            return T.StructType([T.StructField(f.name, nullable(f.dataType)) for f in kind.fields])
        case T.ArrayType():
            return T.ArrayType(nullable(kind.elementType))
        case T.MapType():
            return T.MapType(nullable(kind.keyType), nullable(kind.valueType))
    return kind


def in_order(bodies: Sequence[BatchBody]) -> list[SpooledRows]:
    """Raises FailedError unless each body begins where the one before it ends: sequence numbers depend on it."""
    loads, place = [], 0
    for body in bodies:
        if body.place != place or body.rows < 1:
            raise FailedError(f"the record of body {body.id} contradicts itself: place {body.place}, not {place}")
        loads.append(SpooledRows(body.spool, body.rows))
        place += body.rows
    return loads


def cut(loads: Sequence[SpooledRows], tasks_max: int) -> list[int]:
    """Index of each run's first body, then the end of the last run. Runs are not empty, and about equally large."""
    ends = list(accumulate(load.rows for load in loads))
    tasks = max(1, min(tasks_max, len(loads), ends[-1] // ROWS_PER_TASK_MIN))
    inner = {bisect_left(ends, ends[-1] * k // tasks) + 1 for k in range(1, tasks)}
    return sorted({0, *(i for i in inner if i < len(loads)), len(loads)})


@dataclass(frozen=True)
class _BodiesTask:
    runs: tuple[tuple[SpooledRows, ...], ...]
    adapter: SchemaAdapter
    reader: Spool

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for which in batch.column("id").to_numpy().tolist():  # one row per partition: the index of its run
                for load in self.runs[which]:
                    yield from self._body(load)

    def _body(self, load: SpooledRows) -> Iterator[pa.RecordBatch]:
        rows = 0
        with self.reader.read(load.spool) as parts:
            for part in parts:
                rows += part.num_rows
                fit: Any = self.adapter.fit(part)
                for at in range(0, fit.num_rows, _SLICE_ROWS):
                    yield fit.slice(at, _SLICE_ROWS)
        if rows != load.rows:
            received = plural(load.rows, "row", "was")
            raise FailedError(f"the spool file {load.spool} has {plural(rows, 'row')}, and {received} received")
