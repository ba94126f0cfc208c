"""Rows of a dataset as maintenance counts them: on the executors, a line per lane comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from strandline.core.delivery_types import NOT_PARTITIONED
from strandline.core.errors import DuplicateNumbers, FailedError, RefusedError, UsageError
from strandline.core.read_token import Bounds
from strandline.core.types import PARTITION_COLUMN, SEQ_COLUMN, Dataset, Seq, SeqRange
from strandline.core.wording import plural
from strandline.iceberg.metadata.table_metadata import TableView, check_fit
from strandline.iceberg.spark.conditions import find_instability
from strandline.iceberg.spark.tables import explain
from strandline.ledger.ingest import blocks
from strandline.maintain.context import MaintainContext
from strandline.maintain.retain_plan import RANGES_MAX
from strandline.read import foreign_rows, rollback, scan

if TYPE_CHECKING:
    from strandline.iceberg.spark.tables import SparkTables


_LOOKS_MAX = 3


@dataclass(frozen=True)
class Table:
    """A dataset's table at one snapshot, checked, and its settled rows."""

    tables: SparkTables
    dataset: Dataset
    view: TableView
    df: DataFrame
    """Settled rows that are ours, every column."""
    owned: Sequence[SeqRange] | None
    """Which numbers are ours, where the table has others, too."""


def look(context: MaintainContext, dataset: Dataset, sealed: Seq) -> Table:
    """A table that was rolled back is left alone."""
    for _ in range(_LOOKS_MAX):
        found = _look_once(context, dataset, sealed)
        if found is not None:
            return found
    raise FailedError(
        f"{dataset.name} was changed {_LOOKS_MAX} times while its rows were looked at, each time before it was clear "
        "which of them are ours",
        hint="Try again when less is committed to it.",
    )


def _look_once(context: MaintainContext, dataset: Dataset, sealed: Seq) -> Table | None:
    """None where a commit came in between, and the numbers that are ours are too many to be named one by one."""
    seen = see(context, dataset, sealed)
    if seen.twice is not None:
        raise DuplicateNumbers(
            f"{dataset.name}: number {seen.twice} stands on two rows, and nobody can tell which one is ours to delete",
            hint=DuplicateNumbers.REMEDY,
        )
    others = None if seen.all_ours else seen.owned
    if others is not None and len(others) > RANGES_MAX:
        if not seen.counted and seen.tables.view(dataset.name).main != seen.view.main:
            return None
        raise _not_told_apart(dataset, len(others), counted=seen.counted)
    df = scan.settled_rows(seen.tables, dataset, seen.view, Bounds(None, sealed), others)
    return Table(seen.tables, dataset, seen.view, df, others)


@dataclass(frozen=True)
class Seen:
    """A dataset's table at one snapshot, checked, and which numbers of it are ours."""

    tables: SparkTables
    view: TableView
    owned: list[SeqRange]
    counted: bool
    """Whether it could be told how many rows of it are not ours."""
    all_ours: bool
    twice: Seq | None
    """A number that stands on two rows."""


def see(context: MaintainContext, dataset: Dataset, sealed: Seq) -> Seen:
    """The ledger first, the table after, as everywhere. A table that was rolled back is left alone."""
    with context.ledger.read() as connection:
        memory = rollback.recall(connection, dataset)
        owned = blocks.owned_ranges(connection, dataset.id, until=sealed)
    tables = context.tables()
    view = tables.view(dataset.name)
    check_fit(view, dataset, context.lake_id)
    rollback.check(context.ledger, tables, dataset, view, memory)
    counts = foreign_rows.count(context.config, context.ledger, dataset, view, context.lake_id)
    twice = None if counts is None else counts.twice_first
    return Seen(tables, view, owned, counts is not None, counts is not None and counts.foreign == 0, twice)


def _not_told_apart(dataset: Dataset, ranges: int, *, counted: bool) -> RefusedError:
    if counted:
        return RefusedError(
            f"{dataset.name} has rows whose numbers are not ours, among {plural(ranges, 'range')} of ours",
            hint="Rows that nobody numbered must not be deleted with the others: take them out of the table first.",
        )
    return RefusedError(
        f"{dataset.name} does not tell whether all of its numbers are ours, among {plural(ranges, 'range')} of ours: "
        "another engine deleted rows by their values, and what is left cannot be counted",
        hint=f"`strandline compact {dataset.name}` applies such deletes.",
    )


def lane_of(df: DataFrame) -> Column:
    if PARTITION_COLUMN not in df.columns:
        return F.lit(NOT_PARTITIONED)
    return F.coalesce(F.col(PARTITION_COLUMN), F.lit(NOT_PARTITIONED))


@dataclass(frozen=True, slots=True)
class Counted:
    rows: int
    """That fit the condition."""
    first: Seq | None
    last: Seq | None
    first_kept: Seq | None
    """The first of those that do not."""


def count(df: DataFrame, condition: str) -> Counted:
    """Over all of them."""
    found = _collect(_aggregated(df, condition))
    return found[0][1] if found else Counted(0, None, None, None)


@dataclass(frozen=True, slots=True)
class Owed:
    """What a sink has not got, lane by lane."""

    lanes: Mapping[str, Sequence[SeqRange]]
    others: SeqRange | None
    """For partitions that have no lane yet."""
    where: str | None
    """Only rows that fit it are for the sink."""


def count_owed(df: DataFrame, owed: Owed, condition: str) -> dict[str, Counted]:
    """By lane; those without any such row are left out."""
    number = F.col(SEQ_COLUMN)
    named = [(p, int(r.lo), int(r.hi)) for p, ranges in owed.lanes.items() for r in ranges]
    if owed.where is not None:
        with suppress(PySparkException):  # a condition that no longer fits the table lets nothing through, nor back
            if find_instability(df, owed.where) is None:  # nor does one that gives other answers each time
                df = df.where(F.expr(owed.where))
    if PARTITION_COLUMN not in df.columns:
        spans = [number.between(lo, hi) for _, lo, hi in named]
        if not owed.lanes and owed.others is not None:
            spans = [number.between(int(owed.others.lo), int(owed.others.hi))]
        inside = df.where(reduce(Column.__or__, spans, F.lit(False)))
    else:
        laned = df.withColumn("_sl_lane", lane_of(df))
        known = df.sparkSession.createDataFrame(named, "_sl_lane string, _sl_from long, _sl_to long")
        inside = laned.join(F.broadcast(known), "_sl_lane").where(number.between(F.col("_sl_from"), F.col("_sl_to")))
        if owed.others is not None:
            lanes = df.sparkSession.createDataFrame([(p,) for p in owed.lanes], "_sl_lane string")
            new = laned.where(number.between(int(owed.others.lo), int(owed.others.hi)))
            inside = inside.drop("_sl_from", "_sl_to").unionByName(
                new.join(F.broadcast(lanes), "_sl_lane", "left_anti")
            )
    return dict(_collect(_aggregated(inside, condition, lane_of(inside))))


def _aggregated(df: DataFrame, condition: str, lane: Column | None = None) -> DataFrame:
    number = F.col(SEQ_COLUMN)
    try:
        fits = F.coalesce(F.expr(condition), F.lit(False))
        judged = df.select((F.lit("") if lane is None else lane).alias("_sl_of"), number, fits.alias("_sl_fits"))
    except PySparkException as e:
        raise UsageError(f"this condition cannot be used: {explain(e, condition).message}") from e
    goes, stays = F.when(F.col("_sl_fits"), number), F.when(~F.col("_sl_fits"), number)
    return judged.groupBy("_sl_of").agg(
        F.count(goes).alias("rows"), F.min(goes).alias("first"), F.max(goes).alias("last"), F.min(stays).alias("kept")
    )


def _collect(df: DataFrame) -> list[tuple[str, Counted]]:
    try:
        rows = df.collect()  # a line per lane
    except Exception as e:
        raise explain(e, "rows cannot be counted") from e
    return [(r["_sl_of"], Counted(r["rows"], _seq(r["first"]), _seq(r["last"]), _seq(r["kept"]))) for r in rows]


def _seq(value: int | None) -> Seq | None:
    return None if value is None else Seq(value)
