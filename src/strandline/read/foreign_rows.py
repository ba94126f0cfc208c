"""Counts the rows of a dataset's table that no block owns: unnumbered rows and foreign rows.

Counting reads manifests, so the result is stored with its snapshot. It stays valid while every later commit is ours or
only moves rows about, and no later block can have the sequence number of a foreign row; then nothing has to be read
again.
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
    """The counts, if nothing that could change them has come into main since. `owned` are the sequence numbers of
    published and open blocks: a snapshot that only claims to be ours may be of an abandoned block."""
    if counts is None:
        return None
    for snapshot in view.ancestors(view.main):
        if snapshot.id == counts.snapshot:
            return counts
        wap = WapId.parse(snapshot.wap)
        ours = wap is not None and wap.lake == lake and snapshot.operation == "append" and covers(owned, wap.rows)
        # Numbering adopted rows replaces files, too, and changes the count of unnumbered rows.
        moved = snapshot.operation == "replace" and wap is None
        if not (ours or moved):
            return None
        # Its writer may have checked for foreign sequence numbers before this one was written, and reserved after the
        # count.
        if wap is not None and counts.foreign_from is not None and wap.rows.hi >= counts.foreign_from:
            return None
        if snapshot.parent is None:
            return counts if counts.snapshot is None else None
    return counts if view.main is None and counts.snapshot is None else None


def covers(owned: Sequence[SeqRange], rows: SeqRange) -> bool:
    """`owned` is sorted and merged."""
    at = bisect_right(owned, rows.lo, key=lambda r: r.lo) - 1
    return at >= 0 and rows.hi <= owned[at].hi


def counts_from_history(
    ledger: Ledger, lake: str, tables: Sequence[tuple[Dataset, TableView]]
) -> dict[DatasetId, TableCounts]:
    """The counts of those tables for which history tells them, stored with their present snapshots. The others must be
    counted. A fixed number of queries, and none if the stored counts are of the present snapshots."""
    if not tables:
        return {}
    with ledger.read_at_once() as connection:
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
        counted = _count_anew(config, ledger, dataset, trusted_snapshots(stored, view, lake))
        if counted is None:
            return None
        found, unsettled = counted
    # Rows of open blocks may be in main already, and are ours then. Settling decides, and makes no new snapshot.
    if not unsettled:
        ledger.change(datasets.set_counts, {dataset.id: found})
    return found if found.snapshot == view.main else None


def _lowest_since(stored: TableCounts | None, view: TableView) -> Seq | None:
    """One below the lowest sequence number in main since the last count: no older block has to be read."""
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
    """A function of the snapshot that added a file and of the file's highest sequence number: whether the file is known
    to hold each sequence number once, and none that another file has: files of our own, and those that were there when
    no number was on two rows. A file written by others since may hold any number. One from before may hold a number
    that a block has got since."""
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


def _count_anew(
    config: LakeConfig, ledger: Ledger, dataset: Dataset, is_trusted: IsTrusted
) -> tuple[TableCounts, bool] | None:
    """Reads the table first, then the ledger: every number of ours in the table was reserved before, so the ledger
    knows it."""
    from strandline.iceberg.pyiceberg.catalog import open_catalog
    from strandline.iceberg.pyiceberg.foreign_rows import count_foreign_rows

    with closing(open_catalog(config)) as catalog:
        table = catalog.load(dataset.name)
        with ledger.read() as connection:
            owned, unsettled = _ours(connection, dataset, None)
            last = sequence.read(connection).last
        # Snapshots that came in since `is_trusted` was made are not in it, so their files are read.
        counted = count_foreign_rows(table, owned, is_trusted, last)
    return None if counted is None else (counted, unsettled)
