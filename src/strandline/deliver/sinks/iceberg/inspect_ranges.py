"""Reads a range back from a table: how many of its rows are there, and what they contain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.core.errors import SchemaError, StorageError
from strandline.core.text.wording import part, plural
from strandline.core.types import SEQ_COLUMN, SeqRange, merge_ranges
from strandline.deliver.sink import Address, Inspected, covers
from strandline.deliver.sinks.iceberg.content_digest import content_digest
from strandline.deliver.sinks.iceberg.record import TableRecord
from strandline.deliver.sinks.row_problems import describe_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from strandline.iceberg.pyiceberg.other_rows import OtherTableReader
    from strandline.iceberg.pyiceberg.other_table import LoadedTable, OtherTable


class IcebergInspector:
    """All ranges are read from one version of the table, whose files are planned once."""

    def __init__(self, table: OtherTable) -> None:
        self._table = table
        self._loaded: LoadedTable | None = None
        self._reader: OtherTableReader | None = None

    def __repr__(self) -> str:
        return f"IcebergInspector({self._table.name})"

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_loaded": None, "_reader": None}

    def close(self) -> None:
        self._loaded = self._reader = None
        self._table.close()

    def inspect(self, address: Address, rows: SeqRange) -> Inspected:
        loaded = self._load()
        if loaded is None:
            return Inspected(None, None, f"the table {self._table.name} is gone")
        lane = TableRecord(loaded.properties).lane(address)
        there = lane.overlapping(rows)
        if not covers(merge_ranges(r.rows for r in there), rows):
            return Inspected(None, None, f"the record of {loaded.name} does not know of {rows}")
        try:
            found = self._read(loaded).rows(rows, address.partition or None)
        except SchemaError as e:
            return Inspected(None, None, e.message)
        whole = all(rows.lo <= r.rows.lo and r.rows.hi <= rows.hi for r in there)
        delivered = sum(r.count for r in there) if whole else None
        if found is None:
            return Inspected(0, None, f"all {plural(delivered, 'row')} of it are missing" if delivered else None)
        return _judged(found, rows, delivered)

    def numbers(self, address: Address, rows: SeqRange) -> pa.Int64Array:
        """The lane's sequence numbers that the table holds, sorted; one on two rows appears twice."""
        import numpy as np
        import pyarrow as pa

        loaded = self._load()
        parts = [] if loaded is None else list(self._read(loaded).numbers(rows, address.partition or None))
        return pa.array(np.sort(np.concatenate(parts)) if parts else [], pa.int64())

    def _load(self) -> LoadedTable | None:
        if self._loaded is None:
            self._loaded = self._table.load()
        return self._loaded

    def _read(self, loaded: LoadedTable) -> OtherTableReader:
        from strandline.iceberg.pyiceberg.other_rows import OtherTableReader

        if self._reader is None:
            self._reader = OtherTableReader(loaded)
        return self._reader


def _judged(found: pa.Table, rows: SeqRange, delivered: int | None) -> Inspected:
    import numpy as np

    numbers = found.column(SEQ_COLUMN).to_numpy()
    if len(numbers) and not (rows.lo <= numbers[0] and numbers[-1] <= rows.hi):
        raise StorageError(f"a read of {rows} gave other rows")
    values, times = np.unique(numbers, return_counts=True)
    twice = [int(n) for n in values[times > 1]]
    problems = []
    if delivered is not None and len(values) < delivered:
        missing = delivered - len(values)
        problems.append(f"{part(missing, delivered, 'row', 'is')} missing")
    foreign = 0 if delivered is None else max(0, len(values) - delivered)
    if wrong := describe_rows(rows, len(values), (), twice, foreign):
        problems.append(wrong)
    return Inspected(len(numbers), content_digest(found), "; ".join(problems) or None)
