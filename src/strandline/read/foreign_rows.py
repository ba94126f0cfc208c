"""How many rows of a dataset's table are not ours: without a number, or with one that no block owns.

Counting reads manifests, so its result is kept with the snapshot it was made at. It stays right for as long as every
commit since is ours or only moves rows about; then nothing has to be read again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace

from strandline.core.settings import LakeConfig
from strandline.core.types import Dataset, Seq, SeqRange, SnapshotId, TableCounts, merge_ranges
from strandline.iceberg.metadata.table_metadata import TableView, WapId
from strandline.ledger.engine import Connection, Ledger, utc_now
from strandline.ledger.ingest import blocks, datasets


def still_right(
    counts: TableCounts | None, view: TableView, lake: str, owned: Sequence[SeqRange]
) -> TableCounts | None:
    """The counts, if nothing has come into main since that could have changed them. `owned` are the numbers of blocks
    that are published or open: a snapshot that only says it is ours may be of a block that was given up."""
    if counts is None:
        return None
    for snapshot in view.ancestors(view.main):
        if snapshot.id == counts.snapshot:
            return counts
        wap = WapId.parse(snapshot.wap)
        ours = wap is not None and wap.lake == lake and snapshot.operation == "append" and covers(owned, wap.rows)
        # Numbering adopted rows replaces files and changes the count of those without a number.
        moved = snapshot.operation == "replace" and wap is None
        if not (ours or moved):
            return None
        if snapshot.parent is None:
            return counts if counts.snapshot is None else None
    return counts if view.main is None and counts.snapshot is None else None


def covers(owned: Sequence[SeqRange], rows: SeqRange) -> bool:
    """`owned` is sorted and merged."""
    at = bisect_right(owned, rows.lo, key=lambda r: r.lo) - 1
    return at >= 0 and rows.hi <= owned[at].hi


def count(config: LakeConfig, ledger: Ledger, dataset: Dataset, view: TableView, lake: str) -> TableCounts | None:
    """What is known, or counted anew and kept. None where it cannot be told: files with deletes by value."""
    with ledger.read() as connection:
        stored = datasets.counts(connection, dataset.id)
        if stored is not None and stored.snapshot == view.main:
            return stored
        since = _lowest_since(stored, view)
        owned, unsettled = _ours(connection, dataset, since)
    known = still_right(stored, view, lake, owned)
    if known is not None:
        found = replace(known, snapshot=view.main)  # the walk back to it stays short
    elif view.main is None:
        found = TableCounts(None, 0, 0, utc_now())
    else:
        counted = _count_anew(config, ledger, dataset, trusted_snapshots(stored, view, lake))
        if counted is None:
            return None
        found, unsettled = counted
    # Rows of open blocks may be in main already and are ours then; only settling tells, which makes no new snapshot.
    if not unsettled:
        with ledger.write() as connection:
            datasets.set_counts(connection, dataset.id, found)
    return found if found.snapshot == view.main else None


def _lowest_since(stored: TableCounts | None, view: TableView) -> Seq | None:
    """Below the lowest number that came into main since the rows were counted: no older block needs to be looked up."""
    lows: list[int] = []
    for snapshot in view.ancestors(view.main):
        if stored is not None and snapshot.id == stored.snapshot:
            break
        if wap := WapId.parse(snapshot.wap):
            lows.append(wap.rows.lo)
    return Seq(min(lows) - 1) if lows and min(lows) > 1 else None


def _ours(connection: Connection, dataset: Dataset, after: Seq | None) -> tuple[list[SeqRange], bool]:
    unsettled = [b.head.rows for b in blocks.open_blocks(connection, dataset.id)]
    return merge_ranges([*blocks.owned_ranges(connection, dataset.id, after=after), *unsettled]), bool(unsettled)


def trusted_snapshots(stored: TableCounts | None, view: TableView, lake: str) -> Callable[[SnapshotId], bool]:
    """Of which it is known that their files hold each number once, and none that another file has: ours, and those that
    were there when no number stood twice. What was written anew since may hold a row of somebody else's."""
    ours = set()
    base = None if stored is None or stored.twice != 0 else stored.snapshot
    since: set[SnapshotId] = set()
    is_based = False
    for snapshot in view.ancestors(view.main):
        if base is not None and snapshot.id == base:
            is_based = True
            break
        since.add(snapshot.id)
        wap = WapId.parse(snapshot.wap)
        if wap is not None and wap.lake == lake:
            ours.add(snapshot.id)
    return lambda id: id in ours or (is_based and id not in since)


def _count_anew(
    config: LakeConfig, ledger: Ledger, dataset: Dataset, is_trusted: Callable[[SnapshotId], bool]
) -> tuple[TableCounts, bool] | None:
    """The table first, the ledger after: whatever is in the table was reserved before, so the ledger knows it."""
    from strandline.iceberg.pyiceberg.catalog import open_catalog
    from strandline.iceberg.pyiceberg.foreign_rows import count_rows_not_ours

    catalog = open_catalog(config)
    try:
        table = catalog.load(dataset.name)
        snapshot = table.current_snapshot()
        with ledger.read() as connection:
            owned, unsettled = _ours(connection, dataset, None)
        # What came in since `is_trusted` was made is not in it, and looked at.
        counted = count_rows_not_ours(table, owned, is_trusted)
    finally:
        catalog.close()
    if counted is None:
        return None
    at = None if snapshot is None else SnapshotId(snapshot.snapshot_id)
    first = None if counted.twice_first is None else Seq(counted.twice_first)
    found = TableCounts(at, counted.unnumbered, counted.foreign, utc_now(), counted.twice, first)
    return found, unsettled
