"""Checks a dataset's table and opens its settled rows. All stages that read rows or change a table begin here.

The ledger is read first, then the table: blocks that the ledger has as published must be in the table. Read, append,
delivery, verify, maintenance and replication all use this, so they refuse the same tables with the same messages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.core.errors import RefusedError
from strandline.core.read_token import ReadBounds
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import Dataset, Seq, SeqRange, TableCounts
from strandline.iceberg.metadata.lineage import LineageVerdict, Memory, judge
from strandline.iceberg.metadata.metadata_peek import earlier_links
from strandline.iceberg.metadata.table_metadata import TableView, check_fit
from strandline.ledger.engine import Connection, Ledger
from strandline.ledger.ingest import blocks, published_blocks
from strandline.read import foreign_rows, rollback

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame

    from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog
    from strandline.iceberg.spark.tables import DataFile, SparkTables


@dataclass(frozen=True)
class SettledView:
    """The rows between two bounds of a table at one snapshot."""

    tables: SparkTables
    dataset: Dataset
    view: TableView
    bounds: ReadBounds
    owned: Sequence[SeqRange]  # the sequence numbers between the bounds that are ours
    counts: TableCounts | None  # None if foreign rows cannot be counted
    df: DataFrame  # all columns, internal ones too; no foreign row
    # the data files between the bounds, in order, if they were listed and alone give the rows
    files: Sequence[DataFile] | None = None

    @property
    def has_no_foreign_rows(self) -> bool:
        """No sequence number in it is foreign."""
        return self.counts is not None and self.counts.foreign == 0

    @property
    def may_repeat_numbers(self) -> bool:
        """Two rows may share a sequence number. The count proves nothing after a schema change: the frame then reads
        the newest snapshot, see `settled_rows`."""
        return self.counts is None or self.counts.twice != 0 or not self.view.main_has_current_schema

    @property
    def is_clean(self) -> bool:
        return self.has_no_foreign_rows and not self.may_repeat_numbers

    @property
    def all_numbered(self) -> bool:
        """No row lacks a sequence number."""
        return self.counts is not None and self.counts.unnumbered == 0

    def covers(self, after: Seq | None, until: Seq) -> bool:
        lower = (self.bounds.after or 0) <= (after or 0)
        return lower and self.bounds.until is not None and until <= self.bounds.until


def check_table(
    ledger: Ledger, tables: SparkTables, lake: str, dataset: Dataset, *, settled_to: Seq | None = None
) -> TableView:
    """The table now. Raises if the table lost columns or properties that Strandline needs, if it was rolled back, or if
    its dataset waits for a resync; with `settled_to`, RefusedError if something up to there is not settled."""
    from strandline.iceberg.spark.settled_tag import judge_table

    memory = ledger.query(_recall, dataset, settled_to)
    view = tables.view(dataset.name)
    _check(ledger, lake, dataset, view, lambda: judge_table(tables, dataset.name, view, memory))
    return view


def check_loaded(
    ledger: Ledger, catalog: PyIcebergCatalog, lake: str, dataset: Dataset, *, settled_to: Seq | None = None
) -> Table:
    """As `check_table`, without a JVM."""
    return check_loaded_with_view(ledger, catalog, lake, dataset, settled_to=settled_to)[0]


def check_loaded_with_view(
    ledger: Ledger, catalog: PyIcebergCatalog, lake: str, dataset: Dataset, *, settled_to: Seq | None = None
) -> tuple[Table, TableView]:
    """The table as from `check_loaded`, and its metadata of the same version."""
    from strandline.iceberg.pyiceberg.ordered_rows import has_rows

    memory = ledger.query(_recall, dataset, settled_to)
    table, view = catalog.load_with_view(dataset.name)

    def all_have_rows(ranges: Collection[SeqRange]) -> bool:
        return all(has_rows(table, r.lo, r.hi) for r in ranges)

    _check(ledger, lake, dataset, view, lambda: judge(view, memory, lambda: earlier_links(view), all_have_rows))
    return table, view


def _recall(connection: Connection, dataset: Dataset, settled_to: Seq | None) -> Memory:
    if settled_to is not None:
        blocks.check_resynced(connection, dataset.id)
        sealed = blocks.sealed(connection, dataset.id)
        if sealed is None or sealed < settled_to:
            raise RefusedError(
                f"{dataset.name}: {settled_to} is not settled (sealed: {'nothing' if sealed is None else sealed})",
                hint="Request ranges that an offer names. If the ledger was restored just now, try again.",
            )
    return rollback.recall(connection, dataset)


def _check(ledger: Ledger, lake: str, dataset: Dataset, view: TableView, judged: Callable[[], LineageVerdict]) -> None:
    check_fit(view, dataset, lake)
    ledger.query(blocks.check_resynced, dataset.id)
    rollback.check_verdict(ledger, dataset, judged())


def open_settled(
    config: LakeConfig, ledger: Ledger, tables: SparkTables, lake: str, dataset: Dataset, bounds: ReadBounds
) -> SettledView:
    """The table, checked by `check_table`, and our rows between the bounds."""
    from strandline.read.settled_rows import settled_rows

    owned = ledger.query(published_blocks.owned_ranges, dataset.id, after=bounds.after, until=bounds.until)
    view = check_table(ledger, tables, lake, dataset)
    counts = foreign_rows.count(config, ledger, dataset, view, lake)
    needs_no_filter = counts is not None and counts.foreign == 0 and view.main_has_current_schema
    df = settled_rows(tables, dataset, view, bounds, None if needs_no_filter else owned)
    return SettledView(tables, dataset, view, bounds, owned, counts, df)
