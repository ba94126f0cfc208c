"""The driver's side of the data source: how far a dataset is settled, and which files have the rows of a range.

It reads the ledger first, then the table. For the seal, the ledger is enough.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.core import failpoints
from strandline.core.errors import RefusedError, SchemaError, UsageError
from strandline.core.partition import choose_partition
from strandline.core.read_token import ReadBounds
from strandline.core.settings.lake_config import find_config, load_config
from strandline.core.types import PARTITION_COLUMN, SEQ_COLUMN, Seq, SeqRange
from strandline.iceberg.metadata.identifier import full_name
from strandline.iceberg.range_rows import RangeOfFile
from strandline.ledger.engine import Connection, Ledger
from strandline.ledger.ingest import blocks, datasets, published_blocks, sequence
from strandline.ledger.maintain import floors
from strandline.ledger.read import consumers
from strandline.ledger.read.consumers import Consumer, ConsumerTerms
from strandline.read import foreign_rows
from strandline.read.consumers import check_leader_known, check_rows_remain, start_of
from strandline.read.settled_view import check_loaded_with_view
from strandline.read.source.columns import types_by_id
from strandline.read.source.offsets import Offset, from_json
from strandline.read.source.options import SourceOptions
from strandline.read.source.partitions import pack
from strandline.storage.s3_settings import S3Settings, send_no_trailers

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from strandline.iceberg.metadata.table_metadata import TableView
    from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog
    from strandline.iceberg.pyiceberg.range_files import RangeFiles
    from strandline.iceberg.pyiceberg.row_filter import ColumnComparison, RowFilter
    from strandline.iceberg.schema.columns import IcebergField


class SettledSource:
    """Opens the lake's ledger at once, and its catalog when first needed."""

    def __init__(self, options: SourceOptions) -> None:
        failpoints.arm_from(os.environ)
        self.options = options
        self.config = load_config(find_config(options.lake, os.environ, Path.cwd()))
        send_no_trailers(self.config.settings.warehouse)
        self.ledger = Ledger(self.config)
        self.ledger.open()
        with self.ledger.read() as connection:
            self.lake = sequence.read(connection).lake
            self.dataset = datasets.get(connection, full_name(options.dataset))
        self._consumer: Consumer | None = None  # set when the query has begun under its name

    def close(self) -> None:
        if "catalog" in self.__dict__:
            self.catalog.close()
        self.ledger.close()

    @cached_property
    def catalog(self) -> PyIcebergCatalog:
        from strandline.iceberg.pyiceberg.catalog import open_catalog

        return open_catalog(self.config)

    @property
    def store(self) -> S3Settings:
        return S3Settings.of_warehouse(self.config.settings.warehouse)

    def fields(self) -> list[IcebergField]:
        """All columns of the table now, our own included."""
        from strandline.iceberg.pyiceberg.range_files import fields_of

        return list(fields_of(self.catalog.load(self.dataset.name)))

    # --- offsets ---

    def first(self) -> Offset:
        """Where a query without a checkpoint begins: by its options, or at its consumer's watermark, or with the first
        row that retention has left."""
        name = self.options.consumer
        if self.options.since is None and name is not None:
            known = self.ledger.query(consumers.find, self.dataset.id, name)
            if known is not None:
                return Offset(self.lake, self.dataset.uuid, known.watermark, known.watermark)
        match self.options.since:
            case None | "earliest":
                after = self.ledger.query(floors.get, self.dataset.id)
            case "latest":
                after = self.ledger.query(blocks.sealed, self.dataset.id)
            case token:
                after = self.ledger.query(start_of, self.dataset, self.lake, token)
        return Offset(self.lake, self.dataset.uuid, after, after)

    def offset(self, found: dict[str, Any]) -> Offset:
        return from_json(found, lake=self.lake, dataset=self.dataset.uuid, name=self.dataset.name)

    def latest(self, at: Offset) -> Offset:
        """The end of the next batch of a query that has everything up to `at`: not below `at`, not above the seal."""
        with self.ledger.read() as connection:
            self._check_still_there(connection)
            sealed = blocks.sealed(connection, self.dataset.id)
            self._check_not_ahead(at.after, sealed)
            check_leader_known(connection, self.dataset, at.after)
            end = self._end(sealed)
            if end is None or end <= (at.after or 0):
                return at
            if (rows_max := self.options.rows_max) is not None:
                end = published_blocks.end_of_rows(
                    connection, self.dataset.id, after=at.after, sealed=end, rows_max=rows_max
                )
        return at.up_to(end)

    def _end(self, sealed: Seq | None) -> Seq | None:
        until = self.options.until
        return sealed if sealed is None or until is None else Seq(min(sealed, until))

    def _check_still_there(self, connection: Connection) -> None:
        """Raises RefusedError if the dataset was dropped while the query runs."""
        now = datasets.find(connection, self.dataset.name)
        if now is None or now.uuid != self.dataset.uuid:
            again = "" if now is None else " and made again"
            raise RefusedError(
                f"{self.dataset.name} was dropped{again} while the query read it",
                hint="Stop the query. A dataset that was made again is another one: it needs a new checkpoint.",
            )

    def _check_not_ahead(self, at: Seq | None, sealed: Seq | None) -> None:
        if at is not None and (sealed is None or at > sealed):
            raise RefusedError(
                f"the query has rows up to {at} of {self.dataset.name}, but the dataset is settled only up "
                f"to {sealed or 'its beginning'}",
                hint="The ledger was restored from an older copy: `strandline recover` resyncs it. Otherwise "
                "the checkpoint belongs to another history of this lake.",
            )

    def bounds(self) -> ReadBounds:
        """The bounds of a read that is no stream."""
        after = None if self.options.since in (None, "earliest") else self.first().after
        with self.ledger.read() as connection:
            sealed = blocks.sealed(connection, self.dataset.id)
        until = self.options.until
        if until is not None and (sealed is None or until > sealed):
            raise UsageError(f"`until` is above what is settled ({until}, sealed: {sealed})")
        return ReadBounds(after, self._end(sealed))

    # --- the consumer ---

    def begin(self, at: Offset) -> None:
        """Begins a query after `at`. If it has a name, retention keeps the rows that it lacks from now on. Raises
        RefusedError if some of them may be gone."""
        if self.options.consumer is None or self._consumer is not None:
            return
        name, on_lag = self.options.consumer, self.options.on_lag
        terms = None if on_lag is None else ConsumerTerms(on_lag, self.options.drop_after)
        with self.ledger.write() as connection:
            self._consumer = consumers.begin(connection, self.dataset, name, at.after, terms)
            check_rows_remain(connection, self.dataset, at.after, self._consumer)

    def done(self, at: Offset) -> None:
        """Moves the consumer's watermark to `at`, which the query's checkpoint has. Raises RefusedError if another
        query uses its name now."""
        self.begin(at)
        if self._consumer is not None and at.after is not None and at.after > (self._consumer.watermark or 0):
            self._consumer = self.ledger.change(consumers.advance, self._consumer, at.after)

    # --- files ---

    def plan(
        self,
        after: Seq | None,
        until: Seq,
        where: RowFilter | None,
        read: Sequence[IcebergField],
        *,
        whole: bool = False,
    ) -> list[list[RangeOfFile]]:
        """The files with rows of `after < _ingest_seq <= until`, grouped by task; the tasks read these columns.
        `whole`: reads the rows that are left, even if retention has deleted some. Raises RefusedError, SchemaError,
        TableRolledBack or DuplicateNumbers."""
        with self.ledger.read() as connection:
            sealed = blocks.sealed(connection, self.dataset.id)
            owned = published_blocks.owned_ranges(connection, self.dataset.id, after=after, until=until)
            check_leader_known(connection, self.dataset, after)
        self._check_not_ahead(until, sealed)
        table, view = check_loaded_with_view(self.ledger, self.catalog, self.lake, self.dataset)
        self._check_columns(table, read)
        if not whole:
            self.ledger.query(check_rows_remain, self.dataset, after, self._consumer, view.floor)
        if view.main is None or not owned:
            return []
        lo, hi = max((after or 0) + 1, owned[0].lo), min(until, owned[-1].hi)
        foreign = self._may_have_foreign(table, view, lo, hi)
        found = self._files.find(table, lo, hi, lambda file: where is None or where.may_match(file))
        parts = pack(found)
        return [
            [RangeOfFile(f.location, lo, hi, f.deletes, _within(owned, f.lo, f.hi) if foreign else None) for f in part]
            for part in parts
        ]

    def _check_columns(self, table: Table, read: Sequence[IcebergField]) -> None:
        """Raises SchemaError if a column was dropped or has another type now: tasks got the columns when the query
        began."""
        from strandline.iceberg.pyiceberg.range_files import fields_of

        now = types_by_id(fields_of(table))
        for field in read:
            if any(now.get(id) != kind for id, kind in types_by_id([field]).items()):
                raise SchemaError(
                    f"{self.dataset.name}: column {field['name']} was dropped or changed its type while the query ran",
                    hint="Start the query again: it continues from its checkpoint with the table's current columns.",
                )

    def _may_have_foreign(self, table: Table, view: TableView, lo: int, hi: int) -> bool:
        counts = foreign_rows.count(self.config, self.ledger, self.dataset, view, self.lake)
        if counts is None or counts.twice != 0:
            from strandline.iceberg.pyiceberg.ordered_rows import read_ordered

            with closing(read_ordered(table, lo, hi, columns=[SEQ_COLUMN]).batches) as batches:  # type: ignore[type-var]
                for _ in batches:  # raises DuplicateNumbers
                    pass
        return counts is None or counts.foreign != 0

    @cached_property
    def _files(self) -> RangeFiles:
        from strandline.iceberg.pyiceberg.range_files import RangeFiles

        return RangeFiles()

    # --- conditions ---

    def conditions(self, comparisons: Sequence[ColumnComparison] = ()) -> list[RowFilter]:
        """The conditions of the options, and those that Spark has pushed down, if they mean the same in Iceberg."""
        from strandline.iceberg.pyiceberg.row_filter import equals, of_comparison, parse_where

        if self.options.where is None and self.options.partition is None and not comparisons:
            return []
        schema = self.catalog.load(self.dataset.name).schema()
        found = [] if self.options.where is None else [parse_where(schema, self.options.where)]
        if (chosen := self.options.partition) is not None:
            if not self.dataset.deliver_by:
                raise SchemaError(
                    f"{self.dataset.name} has no logical partitions", hint="It was made without --deliver-by."
                )
            found.append(equals(schema, PARTITION_COLUMN, choose_partition(self.dataset.deliver_by, chosen)))
        return [*found, *(f for c in comparisons if (f := of_comparison(schema, c)) is not None)]


def _within(owned: Sequence[SeqRange], lo: int, hi: int) -> tuple[SeqRange, ...]:
    return tuple(r for r in owned if r.lo <= hi and lo <= r.hi)
