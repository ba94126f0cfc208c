"""Counts rows of a dataset for maintenance. The executors count; one line per lane comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from strandline.core.calling_off import check_not_called_off
from strandline.core.delivery_types import SinkRecord
from strandline.core.errors import DuplicateNumbers, FailedError, RefusedError, StrandlineError, UsageError
from strandline.core.read_token import ReadBounds
from strandline.core.retry import RetryPolicy
from strandline.core.text.wording import plural
from strandline.core.types import PARTITION_COLUMN, SEQ_COLUMN, Dataset, Seq, SeqRange
from strandline.iceberg.spark.conditions import find_instability
from strandline.iceberg.spark.java_errors import explain, explaining
from strandline.iceberg.spark.row_text import lane_of
from strandline.ledger.maintain.skipped_rows import LanePosition
from strandline.maintain.context import MaintainContext
from strandline.maintain.retain_plan import RANGES_MAX, owed, range_or_none
from strandline.read.settled_view import SettledView

_ATTEMPTS_MAX = 3


def settled(context: MaintainContext, dataset: Dataset, sealed: Seq) -> SettledView:
    """The settled rows of a table that was not rolled back, if it is clear which of them are ours."""
    for _ in RetryPolicy(0.0, attempts_max=_ATTEMPTS_MAX).attempts():
        view = context.settled(dataset, ReadBounds(None, sealed))
        twice = None if view.counts is None else view.counts.twice_first
        if twice is not None:
            raise DuplicateNumbers(
                f"{dataset.name}: sequence number {twice} is on two rows, and it is unknown which one is ours to "
                "delete",
                hint=DuplicateNumbers.REMEDY,
            )
        if view.has_no_foreign_rows or len(view.owned) <= RANGES_MAX:
            return view
        counted = view.counts is not None
        if counted or view.tables.view(dataset.name).main == view.view.main:
            raise _cannot_be_counted(dataset, len(view.owned), counted=counted)
        # A commit came in between, and our ranges are too many to be listed in a condition.
    raise FailedError(
        f"{dataset.name} was changed {_ATTEMPTS_MAX} times while its rows were counted, each time before it was "
        "clear which of them are ours",
        hint="Try again when less is committed to it.",
    )


def _cannot_be_counted(dataset: Dataset, ranges: int, *, counted: bool) -> RefusedError:
    if counted:
        return RefusedError(
            f"{dataset.name} has foreign rows, among {plural(ranges, 'range')} of ours",
            hint="Foreign rows must not be deleted with the others: remove them from the table first.",
        )
    return RefusedError(
        f"{dataset.name} may have foreign rows, among {plural(ranges, 'range')} of ours: "
        "another engine deleted rows by their values, and what is left cannot be counted",
        hint=f"`strandline compact {dataset.name}` applies such deletes.",
    )


@dataclass(frozen=True, slots=True)
class RowCounts:
    rows: int  # rows that match the condition
    first: Seq | None
    last: Seq | None
    first_kept: Seq | None  # the first row that does not match


def count(df: DataFrame, condition: str) -> RowCounts:
    """The counts over all lanes."""
    counts = _collect(_aggregated(df, condition))
    return counts[0][1] if counts else RowCounts(0, None, None, None)


def count_owed(
    df: DataFrame,
    lanes: Mapping[str, Sequence[SeqRange]],
    others: SeqRange | None,
    where: str | None,
    condition: str,
) -> dict[str, RowCounts]:
    """Counts the rows that a sink lacks, by lane; without lanes that lack none. `lanes` has the ranges that each of
    them lacks, `others` the range of partitions without a lane. `where` is the sink's condition: only matching rows are
    meant for it."""
    number = F.col(SEQ_COLUMN)
    bounds = [(p, int(r.lo), int(r.hi)) for p, ranges in lanes.items() for r in ranges]
    if where is not None:
        with suppress(PySparkException):  # a condition that no longer fits the table must not hide any row
            if find_instability(df, where) is None:  # nor may one whose result changes each time
                df = df.where(F.expr(where))
    if PARTITION_COLUMN not in df.columns:
        spans = [number.between(lo, hi) for _, lo, hi in bounds]
        if not lanes and others is not None:
            spans = [number.between(int(others.lo), int(others.hi))]
        inside = df.where(reduce(Column.__or__, spans, F.lit(False)))
    else:
        laned = df.withColumn("_sl_lane", lane_of(df))
        lacking = df.sparkSession.createDataFrame(bounds, "_sl_lane string, _sl_from long, _sl_to long")
        inside = laned.join(F.broadcast(lacking), "_sl_lane").where(number.between(F.col("_sl_from"), F.col("_sl_to")))
        if others is not None:
            with_lane = df.sparkSession.createDataFrame([(p,) for p in lanes], "_sl_lane string")
            new = laned.where(number.between(int(others.lo), int(others.hi)))
            inside = inside.drop("_sl_from", "_sl_to").unionByName(
                new.join(F.broadcast(with_lane), "_sl_lane", "left_anti")
            )
    return dict(_collect(_aggregated(inside, condition, lane_of(inside))))


def count_lacking(
    df: DataFrame, record: SinkRecord, positions: Sequence[LanePosition], until: Seq, condition: str
) -> dict[str, RowCounts]:
    """Counts the matching rows up to `until` that the sink does not have, by lane."""
    lanes = {s.partition: owed(s, until) for s in positions}
    others = range_or_none(int(record.planned or 0), int(until))
    where = record.options.get("where") or None
    promised = {s.intent.options.get("where") or None for s in positions if s.intent is not None}
    if promised - {where}:
        where = None  # an open intent has another condition: count too many rows rather than too few
    try:
        return count_owed(df, lanes, others, where, condition)
    except StrandlineError:
        check_not_called_off()  # a cancelled job says nothing about the condition
        if where is None:
            raise
    # The condition fails on some row, so nobody knows which rows the sink would get: count all of them. Otherwise a
    # sink that cannot be delivered to would make every run fail, and nothing would ever be held or dropped for it.
    return count_owed(df, lanes, others, None, condition)


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


def _collect(df: DataFrame) -> list[tuple[str, RowCounts]]:
    with explaining("rows cannot be counted"):
        rows = df.collect()  # a line per lane
    return [(r["_sl_of"], RowCounts(r["rows"], _seq(r["first"]), _seq(r["last"]), _seq(r["kept"]))) for r in rows]


def _seq(value: int | None) -> Seq | None:
    return None if value is None else Seq(value)
