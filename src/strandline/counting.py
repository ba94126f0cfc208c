"""How many rows of a dataset's table are not ours: without a number, or with one that no block owns.

Counting reads manifests, so its result is kept with the snapshot it was made at. It stays right for as long as every
commit since is ours or only moves rows about; then nothing has to be read again.
"""

from __future__ import annotations

from dataclasses import replace

from strandline.config import LakeConfig
from strandline.ledger import blocks, datasets
from strandline.ledger.engine import Ledger, utc_now
from strandline.tables.metadata import TableView, WapId
from strandline.types import Dataset, SnapshotId, TableCounts, merge_ranges


def still_right(counts: TableCounts | None, view: TableView, lake: str) -> TableCounts | None:
    """The counts, if nothing has come into main since that could have changed them."""
    if counts is None:
        return None
    for snapshot in view.ancestors(view.main):
        if snapshot.id == counts.snapshot:
            return counts
        wap = WapId.parse(snapshot.wap)
        ours = wap is not None and wap.lake == lake and snapshot.operation == "append"
        # Numbering adopted rows replaces files and changes the count of those without a number.
        moved = snapshot.operation == "replace" and wap is None
        if not (ours or moved):
            return None
        if snapshot.parent is None:
            return counts if counts.snapshot is None else None
    return counts if view.main is None and counts.snapshot is None else None


def count(config: LakeConfig, ledger: Ledger, dataset: Dataset, view: TableView, lake: str) -> TableCounts | None:
    """What is known, or counted anew and kept. None where it cannot be told: files with deletes by value."""
    with ledger.read() as connection:
        known = still_right(datasets.counts(connection, dataset.id), view, lake)
        unsettled = [b.head.rows for b in blocks.open_blocks(connection, dataset.id)]
        owned = merge_ranges([*blocks.owned_ranges(connection, dataset.id), *unsettled])
    if known is not None and known.snapshot == view.main:
        return known
    if known is not None:
        found = replace(known, snapshot=view.main)  # the walk back to it stays short
    elif view.main is None:
        found = TableCounts(None, 0, 0, utc_now())
    else:
        # The ledger first, the table after: a block that is published in between counts as ours or is not there yet.
        with ledger.read() as connection:
            owned = blocks.owned_ranges(connection, dataset.id)
        from strandline.tables.light import open_catalog
        from strandline.tables.not_ours import count_rows_not_ours

        catalog = open_catalog(config)
        try:
            table = catalog.load(dataset.name)
            snapshot = table.current_snapshot()
            counted = count_rows_not_ours(table, owned)
        finally:
            catalog.close()
        if counted is None:
            return None
        at = None if snapshot is None else SnapshotId(snapshot.snapshot_id)
        found = TableCounts(at, counted.unnumbered, counted.foreign, utc_now())
    if unsettled:
        # Their rows may be in main already and are ours then; but only settling tells, which makes no new snapshot.
        return still_right(found, view, lake)
    with ledger.write() as connection:
        datasets.set_counts(connection, dataset.id, found)
    return still_right(found, view, lake)
