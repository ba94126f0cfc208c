"""Builds and sends chunks on the executors, each in sequence order, in one pass.

A task holds the chunk that it gathers and the one that it sends, or the few that a sink takes at once
(`concurrent_send`). The driver gets one outcome per chunk. A task may run twice without harm: the sink knows the range.
"""

from __future__ import annotations

import bisect
import itertools
import operator
import os
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from strandline.core import failpoints
from strandline.core.types import SEQ_COLUMN, SeqRange, merge_ranges
from strandline.deliver.plan.size_scan_spark import selected
from strandline.deliver.quarantine.content import packed
from strandline.deliver.send.concurrent_send import sent
from strandline.deliver.send.patience import patience_of
from strandline.deliver.send.rejection import Halves, Single
from strandline.deliver.sink import Address, ChunkRows, Conflict, Landed, Outcome, Refused, Sender, TryLater, Unknown
from strandline.deliver.sink_options import DeliveryOptions
from strandline.iceberg.spark.conditions import check_condition
from strandline.iceberg.spark.java_errors import explaining
from strandline.iceberg.spark.row_text import lane_of, line

if TYPE_CHECKING:
    import pyarrow as pa

    from strandline.iceberg.number_ranges import Numbers

CANNOT_BUILD = "the chunks cannot be built"
RESULT = "shipped binary"  # a pickled `Shipped`
TASKS_PER_CORE = 4
_SPANS_MAX = 64
KEPT = "_sl_row"
_OTHERWISE = (
    "`strandline sink update NAME --option where=…` changes it; for what is under way, `strandline sink recover NAME` "
    "plans it again."
)


@dataclass(frozen=True, slots=True)
class Shipment:
    """A chunk to build and send."""

    index: int
    address: Address
    rows: SeqRange
    expected: int
    # Whether the content of a row that is refused alone comes back to the driver; only if few chunks are under way.
    brings_content: bool = False


@dataclass(frozen=True, slots=True)
class Nothing:
    """The chunk has no rows, or none that meet the sink's condition."""


@dataclass(frozen=True, slots=True)
class DuplicateNumber:
    """A sequence number is on two rows: someone copied rows together with their numbers. The chunk is not sent."""

    number: int


@dataclass(frozen=True, slots=True)
class Unsent:
    """The chunk was given back untried, because the destination was in trouble with chunks before it."""


BuildResult = Outcome | Nothing | DuplicateNumber | Unsent


@dataclass(frozen=True, slots=True)
class Shipped:
    index: int
    outcome: BuildResult
    withheld: int
    refused: Halves | Single | None = None  # what it held, if it was refused for good


@dataclass(frozen=True, slots=True)
class Cargo:
    """What is delivered: the columns, and the form that the sink wants them in."""

    form: str
    fields: tuple[T.StructField, ...]
    where: str | None

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.fields)


def prepare_rows(df: DataFrame, cargo: Cargo, *marks: Column) -> DataFrame:
    """The internal columns that the tasks need, then the delivered ones. With a condition, the latter are one struct,
    which is null for a row that does not meet it. So each row is evaluated once and is delivered completely or not at
    all, whatever the condition does. Withheld rows cost little to move, and are counted where they are dropped."""
    columns = selected(cargo.fields) if cargo.form == "rows" else [line(cargo.form, cargo.fields).alias("line")]
    if cargo.where is not None:
        check_condition(df, cargo.where, "the rows", hint=_OTHERWISE)
        keep = F.coalesce(F.expr(cargo.where), F.lit(False))
        columns = [F.when(keep, F.struct(*columns)).alias(KEPT)]
    return df.select(*marks, F.col(SEQ_COLUMN).alias("_sl_number"), *columns)


def owned_rows(rows: pa.Table) -> pa.Table:
    """The rows that meet the condition, with their columns unpacked again."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = rows.filter(pc.is_valid(rows[KEPT]))
    kind: Any = rows.schema.field(KEPT).type
    structs: list[Any] = rows[KEPT].chunks
    parts = [struct.flatten() for struct in structs]
    columns = [pa.chunked_array([part[n] for part in parts], field.type) for n, field in enumerate(kind)]
    return pa.table([rows["_sl_number"], *columns], names=["_sl_number", *(field.name for field in kind)])


def ship(
    df: DataFrame,
    shipments: Sequence[Shipment],
    cargo: Cargo,
    sender: Sender,
    *,
    tasks_max: int | None = None,
    in_place: Sequence[int] | None = None,
) -> list[Shipped]:
    """Sends through Spark, whatever the table's layout, with at most `tasks_max` tasks at once. `in_place` gives the
    sequence numbers that the files begin with, if some chunks can be read without the files of others: then each task
    reads its own rows, and nothing is shuffled."""
    ordered = tuple(sorted(shipments, key=lambda s: s.rows.lo))
    lanes = {s.address.partition for s in ordered}
    cores = df.sparkSession.sparkContext.defaultParallelism
    tasks = cores * TASKS_PER_CORE if tasks_max is None else tasks_max
    of_lanes = len(lanes) > 1
    if of_lanes:
        rows = _of_lanes(df, ordered, cargo, tasks)
    else:
        df = df.where(lane_of(df) == lanes.pop())
        if in_place is not None:
            rows = _in_place(df, in_runs(ordered, min(cores, tasks), in_place), cargo)
        else:
            rows = _moved(df, ordered, cargo, tasks)
    work = _ShipmentTask(ordered, of_lanes, cargo, sender, arming(), uuid4().hex)
    with explaining(CANNOT_BUILD):
        found = rows.mapInArrow(work.run, RESULT).collect()  # one result per chunk
    return completed(shipments, [pickle.loads(r["shipped"]) for r in found])


def in_runs(ordered: Sequence[Shipment], runs_max: int, files: Sequence[int] = ()) -> list[tuple[Shipment, ...]]:
    """Neighbouring chunks, one run per task. `files` are the sorted sequence numbers that files begin with: two tasks
    that share a file both read it, so a run ends at a file's end if one is near. Raises ValueError if chunks overlap,
    because they would get each other's rows."""
    if any(a.rows.hi >= b.rows.lo for a, b in itertools.pairwise(ordered)):
        raise ValueError("chunks of one lane overlap")
    each = -(-len(ordered) // runs_max)
    within = [bisect.bisect_right(files, s.rows.hi) for s in ordered]
    edges = [at for at in range(1, len(ordered)) if within[at] != within[at - 1]]
    edges += [len(ordered)] if files else []
    runs, start = [], 0
    while start < len(ordered):
        near = [at for at in edges if each <= 2 * (at - start) <= 3 * each]
        end = min(near, key=lambda at: abs(at - start - each)) if near else start + each
        runs.append(tuple(ordered[start:end]))
        start = min(end, len(ordered))
    return runs


def _in_place(df: DataFrame, runs: Sequence[Sequence[Shipment]], cargo: Cargo) -> DataFrame:
    """All rows of a run in one task, sorted there: this assumes nothing about the files."""
    frames = [df.where(_within(run)).coalesce(1).sortWithinPartitions(SEQ_COLUMN) for run in runs]
    return reduce(DataFrame.union, [prepare_rows(frame, cargo) for frame in frames])


def _moved(df: DataFrame, ordered: Sequence[Shipment], cargo: Cargo, tasks_max: int) -> DataFrame:
    rows = prepare_rows(df.where(_within(ordered)), cargo)
    runs = in_runs(ordered, tasks_max)
    if len(runs) == 1:
        placed = rows.coalesce(1)
    else:
        task: Any = F
        for n, run in enumerate(runs):
            task = task.when(F.col("_sl_number") <= run[-1].rows.hi, n)
        placed = rows.repartitionById(len(runs), task)
    return placed.sortWithinPartitions("_sl_number")


def _within(shipments: Sequence[Shipment]) -> Column:
    """Rows between the chunks may be read as well; they are dropped when chunks are cut."""
    spans = merge_ranges(s.rows for s in shipments)
    if len(spans) > _SPANS_MAX:
        spans = [SeqRange(spans[0].lo, spans[-1].hi)]
    return reduce(operator.or_, [F.col(SEQ_COLUMN).between(r.lo, r.hi) for r in spans])


def _of_lanes(df: DataFrame, ordered: Sequence[Shipment], cargo: Cargo, tasks_max: int) -> DataFrame:
    """Each row with the index of its chunk."""
    known = df.sparkSession.createDataFrame(
        [(s.address.partition, int(s.rows.lo), int(s.rows.hi), s.index) for s in ordered],
        "_sl_lane string, _sl_from long, _sl_to long, _sl_chunk int",
    )
    df = df.where(F.col(SEQ_COLUMN).between(ordered[0].rows.lo, max(s.rows.hi for s in ordered)))
    joined = df.withColumn("_sl_lane", lane_of(df)).join(F.broadcast(known), "_sl_lane")
    rows = prepare_rows(
        joined.where(F.col(SEQ_COLUMN).between(F.col("_sl_from"), F.col("_sl_to"))), cargo, known["_sl_chunk"]
    )
    tasks, first = min(len(ordered), tasks_max), min(s.index for s in ordered)
    task = F.floor((F.col("_sl_chunk") - first) * tasks / len(ordered)).cast("int")
    return rows.repartitionById(tasks, task).sortWithinPartitions("_sl_chunk", "_sl_number")


def completed(shipments: Sequence[Shipment], found: Sequence[Shipped]) -> list[Shipped]:
    """A chunk that no task has seen has no rows any more."""
    known = {s.index: s for s in found}
    return [known.get(s.index, Shipped(s.index, Nothing(), 0)) for s in shipments]


class TaskGuard:
    """Which chunks of a task are still tried: see `patience`."""

    def __init__(self, job: str, *, lanes: int) -> None:
        self.patience = patience_of(job, lanes=lanes)

    def unsent(self, shipment: Shipment) -> Shipped | None:
        return None if self.patience.tries(shipment.address.partition) else returned_shipment(shipment)

    def heard(self, shipment: Shipment, shipped: Shipped) -> None:
        match shipped.outcome:
            case Landed() | Refused() | Conflict():  # an answer about rows: the destination works
                self.patience.landed()
            case TryLater(_, seconds):
                self.patience.trouble(shipment.address.partition, asked_to_wait=seconds is not None)
            case Unknown():
                self.patience.trouble(shipment.address.partition)


def returned_shipment(shipment: Shipment) -> Shipped:
    return Shipped(shipment.index, Unsent(), 0)


def arming() -> tuple[str, int]:
    """For the workers: the failpoint that is armed here, and the process to kill."""
    return os.environ.get("STRANDLINE_FAILPOINT", ""), os.getpid()


def result_batch(shipped: Shipped) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_pylist(
        [{"shipped": pickle.dumps(shipped)}], schema=pa.schema([pa.field("shipped", pa.binary())])
    )


@dataclass(frozen=True)
class _ShipmentTask:
    shipments: tuple[Shipment, ...]
    of_lanes: bool
    cargo: Cargo
    sender: Sender
    armed: tuple[str, int]
    job: str

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        failpoints.arm_worker(*self.armed)
        filled = (pa.Table.from_batches([b]) for b in batches if b.num_rows)
        guard = TaskGuard(self.job, lanes=len({s.address.partition for s in self.shipments}))
        yield from map(result_batch, sent(self.sender, self._chunks(filled), self._send, guard))

    def _chunks(self, parts: Iterator[pa.Table]) -> Iterator[tuple[Shipment, pa.Table]]:
        if not self.of_lanes:
            yield from cut(parts, "_sl_number", self.shipments)
            return
        known = {s.index: s for s in self.shipments}
        for index, rows in by_chunk(parts):
            yield known[index], rows

    def _send(self, sender: Sender, shipment: Shipment, rows: pa.Table) -> Shipped:
        if (number := twice(rows["_sl_number"])) is not None:
            return Shipped(shipment.index, DuplicateNumber(number), 0)
        every = rows["_sl_number"].to_numpy()
        if self.cargo.where is not None:
            rows = owned_rows(rows)
        numbers = rows["_sl_number"].to_numpy()
        if self.cargo.form != "rows":
            rows = rows.select(["_sl_number", "line"]).rename_columns([SEQ_COLUMN, "line"])
        else:
            rows = rows.select(list(self.cargo.columns))
        return send(sender, shipment, rows, numbers, self.cargo.columns, every)


def send(
    sender: Sender,
    shipment: Shipment,
    rows: pa.Table,
    numbers: Numbers,
    columns: tuple[str, ...],
    every: Numbers | None = None,
) -> Shipped:
    """Sends the rows without Spark's schema metadata. Arrow may divide them in any way: a sink makes the same bytes.
    `every` are the sequence numbers of all rows of the chunk, if some are withheld."""
    withheld = 0 if every is None else len(every) - len(numbers)
    if rows.num_rows == 0:
        return Shipped(shipment.index, Nothing(), withheld)
    whole = rows.replace_schema_metadata(None)
    failpoints.hit("deliver.before_send")
    outcome = sender.send(ChunkRows(shipment.address, shipment.rows, whole))
    failpoints.hit("deliver.after_send")
    refused: Halves | Single | None = None
    if isinstance(outcome, Refused):
        refused = halves(numbers, numbers if every is None else every)
        if refused is None:
            refused = Single(int(numbers[0]), packed(whole, columns) if shipment.brings_content else None)
    return Shipped(shipment.index, outcome, withheld, refused)


def halves(numbers: Numbers, every: Numbers) -> Halves | None:
    """Splits by the rows that are sent, because withheld rows cannot be the refused ones. A single sent row is then cut
    out from between the withheld ones. None if the chunk is that one row."""
    if len(every) == 1:
        return None
    middle = int(numbers[max(0, len(numbers) // 2 - 1)])
    if len(numbers) == 1 and every[0] < middle:
        middle -= 1
    return Halves(middle, int(every.searchsorted(middle, side="right")))


def cut(parts: Iterable[pa.Table], number: str, shipments: Sequence[Shipment]) -> Iterator[tuple[Shipment, pa.Table]]:
    """The rows of each chunk that has any. Rows and chunks come in sequence order; rows between chunks are dropped."""
    import numpy as np
    import pyarrow as pa

    at, pieces = 0, list[pa.Table]()
    for part in parts:
        numbers = part[number].to_numpy()
        while at < len(shipments):
            rows = shipments[at].rows
            start = int(np.searchsorted(numbers, rows.lo, side="left"))
            end = int(np.searchsorted(numbers, rows.hi, side="right"))
            if end > start:
                pieces.append(part.slice(start, end - start))
            if end == len(numbers):
                break  # the next part may have more of this chunk
            if pieces:
                yield shipments[at], pa.concat_tables(pieces)
                pieces = []
            at += 1
    if pieces:
        yield shipments[at], pa.concat_tables(pieces)


def by_chunk(parts: Iterable[pa.Table]) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each chunk. They come sorted by the chunk's index; a chunk may end in the middle of a part."""
    import numpy as np
    import pyarrow as pa

    gathered: list[pa.Table] = []
    current: int | None = None
    for part in parts:
        chunks = part["_sl_chunk"].to_numpy()
        edges = [0, *(np.flatnonzero(np.diff(chunks)) + 1).tolist(), part.num_rows]
        for start, end in itertools.pairwise(edges):
            index = int(chunks[start])
            if current is not None and index != current:
                yield current, pa.concat_tables(gathered)
                gathered = []
            current = index
            gathered.append(part.slice(start, end - start))
    if current is not None:
        yield current, pa.concat_tables(gathered)


def twice(numbers: pa.ChunkedArray[Any]) -> int | None:
    """The first sequence number that is not above the one before it."""
    import numpy as np

    values = numbers.to_numpy()
    at = np.flatnonzero(np.diff(values) <= 0)
    return int(values[at[0] + 1]) if len(at) else None


def cargo_of(form: str, fields: Sequence[T.StructField], options: DeliveryOptions) -> Cargo:
    return Cargo(form, tuple(fields), options.where)
