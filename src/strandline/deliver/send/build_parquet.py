"""Builds chunks in tasks that read a table's Parquet files directly.

This is faster than Spark, and correct only if the files alone give the rows (`data_files`). If the files do not overlap
in sequence numbers, a task reads a run of chunks from them, each file once, and sends chunk after chunk. Before it
sends anything, it checks that the rows inside each file are in order: a later part of a file must not hold rows of a
chunk that has left. If they are not in order, or the files overlap, the chunks are gathered (`build_gather`). Every way
builds the same table, so a retry that goes another way sends the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql import types as T

from strandline.core import failpoints
from strandline.core.types import SEQ_COLUMN
from strandline.deliver.context import DeliverContext
from strandline.deliver.send import data_files
from strandline.deliver.send.build_gather import ship_gathered, with_number
from strandline.deliver.send.build_spark import (
    CANNOT_BUILD,
    TASKS_PER_CORE,
    Cargo,
    Shipment,
    Shipped,
    TaskGuard,
    arming,
    completed,
    cut,
    in_runs,
    returned_shipment,
    send,
    ship,
)
from strandline.deliver.send.concurrent_send import sent
from strandline.deliver.send.data_files import are_disjoint, plain_files
from strandline.deliver.sink import Sender
from strandline.iceberg.parquet_rows import BATCH_ROWS
from strandline.iceberg.spark.java_errors import explaining
from strandline.iceberg.spark.tables import DataFile
from strandline.read.settled_view import SettledView
from strandline.storage.s3_settings import S3Settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_BATCH_ROWS_MIN = 1 << 10


def ship_either_way(
    context: DeliverContext,
    source: SettledView,
    shipments: Sequence[Shipment],
    cargo: Cargo,
    sender: Sender,
    tasks_max: int | None = None,
) -> list[Shipped]:
    """Sends directly from the files if that is correct, the rest through Spark; at most `tasks_max` tasks at once."""
    shipped: list[Shipped] = []
    left = list(shipments)
    if cargo.form == "rows" and cargo.where is None:
        lo, hi = min(s.rows.lo for s in shipments), max(s.rows.hi for s in shipments)
        files = source.files or plain_files(context, source, cargo.fields, lo - 1, hi)
        spark, store = context.tables.settled.spark, S3Settings.of_warehouse(context.config.settings.warehouse)
        if files and are_disjoint(files):
            shipped, left = ship_directly(spark, files, shipments, cargo, sender, store, tasks_max)
        if files and left:
            return shipped + ship_gathered(spark, files, left, cargo, sender, store, tasks_max)
    if not left:
        return shipped
    in_place = _in_place(context, source, left)
    return shipped + ship(source.df, left, cargo, sender, tasks_max=tasks_max, in_place=in_place)


def _in_place(context: DeliverContext, source: SettledView, shipments: Sequence[Shipment]) -> list[int] | None:
    """The sequence numbers that the files begin with, if some chunks can be read without the files of others."""
    if source.dataset.deliver_by or source.view.main is None or len(shipments) == 1:
        return None
    lo, hi = min(s.rows.lo for s in shipments), max(s.rows.hi for s in shipments)
    name, main = source.dataset.name, source.view.main
    files = source.files or context.tables.settled.data_files(name, main, lo - 1, hi, files_max=data_files.FILES_MAX)
    if files is None or not are_disjoint(files := sorted(files, key=lambda f: f.lo)):
        return None
    return [f.lo for f in files]


def ship_directly(
    spark: SparkSession,
    files: Sequence[DataFile],
    shipments: Sequence[Shipment],
    cargo: Cargo,
    sender: Sender,
    store: S3Settings,
    tasks_max: int | None = None,
) -> tuple[list[Shipped], list[Shipment]]:
    """The outcomes, and the chunks that have to go another way."""
    from pyspark.sql.pandas.types import to_arrow_schema

    runs = _runs(files, shipments, tasks_max or spark.sparkContext.defaultParallelism * TASKS_PER_CORE)
    schema = to_arrow_schema(T.StructType(list(cargo.fields)))
    work = _ParquetTask(schema, store, sender, arming(), uuid4().hex)
    with explaining(CANNOT_BUILD):
        # one result per chunk
        found = spark.sparkContext.parallelize(runs, len(runs)).mapPartitions(work.run).collect()
    known = {s.index for s in found}
    # A run that is not in order reports nothing, nor does a chunk without rows, which the other way checks again.
    left = [s for s in shipments if s.index not in known]
    return completed([s for s in shipments if s.index in known], found), left


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring chunks, and the files that hold their rows."""

    shipments: tuple[Shipment, ...]
    files: tuple[str, ...]

    @property
    def lo(self) -> int:
        return self.shipments[0].rows.lo

    @property
    def hi(self) -> int:
        return self.shipments[-1].rows.hi


def _runs(files: Sequence[DataFile], shipments: Sequence[Shipment], runs_max: int) -> list[_Run]:
    runs = []
    for some in in_runs(sorted(shipments, key=lambda s: s.rows.lo), runs_max, [f.lo for f in files]):
        lo, hi = some[0].rows.lo, some[-1].rows.hi
        runs.append(_Run(some, tuple(f.location for f in files if f.lo <= hi and lo <= f.hi)))
    return runs


@dataclass(frozen=True)
class _ParquetTask:
    schema: pa.Schema
    store: S3Settings
    sender: Sender
    armed: tuple[str, int]
    job: str

    def run(self, runs: Iterable[_Run]) -> Iterator[Shipped]:
        failpoints.arm_worker(*self.armed)
        guard = TaskGuard(self.job, lanes=1)
        for run in runs:
            reported = set()
            for shipped in sent(self.sender, self._until_over(run, guard), self._send, guard):
                reported.add(shipped.index)
                yield shipped
            if guard.patience.is_over():  # the rest was not even read
                yield from (returned_shipment(s) for s in run.shipments if s.index not in reported)

    def _until_over(self, run: _Run, guard: TaskGuard) -> Iterator[tuple[Shipment, pa.Table]]:
        if not guard.patience.is_over():
            for chunk in self._chunks(run):
                yield chunk
                if guard.patience.is_over():
                    return

    def _chunks(self, run: _Run) -> Iterator[tuple[Shipment, pa.Table]]:
        """The rows of each chunk that has any; nothing at all if a file is not in order."""
        if not all(data_files.in_order(f, self.store, run.lo, run.hi) for f in run.files):
            return
        largest = max(s.expected for s in run.shipments)
        rows_max = min(max(largest, _BATCH_ROWS_MIN), BATCH_ROWS)
        whole = with_number(self.schema)
        parts = (
            part
            for location in run.files
            for part in data_files.parts(location, self.store, whole, run.lo, run.hi, rows_max, ordered=True)
        )
        yield from cut(parts, SEQ_COLUMN, run.shipments)

    def _send(self, sender: Sender, shipment: Shipment, rows: pa.Table) -> Shipped:
        names = tuple(self.schema.names)
        return send(sender, shipment, rows.select(names), rows[SEQ_COLUMN].to_numpy(), names)
