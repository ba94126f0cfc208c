"""Finds the matching rows of a table, and whether they are ours and settled, ours and not settled yet, or foreign. The
executors count; our ranges may be many."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from strandline.core.errors import StrandlineError, UsageError
from strandline.core.purged_ranges import NAMED_MAX, bound, name_rows
from strandline.core.read_token import ReadBounds
from strandline.core.types import SEQ_COLUMN, Dataset, Seq, SeqRange, merge_ranges
from strandline.iceberg.metadata.identifier import in_spark
from strandline.iceberg.spark.java_errors import JAVA_ERRORS, explain
from strandline.ledger.engine import Connection
from strandline.ledger.ingest import blocks, published_blocks, sequence
from strandline.maintain.context import MaintainContext
from strandline.maintain.purge.plan import RESERVED_MEANWHILE_MAX, MatchingRows
from strandline.maintain.retain_plan import RANGES_MAX
from strandline.maintain.runs import redacted_message
from strandline.read.settled_view import SettledView

_NUMBERS_MAX = 100_000  # sequence numbers that this process reads, to name rows one by one


def own_ranges_above(connection: Connection, dataset: Dataset, sealed: Seq | None) -> list[SeqRange]:
    """The ranges of sequence numbers above the seal that are ours or will be. They are complete if the caller has
    locked the counter."""
    opened = [b.head.rows for b in blocks.open_blocks(connection, dataset.id)]
    return merge_ranges([*published_blocks.owned_ranges(connection, dataset.id, after=sealed), *opened])


@dataclass(frozen=True)
class RowSearch:
    context: MaintainContext
    dataset: Dataset
    where: str

    def main(self) -> DataFrame:
        """The whole table: foreign rows may be about persons, too."""
        return self.context.tables.settled.spark.table(in_spark(self.dataset.name))

    def count_matching(self, sealed: Seq | None) -> MatchingRows:
        """Counts the rows that match the condition, by their sequence numbers."""
        # The table's snapshot is read before the ledger, so the ledger knows every row of ours in it.
        matching = self.main().where(F.expr(self.where))
        with self.context.ledger.read() as connection:
            above = own_ranges_above(connection, self.dataset, sealed)
            counter = sequence.read(connection).last
        number, last = F.col(SEQ_COLUMN), int(sealed or 0)
        settled = F.when(number.between(1, last), number)
        # If there are too many ranges for a condition, every row above the seal waits.
        spans = [number.between(int(r.lo), int(r.hi)) for r in above[:RANGES_MAX]]
        of_ours = reduce(Column.__or__, spans, F.lit(len(above) > RANGES_MAX))
        beyond = F.when((number > last) & ~of_ours, number)
        with _on_every_row():
            counts = matching.agg(
                F.count(settled).alias("rows"), F.min(settled).alias("first"), F.max(settled).alias("last"),
                F.count_if(number < 1).alias("below"), F.count_if(number.isNull()).alias("unnumbered"),
                F.count_if((number > last) & of_ours).alias("waiting"), F.count(beyond).alias("beyond"),
                F.max(F.when(beyond <= counter + RESERVED_MEANWHILE_MAX, beyond)).alias("near"),
            ).collect()[0]  # fmt: skip
            ranges = _name_ranges(matching, counts["first"], counts["last"], counts["rows"])
        return MatchingRows(
            sealed, ranges, counts["rows"], self._count_ours(sealed, counts["rows"]), counts["below"],
            counts["unnumbered"], counts["waiting"], counts["beyond"], counts["near"] or 0,
            counter + RESERVED_MEANWHILE_MAX,
        )  # fmt: skip

    def _count_ours(self, sealed: Seq | None, matching: int) -> int:
        if not matching or sealed is None:
            return 0
        settled = self.settled(sealed)
        if settled.has_no_foreign_rows:
            return matching
        with _on_every_row():
            return min(matching, settled.df.where(F.expr(self.where)).count())

    def settled(self, sealed: Seq) -> SettledView:
        return self.context.settled(self.dataset, ReadBounds(Seq(0), sealed))


def _name_ranges(matching: DataFrame, first: int | None, last: int | None, rows: int) -> tuple[SeqRange, ...]:
    """The ranges of these rows. Of many rows, only the first and last of each part of the whole span are read."""
    if first is None or last is None:
        return ()
    number = F.col(SEQ_COLUMN)
    settled = matching.where(number.between(first, last))
    if rows <= _NUMBERS_MAX:
        return name_rows(r[0] for r in settled.select(number).collect())
    width = -(-(last - first + 1) // NAMED_MAX)
    parts = settled.groupBy(F.floor((number - first) / width)).agg(F.min(number), F.max(number))
    return bound(SeqRange(Seq(r[1]), Seq(r[2])) for r in parts.collect())


@contextmanager
def _on_every_row() -> Iterator[None]:
    try:
        yield
    except Exception as e:
        if is_about_values(e):
            raise UsageError(
                f"this condition fails on some row: {explain(e, 'rows cannot be counted').message}",
                hint="Nothing was deleted. Write one that works for every row, for example with try_cast for cast.",
            ) from e
        if isinstance(e, StrandlineError):
            raise
        raise explain(e, "rows cannot be counted") from e


def is_about_values(error: BaseException) -> bool:
    """Whether a condition failed on a value that it did not expect: a data exception in SQL."""
    states = (cause.getSqlState() or "" for cause in _causes(error) if isinstance(cause, PySparkException))
    return any(state.startswith("22") for state in states)


def text_of_error(error: Exception) -> str:
    """The message of the error. That of an error of Spark is redacted: it may repeat the condition, or values of a
    row."""
    if any(isinstance(cause, JAVA_ERRORS) for cause in _causes(error)):
        return redacted_message(error)
    return explain(error, "it could not be done").message


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__
