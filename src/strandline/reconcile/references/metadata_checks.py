"""Checks whether a table's metadata file is as it was written, as far as the file itself shows.

A metadata file is plain JSON without a checksum. In most places a flipped bit makes it unreadable, which is noticed.
This module finds others: a changed field name, which hides a list of files; an id that another part contradicts.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from strandline.reconcile.model import FileContent
from strandline.reconcile.paths import canonical, first_that_is_no_text, key
from strandline.reconcile.references import checksums

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

# of format versions 1 to 3; an unknown field may name files that this code would miss
KNOWN_FIELDS = frozenset(
    (
        "format-version", "table-uuid", "location", "last-sequence-number", "last-updated-ms", "last-column-id",
        "schema", "schemas", "current-schema-id", "partition-spec", "partition-specs", "default-spec-id",
        "last-partition-id", "properties", "current-snapshot-id", "snapshots", "snapshot-log", "metadata-log",
        "sort-orders", "default-sort-order-id", "refs", "statistics", "partition-statistics", "next-row-id",
        "row-lineage", "encryption-keys",
    )
)  # fmt: skip
_GZIP_MAGIC = b"\x1f\x8b"


def problem_of(table: Table, *, is_from_file: bool) -> str | None:
    """Why the metadata is not trusted; None if it is. `is_from_file`: read from its file, not sent by a server."""
    problems = _of_content(table) if is_from_file else iter(())
    for problem in (*problems, *_of_meaning(table)):
        return f"its metadata {canonical(table.metadata_location)} is damaged, or not understood: {problem}"
    return None


def _of_content(table: Table) -> Iterator[str]:
    try:
        with table.io.new_input(table.metadata_location).open() as file:
            content = file.read()
        path = canonical(table.metadata_location)
        damaged = checksums.damage(path, content) if path.startswith("/") else None
        if damaged is not None:
            yield damaged
        document: Any = json.loads(gzip.decompress(content) if content.startswith(_GZIP_MAGIC) else content)
        unknown = sorted(document.keys() - KNOWN_FIELDS)
    except Exception as e:
        # It was readable a moment ago; a file that changed since, or a store, may raise anything.
        yield f"it cannot be read again: {type(e).__name__}"
        return
    if unknown:
        yield f"it has a field {unknown[0][:60]!a}, which this version does not know"


def _of_meaning(table: Table) -> Iterator[str]:
    metadata = table.metadata
    kept = {snapshot.snapshot_id for snapshot in metadata.snapshots}
    if len(kept) != len(metadata.snapshots):
        yield "two snapshots have one id"
    current = metadata.current_snapshot_id
    if current is not None and current != -1 and current not in kept:
        yield f"its current snapshot {current} is not among its snapshots"
    astray = [name for name, ref in metadata.refs.items() if ref.snapshot_id not in kept]
    if astray:
        yield f"its branch or tag {astray[0][:60]!a} leads to a snapshot that is not among its snapshots"
    if metadata.format_version != 1 and (newest_sequence(metadata) or 0) > metadata.last_sequence_number:
        yield "a snapshot has a sequence number above the table's last one"
    for what, _, paths in named_files(table):
        if len({key(path) for path in paths}) != len(paths):
            yield f"two of its {what} are one file"
        odd = first_that_is_no_text([*paths, *(key(path) for path in paths)])
        if odd is not None:
            yield f"the path {odd!a} does not decode as text"


def named_files(table: Table) -> Iterator[tuple[str, FileContent, Sequence[str]]]:
    """What they are, and their paths as the metadata spells them."""
    metadata = table.metadata
    log = [table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)]
    yield "metadata files", FileContent.METADATA, log
    yield "manifest lists", FileContent.MANIFEST_LIST, [snapshot.manifest_list for snapshot in metadata.snapshots]
    for what, some in (
        ("statistics files", metadata.statistics),
        ("partition statistics files", metadata.partition_statistics),
    ):
        yield what, FileContent.STATISTICS, [statistics.statistics_path for statistics in some]


def newest_sequence(metadata: TableMetadata) -> int | None:
    return max((s.sequence_number for s in metadata.snapshots if s.sequence_number is not None), default=None)
