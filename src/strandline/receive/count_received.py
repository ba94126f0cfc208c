"""Counts the rows of a sender's bodies that exist: in the table by their sequence numbers, or in the spool.

Only aggregates leave the executors: counts per body, and the positions of a few rows that are missing or duplicate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from strandline.core.errors import StrandlineError
from strandline.core.forward_protocol import LaneName
from strandline.core.text.wording import agreeing, part, plural
from strandline.core.types import SEQ_COLUMN, Dataset, Seq, SeqRange
from strandline.iceberg.lake_tables import LakeTables
from strandline.ledger.engine import Ledger
from strandline.ledger.receive import senders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from strandline.iceberg.spark.tables import SparkTables
    from strandline.ledger.receive.senders import PlacedBody
    from strandline.receive.spool import Spool

BODIES_MAX = 1000
_NAMED_MAX = 5  # bad rows of one body that are reported one by one; the others are only counted
# rows of damaged bodies that are checked one by one; beyond this, a list of rows explains nothing
_BAD_ROWS_MAX = 5_000_000


@dataclass(frozen=True, slots=True)
class CountedRange:
    rows: SeqRange  # the sender's sequence numbers
    count: int  # how many really exist
    digest: str
    problem: str | None


@dataclass(frozen=True)
class ReceivedInspector:
    ledger: Ledger
    tables: LakeTables  # Spark starts if rows have to be counted in a table
    reader: Spool

    def document(self, dataset: Dataset, lane: LaneName, lo: Seq, hi: Seq) -> dict[str, Any]:
        """The answer to the sender's HTTP request."""
        counted, after = self.inspect(dataset, lane, SeqRange(lo, hi))
        ranges = [
            {"lo": r.rows.lo, "hi": r.rows.hi, "rows": r.count, "digest": r.digest, "problem": r.problem}
            for r in counted
        ]
        return {"ranges": ranges} if after is None else {"ranges": ranges, "next": after}

    def inspect(self, dataset: Dataset, lane: LaneName, window: SeqRange) -> tuple[list[CountedRange], Seq | None]:
        """Also returns where to continue, if there is more."""
        bodies, after = self._bodies(dataset, lane, window)
        spooled = {b.rows: self._in_spool(b) for b in bodies if b.first is None}
        if any(found.problem for found in spooled.values()):
            # A body may have been ingested in between, and its file removed: the ledger is read again.
            again = {b.rows: b for b in self._bodies(dataset, lane, window)[0]}
            bodies = [again.get(b.rows, b) for b in bodies]
        placed = [b for b in bodies if b.first is not None]
        counted = {found.rows: found for found in self._in_table(dataset, placed)}
        return [counted.get(b.rows) or spooled[b.rows] for b in bodies], after

    def _bodies(self, dataset: Dataset, lane: LaneName, window: SeqRange) -> tuple[list[PlacedBody], Seq | None]:
        found = self.ledger.query(senders.list_placed, dataset.id, lane, window.lo, window.hi, BODIES_MAX + 1)
        more = found[BODIES_MAX].rows.lo if len(found) > BODIES_MAX else None
        return list(found[:BODIES_MAX]), more

    def _in_spool(self, body: PlacedBody) -> CountedRange:
        if body.is_discarded:
            given_up = f"its {plural(body.count, 'row', 'was')} discarded here by a person"
            return CountedRange(body.rows, 0, body.digest, given_up)
        if body.spool is None:
            problem = f"its {plural(body.count, 'row', 'is')} neither in the table nor in the spool"
            return CountedRange(body.rows, 0, body.digest, problem if body.count else None)
        try:
            rows = self.reader.count(body.spool)
        except (StrandlineError, OSError, ValueError) as e:
            return CountedRange(body.rows, 0, body.digest, f"its file in the spool cannot be read: {e}")
        problem = f"its file in the spool has {plural(rows, 'row')}, and {plural(body.count, 'row', 'was')} received"
        return CountedRange(body.rows, rows, body.digest, None if rows == body.count else problem)

    def _in_table(self, dataset: Dataset, bodies: Sequence[PlacedBody]) -> list[CountedRange]:
        with_rows = [b for b in bodies if b.count]
        tallies = count_in_table(self.tables.settled, dataset, with_rows) if with_rows else {}
        return [_judge(b, tallies.get(b.rows.lo)) for b in bodies]


@dataclass(frozen=True, slots=True)
class ReceivedCounter:
    """How many rows of one body the table has."""

    rows: int
    distinct: int
    # some sequence numbers that do not occur exactly once, and how often they occur
    wrong: tuple[tuple[int, int], ...] = ()


def count_in_table(tables: SparkTables, dataset: Dataset, bodies: Sequence[PlacedBody]) -> dict[int, ReceivedCounter]:
    """Keyed by the sender's first sequence number of each body."""
    from pyspark.sql import functions as F

    view = tables.view(dataset.name)
    if view.main is None:
        return {b.rows.lo: replace(ReceivedCounter(0, 0), wrong=_first_of(b)) for b in bodies}
    numbers = tables.read(dataset.name, view.main).select(F.col(SEQ_COLUMN).alias("_number"))
    sound: dict[int, ReceivedCounter] = {
        b.rows.lo: ReceivedCounter(rows, distinct) for b, rows, distinct in _tallies(numbers, bodies)
    }
    bad = [b for b in bodies if (sound[b.rows.lo].rows, sound[b.rows.lo].distinct) != (b.count, b.count)]
    few = [b for b, rows in zip(bad, accumulate(b.count for b in bad), strict=True) if rows <= _BAD_ROWS_MAX]
    for at, wrong in _wrong_numbers(numbers, few).items():
        sound[at] = replace(sound[at], wrong=tuple(wrong))
    return sound


def _first_of(body: PlacedBody) -> tuple[tuple[int, int], ...]:
    first = body.first or 0
    return tuple((n, 0) for n in range(first, first + min(_NAMED_MAX, body.count)))


def _tallies(numbers: DataFrame, bodies: Sequence[PlacedBody]) -> list[tuple[PlacedBody, int, int]]:
    """Rows, and distinct sequence numbers, of each body, in one pass. One bit per sequence number avoids a shuffle of
    the numbers. The join finds a body by the bitmap bucket of a sequence number."""
    from pyspark.sql import functions as F

    spans = _spans(numbers, bodies)
    bucket = F.bitmap_bucket_number("_number")
    known = spans.select(
        "*", F.explode(F.sequence(F.bitmap_bucket_number("_from"), F.bitmap_bucket_number("_to"))).alias("_bucket")
    )
    inside = _between(numbers, bodies).withColumn("_bucket", bucket).join(F.broadcast(known), "_bucket")
    counted = (
        inside.where(F.col("_number").between(F.col("_from"), F.col("_to")))
        .groupBy("_body", "_bucket")
        .agg(
            F.count("*").alias("rows"),
            F.bitmap_count(F.bitmap_construct_agg(F.bitmap_bit_position("_number"))).alias("distinct"),
        )
        .groupBy("_body")
        .agg(F.sum("rows").alias("rows"), F.sum("distinct").alias("distinct"))
    )
    found = {r["_body"]: (int(r["rows"]), int(r["distinct"])) for r in _collected(counted)}  # one row per body
    return [(b, *found.get(i, (0, 0))) for i, b in enumerate(bodies)]


def _wrong_numbers(numbers: DataFrame, bodies: Sequence[PlacedBody]) -> dict[int, list[tuple[int, int]]]:
    """For each body, a few sequence numbers that do not occur exactly once, and how often they occur."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if not bodies:
        return {}
    expected = _spans(numbers, bodies).select("_body", F.explode(F.sequence("_from", "_to")).alias("_number"))
    there = _between(numbers, bodies).groupBy("_number").agg(F.count("*").alias("times"))
    times = F.coalesce(F.col("times"), F.lit(0))
    place = F.row_number().over(Window.partitionBy("_body").orderBy("_number"))
    wrong = (
        expected.join(there, "_number", "left")
        .where(times != 1)
        .select("_body", "_number", times.alias("times"), place.alias("place"))
        .where(F.col("place") <= _NAMED_MAX)
    )
    found: dict[int, list[tuple[int, int]]] = {}
    for r in sorted(_collected(wrong), key=lambda r: (r["_body"], r["_number"])):  # a few rows per bad body
        found.setdefault(bodies[r["_body"]].rows.lo, []).append((int(r["_number"]), int(r["times"])))
    return found


def _spans(numbers: DataFrame, bodies: Sequence[PlacedBody]) -> DataFrame:
    spans = [(i, int(b.first or 0), int(b.first or 0) + b.count - 1) for i, b in enumerate(bodies)]
    return numbers.sparkSession.createDataFrame(spans, "_body int, _from long, _to long")


def _between(numbers: DataFrame, bodies: Sequence[PlacedBody]) -> DataFrame:
    """The filter is pushed down to Iceberg, which skips files without any of these sequence numbers."""
    from pyspark.sql import functions as F

    first = min(int(b.first or 0) for b in bodies)
    last = max(int(b.first or 0) + b.count - 1 for b in bodies)
    return numbers.where(F.col("_number").between(first, last))


def _collected(df: DataFrame) -> list[Any]:
    from strandline.iceberg.spark.java_errors import explaining

    with explaining("the rows that were received cannot be counted"):
        return df.collect()


def _judge(body: PlacedBody, tally: ReceivedCounter | None) -> CountedRange:
    if tally is None:
        return CountedRange(body.rows, 0, body.digest, None)
    sound = (tally.rows, tally.distinct) == (body.count, body.count)
    return CountedRange(body.rows, tally.rows, body.digest, None if sound else describe(body, tally))


def describe(body: PlacedBody, tally: ReceivedCounter) -> str:
    """What is wrong, row by row (from 1) for the first few; with the sender's sequence number if there are no gaps."""
    dense = body.count == len(body.rows)
    problems = []
    for number, times in tally.wrong:
        place = number - (body.first or 0)
        name = f" (sequence number {body.rows.lo + place} at the sender)" if dense else ""
        how = {0: "is gone", 2: "is there twice"}.get(times, f"is there {times} times")
        problems.append(f"row {place + 1}{name} {how}")
    gone, extra = body.count - tally.distinct, tally.rows - tally.distinct
    if gone + extra > len(problems):
        more = f"{extra:,} {agreeing(extra, 'is')} there once too often"
        problems.append(f"in all, {part(gone, body.count, 'row', 'is')} gone and {more}")
    return "; ".join(problems)
