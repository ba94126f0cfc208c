"""Chunks are built and sent where the rows are: on the executors, each in sequence order, in one pass.

A task holds the chunk that it is gathering and the one that it is sending. The driver gets a line per chunk: what
became of it. Running a task twice does no harm: the sink knows the range.
"""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from strandline import failpoints
from strandline.deliver.lines import line
from strandline.deliver.options import DeliveryOptions
from strandline.deliver.scan import lane_of, selected
from strandline.deliver.sink import Address, Outcome, Parcel, Sender
from strandline.errors import UsageError
from strandline.tables.spark_tables import explain
from strandline.types import SEQ_COLUMN, SeqRange

if TYPE_CHECKING:
    import pyarrow as pa

RESULT = "index int, withheld long, outcome binary"
_TASKS_PER_CORE = 4


@dataclass(frozen=True, slots=True)
class Shipment:
    """A chunk that is to be built and sent."""

    index: int
    address: Address
    rows: SeqRange
    expected: int


@dataclass(frozen=True, slots=True)
class Nothing:
    """No rows, or none that the sink is to get."""


@dataclass(frozen=True, slots=True)
class Twice:
    """A number stands on two rows: someone copied rows together with their numbers. None of them is sent."""

    number: int


Result = Outcome | Nothing | Twice


@dataclass(frozen=True, slots=True)
class Shipped:
    index: int
    outcome: Result
    withheld: int


@dataclass(frozen=True, slots=True)
class Cargo:
    """What the rows of this delivery look like: their columns, and the form that the sink wants them in."""

    form: str
    fields: tuple[T.StructField, ...]
    where: str | None


def prepare_rows(df: DataFrame, cargo: Cargo) -> DataFrame:
    """The internal columns that the tasks need, and then what is delivered."""
    columns = selected(cargo.fields) if cargo.form == "rows" else [line(cargo.form, cargo.fields).alias("line")]
    keep = _condition(df, cargo.where)
    if keep is not None:  # rows that are left out are counted where they are dropped; they travel light
        columns = [F.when(keep, c).alias(n) for c, n in zip(columns, _names(cargo), strict=True)]
    flags = [] if keep is None else [keep.alias("_sl_keep")]
    return df.select("_sl_chunk", F.col(SEQ_COLUMN).alias("_sl_number"), *flags, *columns)


def _names(cargo: Cargo) -> list[str]:
    return [f.name for f in cargo.fields] if cargo.form == "rows" else ["line"]


def _condition(df: DataFrame, where: str | None) -> Column | None:
    if where is None:
        return None
    try:
        df.where(where)  # the analyser says what is wrong with it
    except Exception as e:
        raise UsageError(
            f"the condition `{where}` does not fit the rows: {explain(e, 'it cannot be read').message}",
            hint="`strandline sink update NAME --option where=…` changes it; for what is under way, `strandline sink "
            "recover NAME` plans anew.",
        ) from e
    return F.coalesce(F.expr(where), F.lit(False))


def in_chunks(df: DataFrame, shipments: Sequence[Shipment]) -> DataFrame:
    """The rows of these chunks, each with its chunk's index."""
    lanes = {s.address.partition for s in shipments}
    number = F.col(SEQ_COLUMN)
    df = df.where(number.between(min(s.rows.lo for s in shipments), max(s.rows.hi for s in shipments)))
    if len(lanes) == 1:
        index: Any = F
        for s in shipments:
            index = index.when(number.between(s.rows.lo, s.rows.hi), s.index)
        df = df.where(lane_of(df) == next(iter(lanes))).withColumn("_sl_chunk", index)
        return df.where(F.col("_sl_chunk").isNotNull())
    known = df.sparkSession.createDataFrame(
        [(s.address.partition, int(s.rows.lo), int(s.rows.hi), s.index) for s in shipments],
        "_sl_lane string, _sl_from long, _sl_to long, _sl_chunk int",
    )
    joined = df.withColumn("_sl_lane", lane_of(df)).join(F.broadcast(known), "_sl_lane")
    return joined.where(number.between(F.col("_sl_from"), F.col("_sl_to")))


def ship(df: DataFrame, shipments: Sequence[Shipment], cargo: Cargo, sender: Sender) -> list[Shipped]:
    """Through Spark, whatever the layout of the table is."""
    spark = df.sparkSession
    rows = prepare_rows(in_chunks(df, shipments), cargo)
    tasks = min(len(shipments), spark.sparkContext.defaultParallelism * _TASKS_PER_CORE)
    if tasks == 1:
        placed = rows.coalesce(1)
    else:
        first = min(s.index for s in shipments)
        task = F.floor((F.col("_sl_chunk") - first) * tasks / len(shipments)).cast("int")
        placed = rows.repartitionById(tasks, task)
    # In one lane chunks follow each other as numbers do; and a sort by one number is many times as fast as one by two.
    one_lane = len({s.address.partition for s in shipments}) == 1
    ordered = placed.sortWithinPartitions(*([] if one_lane else ["_sl_chunk"]), "_sl_number")
    work = _Task({s.index: s for s in shipments}, cargo.form, tuple(_names(cargo)), sender, arming())
    try:
        found = ordered.mapInArrow(work.run, RESULT).collect()  # a line per chunk
    except Exception as e:
        raise explain(e, "the chunks cannot be built") from e
    return completed(shipments, [Shipped(r["index"], pickle.loads(r["outcome"]), r["withheld"]) for r in found])


def completed(shipments: Sequence[Shipment], found: Sequence[Shipped]) -> list[Shipped]:
    """A chunk that no task has seen has no rows any more."""
    known = {s.index: s for s in found}
    return [known.get(s.index, Shipped(s.index, Nothing(), 0)) for s in shipments]


def arming() -> tuple[str, int]:
    """For the workers: what is armed here, and whom to kill."""
    return os.environ.get("STRANDLINE_FAILPOINT", ""), os.getpid()


@dataclass(frozen=True)
class _Task:
    shipments: Mapping[int, Shipment]
    form: str
    names: tuple[str, ...]
    sender: Sender
    armed: tuple[str, int]

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        failpoints.arm_worker(*self.armed)
        columns: list[pa.Field[Any]] = [pa.field("index", pa.int32()), pa.field("withheld", pa.int64())]
        schema = pa.schema([*columns, pa.field("outcome", pa.binary())])
        try:
            for index, rows in by_chunk(batches):
                outcome, withheld = self._send(index, rows)
                yield pa.RecordBatch.from_pylist(
                    [{"index": index, "withheld": withheld, "outcome": pickle.dumps(outcome)}], schema=schema
                )
        finally:
            self.sender.close()

    def _send(self, index: int, rows: pa.Table) -> tuple[Result, int]:
        import pyarrow.compute as pc

        if (number := twice(rows["_sl_number"])) is not None:
            return Twice(number), 0
        withheld = 0
        if "_sl_keep" in rows.column_names:
            kept = rows.filter(pc.field("_sl_keep"))
            withheld, rows = rows.num_rows - kept.num_rows, kept
        if self.form != "rows":
            rows = rows.select(["_sl_number", "line"]).rename_columns([SEQ_COLUMN, "line"])
        else:
            rows = rows.select(list(self.names))
        return send(self.sender, self.shipments[index], rows), withheld


def send(sender: Sender, shipment: Shipment, rows: pa.Table) -> Result:
    """Without Spark's notes, and in pieces of any size: a sink gives the same bytes whatever they are."""
    if rows.num_rows == 0:
        return Nothing()
    whole = rows.replace_schema_metadata(None)
    failpoints.hit("deliver.before_send")
    outcome = sender.send(Parcel(shipment.address, shipment.rows, whole))
    failpoints.hit("deliver.after_send")
    return outcome


def by_chunk(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """Batches come sorted by chunk; a chunk may end in the middle of one."""
    import numpy as np
    import pyarrow as pa

    gathered: list[pa.RecordBatch] = []
    current: int | None = None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        chunks = batch.column("_sl_chunk").to_numpy(zero_copy_only=False)
        edges = [0, *(np.flatnonzero(np.diff(chunks)) + 1).tolist(), batch.num_rows]
        for start, end in itertools.pairwise(edges):
            index = int(chunks[start])
            if current is not None and index != current:
                yield current, pa.Table.from_batches(gathered)
                gathered = []
            current = index
            gathered.append(batch.slice(start, end - start))
    if current is not None:
        yield current, pa.Table.from_batches(gathered)


def twice(numbers: pa.ChunkedArray[Any]) -> int | None:
    """The first number that is not above the one before it."""
    import numpy as np

    values = numbers.to_numpy()
    at = np.flatnonzero(np.diff(values) <= 0)
    return int(values[at[0] + 1]) if len(at) else None


def cargo_of(form: str, fields: Sequence[T.StructField], options: DeliveryOptions) -> Cargo:
    return Cargo(form, tuple(fields), options.where)
