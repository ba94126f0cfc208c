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
from strandline.deliver.content import packed
from strandline.deliver.lines import line
from strandline.deliver.options import DeliveryOptions
from strandline.deliver.poison import Halves, Single
from strandline.deliver.scan import lane_of, selected
from strandline.deliver.sink import Address, Outcome, Parcel, Refused, Sender
from strandline.errors import UsageError
from strandline.tables.spark_tables import explain
from strandline.types import SEQ_COLUMN, SeqRange

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Numbers = npt.NDArray[np.int64]

RESULT = "shipped binary"
"""A `Shipped` each."""
_TASKS_PER_CORE = 4


@dataclass(frozen=True, slots=True)
class Shipment:
    """A chunk that is to be built and sent."""

    index: int
    address: Address
    rows: SeqRange
    expected: int
    brings_content: bool = False
    """Whether a row that is refused by itself is brought back: only where few chunks are on their way, for the driver
    gets them all."""


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
    refused: Halves | Single | None = None
    """What it held, where it was refused for good."""


@dataclass(frozen=True, slots=True)
class Cargo:
    """What the rows of this delivery look like: their columns, and the form that the sink wants them in."""

    form: str
    fields: tuple[T.StructField, ...]
    where: str | None

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.fields)


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
    work = _Task({s.index: s for s in shipments}, cargo, tuple(_names(cargo)), sender, arming())
    try:
        found = ordered.mapInArrow(work.run, RESULT).collect()  # a line per chunk
    except Exception as e:
        raise explain(e, "the chunks cannot be built") from e
    return completed(shipments, [pickle.loads(r["shipped"]) for r in found])


def completed(shipments: Sequence[Shipment], found: Sequence[Shipped]) -> list[Shipped]:
    """A chunk that no task has seen has no rows any more."""
    known = {s.index: s for s in found}
    return [known.get(s.index, Shipped(s.index, Nothing(), 0)) for s in shipments]


def arming() -> tuple[str, int]:
    """For the workers: what is armed here, and whom to kill."""
    return os.environ.get("STRANDLINE_FAILPOINT", ""), os.getpid()


def result_batch(shipped: Shipped) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_pylist(
        [{"shipped": pickle.dumps(shipped)}], schema=pa.schema([pa.field("shipped", pa.binary())])
    )


@dataclass(frozen=True)
class _Task:
    shipments: Mapping[int, Shipment]
    cargo: Cargo
    names: tuple[str, ...]
    sender: Sender
    armed: tuple[str, int]

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        failpoints.arm_worker(*self.armed)
        try:
            for index, rows in by_chunk(batches):
                yield result_batch(self._send(index, rows))
        finally:
            self.sender.close()

    def _send(self, index: int, rows: pa.Table) -> Shipped:
        import pyarrow.compute as pc

        if (number := twice(rows["_sl_number"])) is not None:
            return Shipped(index, Twice(number), 0)
        every = rows["_sl_number"].to_numpy()
        if "_sl_keep" in rows.column_names:
            rows = rows.filter(pc.field("_sl_keep"))
        numbers = rows["_sl_number"].to_numpy()
        if self.cargo.form != "rows":
            rows = rows.select(["_sl_number", "line"]).rename_columns([SEQ_COLUMN, "line"])
        else:
            rows = rows.select(list(self.names))
        return send(self.sender, self.shipments[index], rows, numbers, self.cargo.columns, every)


def send(
    sender: Sender,
    shipment: Shipment,
    rows: pa.Table,
    numbers: Numbers,
    columns: tuple[str, ...],
    every: Numbers | None = None,
) -> Shipped:
    """Without Spark's notes, and in pieces of any size: a sink gives the same bytes whatever they are. `every` are the
    numbers of the chunk's rows, those that are withheld too, where that is not the same."""
    withheld = 0 if every is None else len(every) - len(numbers)
    if rows.num_rows == 0:
        return Shipped(shipment.index, Nothing(), withheld)
    whole = rows.replace_schema_metadata(None)
    failpoints.hit("deliver.before_send")
    outcome = sender.send(Parcel(shipment.address, shipment.rows, whole))
    failpoints.hit("deliver.after_send")
    refused: Halves | Single | None = None
    if isinstance(outcome, Refused):
        refused = halves(numbers, numbers if every is None else every)
        if refused is None:
            refused = Single(int(numbers[0]), packed(whole, columns) if shipment.brings_content else None)
    return Shipped(shipment.index, outcome, withheld, refused)


def halves(numbers: Numbers, every: Numbers) -> Halves | None:
    """By the rows that are sent, for those that are withheld cannot be what is refused; then one that is left alone is
    cut out from between those. None where a row stands alone."""
    if len(every) == 1:
        return None
    middle = int(numbers[max(0, len(numbers) // 2 - 1)])
    if len(numbers) == 1 and every[0] < middle:
        middle -= 1
    return Halves(middle, int(every.searchsorted(middle, side="right")))


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
