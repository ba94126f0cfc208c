"""Counts the rows of a dataset's table that no block owns: unnumbered rows and foreign rows.

Counting reads manifests, so the result is stored with its snapshot. It stays valid while all later commits are ours or
only rewrite files, and no later block can have the sequence number of a foreign row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import Dataset, DatasetId, Seq, SeqRange, SnapshotId, TableCounts, merge_ranges
from strandline.iceberg.metadata.table_metadata import TableView, WapId
from strandline.ledger.engine import Connection, Ledger, utc_now
from strandline.ledger.ingest import blocks, datasets, published_blocks, sequence

IsTrusted = Callable[[SnapshotId, int], bool]


def still_right(
    counts: TableCounts | None, view: TableView, lake: str, owned: Sequence[SeqRange]
) -> TableCounts | None:
    """The counts, if no later commit could have changed them. `owned` are the sequence numbers of published and open
    blocks: a snapshot with our mark may still be of an abandoned block."""
    if counts is None:
        return None
    for snapshot in view.ancestors(view.main):
        if snapshot.id == counts.snapshot:
            return counts
        wap = WapId.parse(snapshot.wap)
        ours = wap is not None and wap.lake == lake and snapshot.operation == "append" and contains(owned, wap.rows)
        # Numbering adopted rows replaces files, too, and changes the count of unnumbered rows.
        moved = snapshot.operation == "replace" and wap is None
        if not (ours or moved):
            return None
        # The block's writer may have checked for foreign numbers before this one was written, and reserved after the
        # count.
        if wap is not None and counts.foreign_from is not None and wap.rows.hi >= counts.foreign_from:
            return None
        if snapshot.parent is None:
            return counts if counts.snapshot is None else None
    return counts if view.main is None and counts.snapshot is None else None


def contains(owned: Sequence[SeqRange], rows: SeqRange) -> bool:
    """`owned` is sorted and merged."""
    at = bisect_right(owned, rows.lo, key=lambda r: r.lo) - 1
    return at >= 0 and rows.hi <= owned[at].hi


def counts_from_history(
    ledger: Ledger, lake: str, tables: Sequence[tuple[Dataset, TableView]]
) -> dict[DatasetId, TableCounts]:
    """The counts of tables whose stored counts are still valid, stored again with the current snapshots. Other tables
    must be counted. Makes a fixed number of queries."""
    if not tables:
        return {}
    with ledger.read_consistent() as connection:
        stored = datasets.counts_by_dataset(connection)
        changed = {
            d.id: (stored.get(d.id), view)
            for d, view in tables
            if (known := stored.get(d.id)) is None or known.snapshot != view.main
        }
        opened: dict[DatasetId, list[SeqRange]] = {}
        for b in blocks.open_blocks(connection):
            opened.setdefault(b.head.dataset, []).append(b.head.rows)
        since = {id: _lowest_since(known, view) for id, (known, view) in changed.items()}
        owned = published_blocks.owned_ranges_of(connection, since)
    found = {d.id: stored[d.id] for d, _ in tables if d.id not in changed}
    new: dict[DatasetId, TableCounts] = {}
    for id, (known, view) in changed.items():
        valid = still_right(known, view, lake, merge_ranges([*owned[id], *opened.get(id, ())]))
        if valid is not None:
            new[id] = replace(valid, snapshot=view.main)
        elif view.main is None:
            new[id] = TableCounts(None, 0, 0, utc_now())
    if to_store := {id: counts for id, counts in new.items() if id not in opened}:
        ledger.change(datasets.set_counts, to_store)
    return found | new


def count(config: LakeConfig, ledger: Ledger, dataset: Dataset, view: TableView, lake: str) -> TableCounts | None:
    """The stored counts if still valid, else new ones, which are stored. None for a table with equality deletes."""
    with ledger.read() as connection:
        stored = datasets.counts(connection, dataset.id)
        if stored is not None and stored.snapshot == view.main:
            return stored
        since = _lowest_since(stored, view)
        owned, unsettled = _ours(connection, dataset, since)
    if (known := still_right(stored, view, lake, owned)) is not None:
        found = replace(known, snapshot=view.main)  # so that the next walk through history is short
    elif view.main is None:
        found = TableCounts(None, 0, 0, utc_now())
    else:
        counted = _count_again(config, ledger, dataset, trusted_snapshots(stored, view, lake))
        if counted is None:
            return None
        found, unsettled = counted
    # Rows of open blocks may be in main already. Whether they are ours is decided when the block is settled, which may
    # make no new snapshot: so this result is not stored.
    if not unsettled:
        ledger.change(datasets.set_counts, {dataset.id: found})
    return found if found.snapshot == view.main else None


def _lowest_since(stored: TableCounts | None, view: TableView) -> Seq | None:
    """One below the lowest sequence number that came into main since the last count: older blocks need not be read."""
    lows: list[int] = []
    for snapshot in view.ancestors(view.main):
        if stored is not None and snapshot.id == stored.snapshot:
            break
        if wap := WapId.parse(snapshot.wap):
            lows.append(wap.rows.lo)
    return Seq(min(lows) - 1) if lows and min(lows) > 1 else None


def _ours(connection: Connection, dataset: Dataset, after: Seq | None) -> tuple[list[SeqRange], bool]:
    unsettled = [b.head.rows for b in blocks.open_blocks(connection, dataset.id)]
    return merge_ranges([*published_blocks.owned_ranges(connection, dataset.id, after=after), *unsettled]), bool(
        unsettled
    )


def trusted_snapshots(stored: TableCounts | None, view: TableView, lake: str) -> IsTrusted:
    """Returns a function that gets a file's snapshot and its highest sequence number, and returns whether the file is
    known to have no sequence number twice or in common with another file. That holds for our own files, and for files
    that were in the table when the last count found no number on two rows, unless a later block may have got one of
    their numbers."""
    ours = set()
    base = None if stored is None or stored.twice != 0 else stored.snapshot
    since: set[SnapshotId] = set()
    is_based = False
    for snapshot in view.ancestors(view.main):
        if base is not None and snapshot.id == base:
            is_based = True
            break
        since.add(snapshot.id)
        if snapshot.block_of(lake) is not None:
            ours.add(snapshot.id)
    unowned_from = None if stored is None else stored.foreign_from

    def is_trusted(snapshot: SnapshotId, highest: int) -> bool:
        if snapshot in ours:
            return True
        return is_based and snapshot not in since and (unowned_from is None or highest < unowned_from)

    return is_trusted


def _count_again(
    config: LakeConfig, ledger: Ledger, dataset: Dataset, is_trusted: IsTrusted
) -> tuple[TableCounts, bool] | None:
    """Reads the table first, then the ledger: then the ledger knows all our numbers that are in the table."""
    from strandline.iceberg.pyiceberg.catalog import open_catalog
    from strandline.iceberg.pyiceberg.foreign_rows import count_foreign_rows

    with closing(open_catalog(config)) as catalog:
        table = catalog.load(dataset.name)
        with ledger.read() as connection:
            owned, unsettled = _ours(connection, dataset, None)
            last = sequence.read(connection).last
        # `is_trusted` does not know snapshots that came later, so their files are read.
        counted = count_foreign_rows(table, owned, is_trusted, last)
    return None if counted is None else (counted, unsettled)
