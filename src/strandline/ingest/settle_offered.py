"""Takes a follower's block from `staged` to `published`. A follower can get the rows again. So a block that cannot be
published becomes `reserved` and is applied again. It never waits for a person, and cannot be voided (docs/adr/0070).
"""

from __future__ import annotations

from strandline.core.errors import BlockLost, Superseded
from strandline.core.text.whole_number import whole_number
from strandline.core.types import Dataset, Published, Reserved, SnapshotId, Staged
from strandline.iceberg.metadata.block_plans import AlreadyPublished
from strandline.iceberg.metadata.offered_plan import ApplyAgain
from strandline.iceberg.spark import publish
from strandline.ingest.context import IngestContext
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import blocks
from strandline.ledger.replicate import cuts, following, table_epochs
from strandline.read import rollback


def publish_offered(work: IngestContext, dataset: Dataset, staged: Staged) -> Published | Reserved:
    """Publishes the block. Returns it as `Reserved` if it must be applied again. Raises BlockLost if another process
    has it. Raises Superseded if a cut abandons it, or if the ledger was found behind its witness since the block was
    reserved, which the epoch in the block's fence shows."""
    memory = work.ledger.query(rollback.recall, dataset)
    may_move_tag = rollback.may_move_tag(work.ledger, work.tables, dataset, memory)
    try:
        outcome = publish.publish_offered(
            work.tables, dataset.name, staged.branch, staged.snapshot, work.wap(staged.head),
            epoch=following.epoch_of(staged.fence), may_move_tag=may_move_tag,
        )  # fmt: skip
    except Superseded:
        if (again := _apply_in_table_epoch(work, dataset, staged)) is None:
            raise
        return again
    match outcome:
        case AlreadyPublished(snapshot, at):
            count = _count_rows(work, dataset, staged, snapshot)
            if not blocks.mark_published(work.ledger, staged, row_count=count, snapshot=snapshot, settled=at):
                raise _lost(staged)
            block = blocks.find_block(work.ledger, staged.head)
            if not isinstance(block, Published):
                raise _lost(staged)
            return block
        case ApplyAgain():
            if (again := following.apply_again(work.ledger, staged)) is None:
                raise _lost(staged)
            return again
    raise TypeError(f"not an outcome: {outcome}")


def _apply_in_table_epoch(work: IngestContext, dataset: Dataset, staged: Staged) -> Reserved | None:
    """Puts the block back to `reserved`. First records the table's epoch, if a cut or a promotion raised it and died
    before it recorded it. None if another process has the block, or a cut abandons it."""
    epoch = work.tables.view(dataset.name).epoch
    with work.ledger.write() as connection:
        if any(cut.at.cuts_out(staged.head) for cut in cuts.open_cuts(connection, dataset.id)):
            return None
        # Also at a site that claims a term: its promotion publishes staged blocks.
        table_epochs.record(connection, work.witness, dataset, epoch)
    return following.apply_again(work.ledger, staged)


def commit_offered(
    work: IngestContext, dataset: Dataset, block: Reserved, snapshot: SnapshotId
) -> Published | Reserved:
    """Commits the block, then publishes it. Raises the errors of `publish_offered`, and `ResyncNeeded`."""
    if blocks.mark_staged(work.ledger, work.witness, block, snapshot):
        return publish_offered(work, dataset, Staged(block.head, block.fence, snapshot, utc_now()))
    stored = blocks.find_block(work.ledger, block.head)
    if isinstance(stored, Staged) and stored.fence == block.fence:
        return publish_offered(work, dataset, stored)
    work.tables.remove_branch(dataset.name, block.branch)  # no other process stages on this branch
    if isinstance(stored, Published):
        return stored
    raise _lost(block)


def published_or_lost(outcome: Published | Reserved) -> Published:
    if isinstance(outcome, Reserved):
        raise _lost(outcome)
    return outcome


def _lost(block: Reserved | Staged) -> BlockLost:
    return BlockLost(
        f"block {block.head.rows} of the leader was taken over by another process, or is applied again",
        hint="The follower settles it with its next pass.",
    )


def _count_rows(work: IngestContext, dataset: Dataset, staged: Staged, published: SnapshotId | None) -> int:
    """How many rows were published. The leader may have deleted some before the follower got them."""
    view = work.tables.view(dataset.name)
    for id in (staged.snapshot, published):
        snapshot = None if id is None else view.snapshots.get(id)
        if snapshot is not None and (added := whole_number(snapshot.summary.get("added-records", "0"))) is not None:
            return added
    return work.tables.count(dataset.name, staged.head.rows, view.main)
