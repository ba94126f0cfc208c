"""What the stages of delivery work with, and the rows they deliver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline import counting, rollback
from strandline.config import DeliverSettings, LakeConfig
from strandline.continuation import Bounds, Continuation
from strandline.ledger import blocks
from strandline.ledger.engine import Ledger
from strandline.tables.metadata import TableView, check_fit
from strandline.types import Dataset, Seq

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from strandline.tables.spark_tables import DataFile, SparkTables


@dataclass(frozen=True, slots=True)
class DeliverBench:
    lake: str
    config: LakeConfig
    ledger: Ledger
    tables: Callable[[], SparkTables]
    """Starts Spark when it is called for the first time."""

    @property
    def settings(self) -> DeliverSettings:
        return self.config.settings.deliver

    def token(self, dataset: Dataset) -> Callable[[Seq | None], str]:
        return lambda mark: Continuation(self.lake, dataset.table_uuid, mark).encode()


@dataclass(frozen=True)
class Settled:
    """A dataset's table, checked, at one snapshot; rows are read from it between bounds."""

    dataset: Dataset
    view: TableView
    df: DataFrame
    """Every column, internal ones too."""
    clean: bool
    """No row of it is foreign, as far as was counted; else a filter sees to it."""
    all_numbered: bool
    """No row of it waits for a number."""
    bounds: Bounds
    files: Sequence[DataFile] | None = None
    """The files between the bounds, in order, where they were looked at and say all there is to know."""

    def holds(self, after: Seq | None, until: Seq) -> bool:
        """Whether it is good for these numbers, too."""
        lower = (self.bounds.after or 0) <= (after or 0)
        return lower and self.bounds.until is not None and until <= self.bounds.until


def settled(bench: DeliverBench, dataset: Dataset, after: Seq | None, until: Seq) -> Settled:
    """The ledger first, the table after: what the ledger says was published must be there."""
    from strandline import read

    tables = bench.tables()
    with bench.ledger.read() as connection:
        memory = rollback.recall(connection, dataset)
        owned = blocks.owned_ranges(connection, dataset.id, after=after, until=until)
    view = tables.view(dataset.name)
    check_fit(view, dataset, bench.lake)
    rollback.check(bench.ledger, tables, dataset, view, memory)
    counts = counting.count(bench.config, bench.ledger, dataset, view, bench.lake)
    clean = counts is not None and counts.all_ours and view.main_has_current_schema
    df = read.settled_rows(tables, dataset, view, Bounds(after, until), None if clean else owned)
    return Settled(dataset, view, df, clean, counts is not None and counts.unnumbered == 0, Bounds(after, until))
