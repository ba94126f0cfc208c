"""Counts rows without a sequence number, or with one that no block of ours owns. Imports PyIceberg: heavy paths only.

For most files, manifests are enough: the bounds and null counts of `_ingest_seq` show whether a file is wholly inside
or outside of the owned ranges. A file is opened only if it is partly inside, lacks these statistics, or has deletes and
rows to count. Then only that column is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestEntry
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.types import NestedField

from strandline.core.types import SEQ_COLUMN, SEQ_MAX, Seq, SeqRange, SnapshotId, TableCounts
from strandline.iceberg.arrow_nested import field_id
from strandline.iceberg.metadata.table_metadata import NUMBERED_SINCE_PROPERTY
from strandline.iceberg.number_ranges import NumberRanges
from strandline.iceberg.pyiceberg.delete_files import EqualityDeletes, SnapshotDeletes
from strandline.iceberg.pyiceberg.duplicate_numbers import NumberedFile, count_duplicates
from strandline.iceberg.pyiceberg.number_bounds import null_numbers, number_bounds

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyiceberg.table import Table

_BATCH_ROWS = 1 << 17


@dataclass(frozen=True, slots=True)
class _ForeignCounts:
    unnumbered: int
    foreign: int
    foreign_from: Seq | None = None

    def __add__(self, other: _ForeignCounts) -> _ForeignCounts:
        lowest = min((n for n in (self.foreign_from, other.foreign_from) if n is not None), default=None)
        return _ForeignCounts(self.unnumbered + other.unnumbered, self.foreign + other.foreign, lowest)


_NONE = _ForeignCounts(0, 0)


def count_foreign_rows(
    table: Table, owned: Sequence[SeqRange], is_trusted: Callable[[SnapshotId, int], bool], last: int
) -> TableCounts | None:
    """The counts of main's current snapshot. None if equality deletes apply to a file with rows to count. `owned` is
    sorted and disjoint. `is_trusted` gets the snapshot and the highest sequence number of a file. It returns whether
    the file has each sequence number once, and none that another file has. `last` is the counter: later blocks are
    above it."""
    snapshot, now = table.current_snapshot(), datetime.now(UTC)
    if snapshot is None:
        return TableCounts(None, 0, 0, now)
    field = next((f for f in table.schema().fields if f.name == SEQ_COLUMN), None)
    field_id = None if field is None else field.field_id
    deletes = SnapshotDeletes(table, snapshot.manifests(table.io))
    counter = _ForeignRowCounter(table, field_id, NumberRanges(owned), deletes, last)
    total = _NONE
    entries: list[ManifestEntry] = []
    try:
        for manifest in snapshot.manifests(table.io):
            if manifest.content == ManifestContent.DATA:
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    total += counter.count(entry)
                    if counter.may_have_numbers(entry):
                        entries.append(entry)
        duplicates = counter.count_duplicates(entries, is_trusted)
    except EqualityDeletes:
        return None
    rows, first = duplicates or (None, None)
    snapshot_id, foreign = SnapshotId(snapshot.snapshot_id), total.foreign + (rows or 0)
    return TableCounts(snapshot_id, total.unnumbered, foreign, now, rows, first, total.foreign_from)


class _ForeignRowCounter:
    def __init__(
        self, table: Table, field_id: int | None, owned: NumberRanges, deletes: SnapshotDeletes, last: int
    ) -> None:
        self._table = table
        self._last = last
        self._field_id = field_id
        self._owned = owned
        self._deletes = deletes
        self._numbered_since = int(table.properties.get(NUMBERED_SINCE_PROPERTY, "-1"))

    def count(self, entry: ManifestEntry) -> _ForeignCounts:
        before_deletes = self._from_metrics(entry)
        if before_deletes == _NONE:
            return before_deletes
        deletes = self._deletes.of(entry)
        if before_deletes is not None and not deletes:
            return before_deletes
        total = _NONE
        for numbers in self._read(entry.data_file, deletes):
            total += self._count_numbers(numbers)
        return total

    def may_have_numbers(self, entry: ManifestEntry) -> bool:
        file = entry.data_file
        nulls = None if self._field_id is None else null_numbers(file, self._field_id)
        return self._field_id is not None and not self._lacks_the_column(entry) and nulls != file.record_count

    def count_duplicates(
        self, entries: Sequence[ManifestEntry], is_trusted: Callable[[SnapshotId, int], bool]
    ) -> tuple[int, Seq | None] | None:
        files = [self._numbered(n, entry, is_trusted) for n, entry in enumerate(entries)]

        def read(file: NumberedFile) -> Iterator[NDArray[np.int64]]:
            entry = entries[file.index]
            for numbers in self._read(entry.data_file, self._deletes.of(entry)):
                yield numbers.drop_null().cast(pa.int64()).to_numpy()

        return count_duplicates(files, read, self._owned.contain)

    def _numbered(
        self, index: int, entry: ManifestEntry, is_trusted: Callable[[SnapshotId, int], bool]
    ) -> NumberedFile:
        file = entry.data_file
        bounds = number_bounds(file, self._field_id or 0)
        lo, hi = (-SEQ_MAX - 1, int(SEQ_MAX)) if bounds is None else bounds
        nulls = null_numbers(file, self._field_id or 0) or 0
        suspect = entry.snapshot_id is None or not is_trusted(SnapshotId(entry.snapshot_id), hi)
        return NumberedFile(index, lo, hi, file.record_count - nulls, suspect)

    def _from_metrics(self, entry: ManifestEntry) -> _ForeignCounts | None:
        """The counts of the file before deletes, from its manifest. None if the file must be read."""
        file, field_id = entry.data_file, self._field_id
        if field_id is None or self._lacks_the_column(entry):
            return _ForeignCounts(file.record_count, 0)
        if (nulls := null_numbers(file, field_id)) is None:
            return None
        if nulls >= file.record_count:
            return _ForeignCounts(file.record_count, 0)
        if (bounds := number_bounds(file, field_id)) is None:
            return None
        lo, hi = bounds
        if self._owned.contain_all(lo, hi):
            return _ForeignCounts(nulls, 0)
        # If the file has numbers on both sides of the counter, the lowest one above it must be read from the rows.
        if self._owned.contain_none(lo, hi) and not lo <= self._last < hi:
            return _ForeignCounts(nulls, file.record_count - nulls, Seq(lo) if lo > self._last else None)
        return None

    def _lacks_the_column(self, entry: ManifestEntry) -> bool:
        added_at = entry.file_sequence_number
        return added_at is not None and 0 < added_at <= self._numbered_since

    def _read(self, file: DataFile, deletes: Sequence[DataFile]) -> Iterator[pa.Array[Any]]:
        if self._field_id is not None and not deletes and file.file_format == FileFormat.PARQUET:
            yield from self._read_parquet(file)
            return
        # If the table does not have our column yet, any other column will do to count the remaining rows.
        field_id = self._table.schema().fields[0].field_id if self._field_id is None else self._field_id
        field = self._table.schema().find_field(field_id)
        optional = NestedField(field_id, field.name, field.field_type, required=False)
        scan = ArrowScan(self._table.metadata, self._table.io, Schema(optional), AlwaysTrue())
        for batch in scan.to_record_batches([FileScanTask(file, set(deletes))]):
            yield batch.column(0) if self._field_id is not None else pa.nulls(batch.num_rows, pa.int64())

    def _read_parquet(self, file: DataFile) -> Iterator[pa.Array[Any]]:
        """Reads in batches. PyIceberg's own scan reads one file as a whole."""
        with self._table.io.new_input(file.file_path).open() as stream:
            parquet = pq.ParquetFile(cast(IO[bytes], stream))
            if (name := self._column_in(parquet.schema_arrow)) is None:
                yield pa.nulls(file.record_count, pa.int64())
                return
            for batch in parquet.iter_batches(_BATCH_ROWS, columns=[name]):
                yield batch.column(0)

    def _column_in(self, schema: pa.Schema) -> str | None:
        """The name of our column in the file: by field id, or by name in files without ids, which Iceberg did not
        write."""
        if ids := {id: f.name for f in schema if (id := field_id(f)) is not None}:
            return None if self._field_id is None else ids.get(self._field_id)
        return SEQ_COLUMN if SEQ_COLUMN in schema.names else None

    def _count_numbers(self, numbers: pa.Array[Any]) -> _ForeignCounts:
        present = numbers.drop_null().cast(pa.int64()).to_numpy()
        unowned = present[~self._owned.contain(present)]
        return _ForeignCounts(
            numbers.null_count, len(unowned), min(unowned[unowned > self._last].tolist(), default=None)
        )
