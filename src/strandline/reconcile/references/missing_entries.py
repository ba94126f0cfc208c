"""Describes entries whose files are missing: size, partition, rows and range, and since when.

Reads entries completely, through PyIceberg, and only from the manifests that have such files.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from strandline.core.errors import StorageError
from strandline.core.types import SEQ_COLUMN, Seq, SeqRange
from strandline.iceberg.pyiceberg.number_bounds import null_numbers, number_bounds
from strandline.reconcile.model import FileContent
from strandline.reconcile.paths import canonical, key
from strandline.reconcile.references.collect import ManifestPlace, TableReferences
from strandline.reconcile.references.manifest_workers import ManifestFiles
from strandline.reconcile.references.manifests import entries_by_pyiceberg

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestEntry
    from pyiceberg.table import Table
    from pyiceberg.types import NestedField

_MS_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class Entry:
    """Combines all entries of one file: in main if one of them is, and as young as the youngest."""

    path: str  # canonical
    content: FileContent
    size: int | None = None
    row_count: int | None = None
    partition: str | None = None
    rows: SeqRange | None = None
    added_ns: int | None = None
    in_main: bool = False


def describe(table: Table, references: TableReferences, wanted: Set[str]) -> dict[str, Entry]:
    """By key; only content files of this table."""
    found: dict[str, Entry] = {}
    times = {snapshot.snapshot_id: snapshot.timestamp_ms for snapshot in table.snapshots()}
    field = next((f for f in table.schema().fields if f.name == SEQ_COLUMN), None)
    for manifest in references.manifests:
        here = set(wanted).intersection(manifest.data) | (wanted & manifest.others.keys())
        if not here:
            continue
        place = references.listed[manifest.path]
        for entry in _entries(table, manifest):
            its_key = key(entry.data_file.file_path)
            if its_key in here:
                described = _entry(table, entry, manifest, place, times, field)
                found[its_key] = _together(found.get(its_key), described)
    return found


def _entries(table: Table, manifest: ManifestFiles) -> Iterator[ManifestEntry]:
    from pyiceberg.manifest import ManifestEntryStatus

    try:
        for entry in entries_by_pyiceberg(table.io.new_input(manifest.path)):
            if entry.status != ManifestEntryStatus.DELETED:
                yield entry
    except Exception as e:
        # A damaged file may make its reader raise anything: it affects this table only, and does not end the run.
        said = f"{type(e).__name__}: {str(e)[:200]}"
        raise StorageError(f"the manifest {canonical(manifest.path)} cannot be read again: {said}") from e


def _entry(
    table: Table,
    entry: ManifestEntry,
    manifest: ManifestFiles,
    place: ManifestPlace,
    times: dict[int, int],
    field: NestedField | None,
) -> Entry:
    file = entry.data_file
    snapshot = entry.snapshot_id if entry.snapshot_id is not None else place.listed.snapshot_id
    added_ms = times.get(snapshot, place.first_ms) if snapshot is not None else place.first_ms
    return Entry(
        canonical(file.file_path),
        manifest.others.get(key(file.file_path), FileContent.DATA),
        file.file_size_in_bytes,
        file.record_count,
        _partition(table, file, place.listed.spec_id),
        None if field is None else _range(file, field),
        added_ms * _MS_NS,
        place.in_main,
    )


def _range(file: DataFile, field: NestedField) -> SeqRange | None:
    """None also if rows may lack a sequence number: bounds say nothing about those."""
    unnumbered, bounds = null_numbers(file, field.field_id), number_bounds(file, field.field_id)
    if unnumbered is None and field.required:
        unnumbered = 0
    if unnumbered != 0 or bounds is None:
        return None
    lo, hi = bounds
    return SeqRange(Seq(lo), Seq(hi)) if 1 <= lo <= hi else None


def _partition(table: Table, file: DataFile, spec_id: int | None) -> str | None:
    spec: Any = table.specs().get(spec_id) if spec_id is not None else None
    if spec is None or spec.is_unpartitioned():
        return None
    try:
        return str(spec.partition_to_path(file.partition, table.schema()))
    except (ValueError, IndexError, KeyError, TypeError, AttributeError):
        return None  # a column was dropped since; only a label depends on it


def _together(before: Entry | None, now: Entry) -> Entry:
    if before is None:
        return now
    known = [t for t in (before.added_ns, now.added_ns) if t is not None]
    return replace(now, added_ns=max(known) if len(known) == 2 else None, in_main=before.in_main or now.in_main)
