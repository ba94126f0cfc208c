"""Builds chunks from files in any layout. One pass over the files cuts them into parts of chunks, in Arrow's IPC
format, and Spark brings the parts of each chunk together. Rows are never unpacked.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql import functions as F
from pyspark.sql import types as T

from strandline.core import failpoints
from strandline.core.types import SEQ_COLUMN
from strandline.deliver.send import data_files
from strandline.deliver.send.build_spark import (
    CANNOT_BUILD,
    RESULT,
    Cargo,
    DuplicateNumber,
    Shipment,
    Shipped,
    TaskGuard,
    arming,
    completed,
    result_batch,
    send,
    twice,
)
from strandline.deliver.sink import Sender
from strandline.iceberg.spark.java_errors import explaining
from strandline.iceberg.spark.tables import DataFile
from strandline.storage.s3_settings import S3Settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def ship_gathered(
    spark: SparkSession,
    files: Sequence[DataFile],
    shipments: Sequence[Shipment],
    cargo: Cargo,
    sender: Sender,
    store: S3Settings,
    tasks_max: int | None = None,
) -> list[Shipped]:
    """Sends the chunks of one lane. A task holds the parts of a chunk and the chunk itself. Each chunk has a task of
    its own, unless `tasks_max` allows fewer."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(T.StructType(list(cargo.fields)))
    wanted = sorted(shipments, key=lambda s: s.rows.lo)
    lo, hi = wanted[0].rows.lo, wanted[-1].rows.hi
    locations = tuple(f.location for f in files if f.lo <= hi and lo <= f.hi)
    if not locations:
        return completed(shipments, [])
    cutting = _Cutting(locations, tuple(s.rows.lo for s in wanted), tuple(s.rows.hi for s in wanted), schema, store)
    gathering = _Gathering(tuple(wanted), schema, sender, arming(), uuid4().hex)
    tasks = len(wanted) if tasks_max is None else min(len(wanted), tasks_max)
    with explaining(CANNOT_BUILD):
        pieces = spark.range(0, len(locations), 1, len(locations)).mapInArrow(cutting.run, "place int, rows binary")
        task = F.floor(pieces["place"] * tasks / len(wanted)).cast("int")
        placed = pieces.repartitionById(tasks, task)
        if tasks < len(wanted):
            placed = placed.sortWithinPartitions("place")
        found = placed.mapInArrow(gathering.run, RESULT).collect()  # one result per chunk
    return completed(shipments, [pickle.loads(r["shipped"]) for r in found])


def with_number(schema: pa.Schema) -> pa.Schema:
    """The delivered columns and the sequence number."""
    import pyarrow as pa

    if SEQ_COLUMN in schema.names:
        return schema
    return schema.insert(0, pa.field(SEQ_COLUMN, pa.int64(), nullable=False))


@dataclass(frozen=True)
class _Cutting:
    locations: tuple[str, ...]
    los: tuple[int, ...]
    his: tuple[int, ...]
    schema: pa.Schema
    store: S3Settings

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        fields: list[pa.Field[Any]] = [pa.field("place", pa.int32()), pa.field("rows", pa.binary())]
        for batch in batches:
            for which in batch.column("id").to_numpy().tolist():  # one id per file
                whole = with_number(self.schema)
                parts = data_files.parts(self.locations[which], self.store, whole, self.los[0], self.his[-1])
                for part in parts:
                    for place, rows in self._cut(part):
                        yield pa.RecordBatch.from_pylist(
                            [{"place": place, "rows": _packed(rows)}], schema=pa.schema(fields)
                        )

    def _cut(self, part: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        import numpy as np

        numbers = part[SEQ_COLUMN].to_numpy()
        order = np.argsort(numbers, kind="stable")
        ordered = part.take(order)
        numbers = numbers[order]
        starts = np.searchsorted(numbers, np.array(self.los), side="left")
        ends = np.searchsorted(numbers, np.array(self.his), side="right")
        for place, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            if end > start:
                yield place, ordered.slice(start, end - start)


def _packed(rows: pa.Table) -> bytes:
    import pyarrow as pa

    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(rows)
    return out.getvalue().to_pybytes()


def _in_order(pieces: list[pa.Table]) -> pa.Table:
    """One table, sorted by sequence number. It sorts column by column and drops the parts on the way: otherwise the
    chunk would be in memory twice, and its encoded form once more."""
    import numpy as np
    import pyarrow as pa

    rows = pa.concat_tables(pieces)
    pieces.clear()
    schema, order = rows.schema, np.argsort(rows[SEQ_COLUMN].to_numpy(), kind="stable")
    columns = []
    for name in schema.names:
        columns.append(rows[name].take(order))
        rows = rows.drop_columns([name])
    return pa.table(columns, schema=schema)


@dataclass(frozen=True)
class _Gathering:
    wanted: tuple[Shipment, ...]
    schema: pa.Schema
    sender: Sender
    armed: tuple[str, int]
    job: str

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        failpoints.arm_worker(*self.armed)
        guard = TaskGuard(self.job, lanes=1)
        try:
            for place, pieces in self._by_place(batches, guard):
                shipment = self.wanted[place]
                shipped = guard.unsent(shipment)
                if shipped is None:
                    shipped = self._send(shipment, pieces)
                    guard.heard(shipment, shipped)
                yield result_batch(shipped)
        finally:
            self.sender.close()

    def _by_place(self, batches: Iterable[pa.RecordBatch], guard: TaskGuard) -> Iterator[tuple[int, list[pa.Table]]]:
        """The parts of each chunk of the task; the chunks come one after the other."""
        import pyarrow as pa

        current: int | None = None
        pieces: list[pa.Table] = []
        for batch in batches:
            for n in range(batch.num_rows):  # a part each, never a row
                place = int(batch.column("place")[n].as_py())
                if current is not None and place != current:
                    yield current, pieces
                    pieces = []
                current = place
                if not guard.patience.is_over():
                    with pa.ipc.open_stream(batch.column("rows")[n].as_buffer()) as reader:
                        pieces.append(reader.read_all())
        if current is not None:
            yield current, pieces

    def _send(self, shipment: Shipment, pieces: list[pa.Table]) -> Shipped:
        ordered = _in_order(pieces)
        if (number := twice(ordered[SEQ_COLUMN])) is not None:
            return Shipped(shipment.index, DuplicateNumber(number), 0)
        wanted = ordered.select(self.schema.names)
        return send(self.sender, shipment, wanted, ordered[SEQ_COLUMN].to_numpy(), tuple(self.schema.names))
