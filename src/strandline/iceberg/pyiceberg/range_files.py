"""Finds the data files of a table that may have rows between two sequence numbers, with the delete files that apply to
each. Importing this imports PyIceberg: heavy paths only.

Manifests never change, so the lowest and highest sequence number of each one is cached: a later search opens only
manifests that are new or that may have rows of its range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table

from strandline.core.errors import TableUnfit
from strandline.core.types import SEQ_COLUMN, SEQ_MAX
from strandline.iceberg.pyiceberg.delete_files import EqualityDeletes, SnapshotDeletes
from strandline.iceberg.pyiceberg.errors import opening
from strandline.iceberg.pyiceberg.number_bounds import null_numbers, number_bounds

_COMPACT = "`strandline compact` rewrites the files, without deleted rows."
_NO_NUMBERS = (int(SEQ_MAX), 0)
_ANY = (0, int(SEQ_MAX))


@dataclass(frozen=True, slots=True)
class RangeFile:
    """A data file that may have rows of a range. Its sequence numbers are from `lo` to `hi`."""

    location: str
    lo: int
    hi: int
    rows: int
    bytes: int
    deletes: tuple[DataFile, ...]  # positional delete files and deletion vectors


class RangeFiles:
    """Finds files of one table, and caches the bounds of its manifests."""

    def __init__(self) -> None:
        self._bounds: dict[str, tuple[int, int]] = {}  # by manifest

    def find(
        self, table: Table, lo: int, hi: int, may_match: Callable[[DataFile], bool] = lambda file: True
    ) -> list[RangeFile]:
        """Files of main's newest snapshot, in the order of their sequence numbers. Raises TableUnfit if only Spark can
        read one of them."""
        name = ".".join(table.name())
        with opening(name):
            if (snapshot := table.current_snapshot()) is None:
                return []
            manifests = snapshot.manifests(table.io)
            data = [m for m in manifests if m.content == ManifestContent.DATA]
            self._bounds = {m.manifest_path: b for m in data if (b := self._bounds.get(m.manifest_path))}
            entries = [e for m in data for e in self._entries(table, m, lo, hi) if may_match(e.data_file)]
            deletes = SnapshotDeletes(table, manifests if entries else ())
            try:
                files = [_range_file(table, name, e, deletes.of(e)) for e in entries]
            except EqualityDeletes:
                raise TableUnfit(f"{name} has equality deletes, which only Spark can read", hint=_COMPACT) from None
            return sorted(files, key=lambda f: (f.lo, f.location))

    def _entries(self, table: Table, manifest: ManifestFile, lo: int, hi: int) -> Iterator[ManifestEntry]:
        cached = self._bounds.get(manifest.manifest_path)
        if cached is not None and not _overlap(cached, lo, hi):
            return
        lowest, highest = _NO_NUMBERS
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            bounds = _bounds(table, entry.data_file)
            lowest, highest = min(lowest, bounds[0]), max(highest, bounds[1])
            if _overlap(bounds, lo, hi):
                yield entry
        self._bounds[manifest.manifest_path] = lowest, highest


def fields_of(table: Table) -> list[dict[str, Any]]:
    """The columns that the table has now, as in Iceberg's JSON, with their ids."""
    return list(table.schema().model_dump()["fields"])


def _overlap(bounds: tuple[int, int], lo: int, hi: int) -> bool:
    return bounds[0] <= hi and lo <= bounds[1]


def _bounds(table: Table, file: DataFile) -> tuple[int, int]:
    field = next((f for f in table.schema().fields if f.name == SEQ_COLUMN), None)
    if field is None or null_numbers(file, field.field_id) == file.record_count:
        return _NO_NUMBERS
    return number_bounds(file, field.field_id) or _ANY


def _range_file(table: Table, name: str, entry: ManifestEntry, deletes: Sequence[DataFile]) -> RangeFile:
    file = entry.data_file
    if file.file_format != FileFormat.PARQUET:
        raise TableUnfit(f"{name} has {file.file_format} files, which only Spark can read", hint=_COMPACT)
    lo, hi = _bounds(table, file)
    return RangeFile(file.file_path, lo, hi, file.record_count, file.file_size_in_bytes, tuple(deletes))
