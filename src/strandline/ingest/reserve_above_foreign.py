"""Reserves blocks above all sequence numbers in the table. Others can write numbers that were never reserved, and a row
of ours with the same number could not be distinguished from theirs.

The numbers are read from manifests, and only if main has foreign commits since the last check.
`tests/model/foreign_model.py` explores what can happen in between.
"""

from __future__ import annotations

from strandline.core.retry import RetryPolicy
from strandline.core.types import Block, BlockPlacement, Checked, Dataset
from strandline.iceberg.metadata import block_placement
from strandline.iceberg.metadata.table_metadata import TableView
from strandline.ingest.context import IngestContext
from strandline.ingest.resync.run import with_resync
from strandline.ledger.ingest import blocks, datasets, sequence


def reserve_above_foreign(work: IngestContext, dataset: Dataset, wanted: blocks.NewBlock) -> tuple[Block, bool]:
    """A block for this batch, and whether it is new."""

    def attempt() -> tuple[Block, bool]:
        return blocks.reserve(
            work.ledger,
            work.witness,
            wanted,
            lease_seconds=work.settings.lease_seconds,
            place=_find_place(work, dataset, wanted.rows),
        )

    return with_resync(work, lambda: RetryPolicy(0.0).call(attempt, blocks.PlaceStale))


def _find_place(work: IngestContext, dataset: Dataset, rows: int) -> BlockPlacement | None:
    """Where the block may begin. None, so that the counter decides, if main got only our commits since the last
    check."""
    with work.ledger.read() as connection:  # the ledger first, then the table
        checked = datasets.numbers_checked(connection, dataset.id)
        last = sequence.read(connection).last
    view = work.tables.view(dataset.name)
    is_near = checked is not None and block_placement.is_near(checked, last, rows)
    if view.main is None or (not is_near and only_ours_since(view, checked, work.lake)):
        return None
    # Main may change while its files are read. The next check covers later commits.
    return block_placement.place(
        last,
        rows,
        view.main,
        work.tables.spans_above(dataset.name, last),
        lambda limit: work.tables.numbers_around(dataset.name, last, limit),
    )


def only_ours_since(view: TableView, checked: Checked | None, lake: str) -> bool:
    """Whether no foreign commit since the last check can have added sequence numbers. Commits that rewrite files have
    only numbers that the table had before."""
    for snapshot in view.ancestors(view.main):
        if checked is not None and snapshot.id == checked.snapshot:
            return True
        if snapshot.block_of(lake) is None and snapshot.operation not in ("replace", "delete"):
            return False
        if snapshot.parent is None:
            return True
    return view.main is None
