"""Reads a few settled rows directly from the data files, without a JVM.

`why_spark` decides whether the files are enough. If not, no row was returned yet, and Spark reads the request: the
result is the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.core.errors import RuntimeMissing, SchemaError, StorageError, TableUnfit
from strandline.core.read_token import Continuation, ReadBounds
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import PARTITION_COLUMN, SEQ_COLUMN, Dataset, Reserved, Seq, SeqRange
from strandline.iceberg.lake_tables import CatalogAccess
from strandline.iceberg.session.java import find_java, major_version
from strandline.ledger.engine import Ledger, utc_now
from strandline.ledger.ingest import blocks, published_blocks
from strandline.read import foreign_rows, request
from strandline.read.settled_view import check_loaded_with_view

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table

    from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog
    from strandline.iceberg.pyiceberg.plain_files import PlainFile
    from strandline.read.request import ReadRequest

log = logging.getLogger(__name__)

FILES_MAX = 2000  # more entries take PyIceberg longer to plan than Spark
ROWS_MAX = 10_000  # all are in memory before the first is returned
SCANNED_ROWS_MAX = 1_000_000  # a partition, or foreign rows, may leave few of them
BYTES_MAX = 64 << 20
_BATCH_ROWS_MIN = 1024


@dataclass(frozen=True, slots=True)
class RowsOfFiles:
    """Rows as JSON lines, and the token to continue with."""

    token: Continuation  # after the last row
    _lines: Sequence[tuple[str, Seq]]

    @property
    def continuation(self) -> str:
        return self.token.encode()

    def lines(self) -> Iterator[tuple[str, str]]:
        """The rows in sequence order, each with the token that continues after it."""
        for text, number in self._lines:
            yield text, Continuation(self.token.lake, self.token.dataset, number).encode()


@dataclass(frozen=True, slots=True)
class ReadFacts:
    """The facts that decide how a request is read."""

    limit: int | None
    counts_known: bool  # whether it is known which rows are foreign
    may_repeat_numbers: bool  # whether two rows may share a sequence number
    rows: int | None  # at most so many between the bounds; None if delete files or other formats need Spark
    writes_floats: bool
    java: int | None  # the major version of the Java that Spark would run on; None if unknown


def why_spark(facts: ReadFacts) -> str | None:
    """Why Spark must read the request; None if the files can be read directly."""
    if not facts.counts_known:
        return "foreign rows cannot be counted"
    if facts.may_repeat_numbers:
        return "two rows may share a sequence number"
    if facts.rows is None:
        return "the files alone do not give the rows"
    if min(facts.rows, facts.limit or facts.rows) > ROWS_MAX:
        return f"there may be more than {ROWS_MAX:,} rows"
    if facts.writes_floats and facts.java is None:
        return "how Spark writes floating-point numbers depends on its Java"
    return None


def read_from_files(
    config: LakeConfig,
    ledger: Ledger,
    tables: CatalogAccess,
    lake: str,
    dataset: Dataset,
    wanted: ReadRequest,
) -> RowsOfFiles | None:
    """None if Spark must read it. Raises the same errors as Spark's read for a bad request, or for a table that was
    rolled back."""
    if wanted.limit is not None and wanted.limit > ROWS_MAX:
        return None
    try:
        bounds = request.bounds(ledger, lake, dataset, wanted)
        return _FilesRead(config, ledger, lake, dataset, wanted, bounds).read(tables.catalog)
    except _OnlySpark as e:
        log.debug("%s is read through Spark: %s", dataset.name, e)
    except (TableUnfit, StorageError) as e:  # of the table itself
        log.debug("%s is not opened without Spark: %s", dataset.name, e)
    return None


class _OnlySpark(Exception):
    pass


@contextmanager
def _left_to_spark() -> Iterator[None]:
    """Leaves the read to Spark if PyIceberg or pyarrow cannot do it: Spark may, or has the better message."""
    from strandline.iceberg.row_json import OnlyJavaWrites

    try:
        yield
    except (OnlyJavaWrites, SchemaError, StorageError, TableUnfit) as e:
        raise _OnlySpark(str(e)) from e


@dataclass(frozen=True, slots=True)
class _FilesRead:
    config: LakeConfig
    ledger: Ledger
    lake: str
    dataset: Dataset
    wanted: ReadRequest
    bounds: ReadBounds

    def read(self, catalog: PyIcebergCatalog) -> RowsOfFiles:
        """Reads the ledger first, then the table (see `settled_view`)."""
        bounds, wanted = self.bounds, self.wanted
        owned = self.ledger.query(
            published_blocks.owned_ranges, self.dataset.id, after=bounds.after, until=bounds.until
        )
        table, view = check_loaded_with_view(self.ledger, catalog, self.lake, self.dataset)
        names = [f.name for f in table.schema().fields]
        partition = request.partition_of(self.dataset, wanted, names)
        chosen = request.chosen_columns(wanted, names)
        counts = foreign_rows.count(self.config, self.ledger, self.dataset, view, self.lake)
        with _left_to_spark():
            files = self._plan(table)
        facts = ReadFacts(
            wanted.limit,
            counts_known=counts is not None,
            may_repeat_numbers=counts is None or counts.twice != 0,
            rows=None if files is None else sum(f.rows for f in files),
            writes_floats=_writes_floats(table, chosen),
            java=_java(self.config),
        )
        if (why := why_spark(facts)) is not None or files is None:
            raise _OnlySpark(why)
        is_ours = None if counts is None or counts.foreign == 0 else owned
        with _left_to_spark():
            lines = self._lines(table, files, chosen, partition, is_ours, facts.java or 0)
        limited = wanted.limit is not None and len(lines) == wanted.limit
        if not limited:
            self._check_all_settled()
        return RowsOfFiles(
            Continuation(self.lake, self.dataset.uuid, lines[-1][1] if limited else bounds.end), lines
        )

    def _plan(self, table: Table) -> list[PlainFile] | None:
        from strandline.iceberg.pyiceberg.plain_files import plan_plain_files

        if self.bounds.empty or self.bounds.until is None:
            return []
        return plan_plain_files(table, (self.bounds.after or 0) + 1, self.bounds.until, files_max=FILES_MAX)

    def _lines(
        self,
        table: Table,
        files: Sequence[PlainFile],
        chosen: Sequence[str],
        partition: str | None,
        owned: Sequence[SeqRange] | None,
        java: int,
    ) -> list[tuple[str, Seq]]:
        from strandline.iceberg.pyiceberg.plain_files import read_plain_files
        from strandline.iceberg.row_json import json_lines

        if not files or self.bounds.until is None:
            return []
        needed = list(dict.fromkeys([SEQ_COLUMN, *chosen, *([] if partition is None else [PARTITION_COLUMN])]))
        lo, left = (self.bounds.after or 0) + 1, self.wanted.limit or ROWS_MAX
        found: list[tuple[str, Seq]] = []
        scanned = weight = 0
        for batch in read_plain_files(
            table, files, lo, self.bounds.until, columns=needed, rows_max=max(left, _BATCH_ROWS_MIN)
        ):
            scanned, weight = scanned + batch.num_rows, weight + batch.nbytes
            rows = _ours(batch, partition, owned).slice(0, left - len(found))
            found += zip(json_lines(rows.select(list(chosen)), java), _numbers(rows), strict=True)
            if len(found) == self.wanted.limit:
                return found
            if scanned > SCANNED_ROWS_MAX or weight > BYTES_MAX:
                raise _OnlySpark("too much would have to be read")
        return found

    def _check_all_settled(self) -> None:
        """Raises _OnlySpark if a block of a dead writer is open: Spark's read settles it first, and then returns its
        rows."""
        with self.ledger.read() as connection:
            now, opened = utc_now(), blocks.open_blocks(connection, self.dataset.id)
        if self.wanted.until is None and not all(
            isinstance(b, Reserved) and (b.head.offered or b.lease_until > now) for b in opened
        ):
            raise _OnlySpark("a block of a dead writer may have to be settled")


def _ours(batch: pa.RecordBatch, partition: str | None, owned: Sequence[SeqRange] | None) -> pa.RecordBatch:
    import pyarrow as pa
    from pyarrow import compute

    pc: Any = compute
    if owned is not None:
        is_ours = [foreign_rows.contains(owned, SeqRange(n, n)) for n in _numbers(batch)]
        batch = batch.filter(pa.array(is_ours, pa.bool_()))
    return batch if partition is None else batch.filter(pc.equal(batch.column(PARTITION_COLUMN), partition))


def _numbers(batch: pa.RecordBatch) -> list[Seq]:
    numbers: list[Any] = batch.column(SEQ_COLUMN).to_pylist()
    return numbers


def _writes_floats(table: Table, chosen: Sequence[str]) -> bool:
    from strandline.iceberg.row_json import has_floats

    return any(has_floats(field.type) for field in table.schema().select(*chosen).as_arrow())


def _java(config: LakeConfig) -> int | None:
    from strandline.iceberg.session.launch import is_local

    if not is_local(config.settings.spark.master):
        return None  # executors write the numbers, and may have another Java
    try:
        return major_version(find_java().version)
    except RuntimeMissing:
        return None
