"""What the stages of delivery work with, and the rows they deliver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.core.read_token import Bounds, Continuation
from strandline.core.settings import DeliverSettings, LakeConfig
from strandline.core.types import Dataset, Seq
from strandline.iceberg.metadata.table_metadata import TableView, check_fit
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import blocks
from strandline.read import foreign_rows, rollback

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from strandline.iceberg.spark.tables import DataFile, SparkTables


@dataclass(frozen=True, slots=True)
class DeliverContext:
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


def settled(context: DeliverContext, dataset: Dataset, after: Seq | None, until: Seq) -> Settled:
    """The ledger first, the table after: what the ledger says was published must be there."""
    from strandline.read import scan

    tables = context.tables()
    with context.ledger.read() as connection:
        memory = rollback.recall(connection, dataset)
        owned = blocks.owned_ranges(connection, dataset.id, after=after, until=until)
    view = tables.view(dataset.name)
    check_fit(view, dataset, context.lake)
    rollback.check(context.ledger, tables, dataset, view, memory)
    counts = foreign_rows.count(context.config, context.ledger, dataset, view, context.lake)
    clean = counts is not None and counts.all_ours and view.main_has_current_schema
    df = scan.settled_rows(tables, dataset, view, Bounds(after, until), None if clean else owned)
    return Settled(dataset, view, df, clean, counts is not None and counts.unnumbered == 0, Bounds(after, until))
