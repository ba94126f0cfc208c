"""Takes a block from `staged` to `published`: in the writer's process, in recovery, or in any other process."""

from __future__ import annotations

from strandline.core.errors import BlockHeld, BlockLost, RefusedError
from strandline.core.records.audit_events import Event
from strandline.core.types import Abandoned, BlockHead, Dataset, Published, Reserved, Staged
from strandline.iceberg.metadata.block_plans import AlreadyPublished, PublishHeld
from strandline.iceberg.spark.publish import publish
from strandline.ingest.context import IngestContext
from strandline.ingest.settle_offered import publish_offered, published_or_lost
from strandline.ledger import audit
from strandline.ledger.ingest import blocks, sequence
from strandline.read import rollback


def publish_staged(work: IngestContext, dataset: Dataset, staged: Staged) -> Published:
    """Publishes the block. (A staged block is never abandoned.) Raises BlockHeld if it cannot be published, or if it is
    unknown whether it was. Raises BlockLost for a follower's block that must be applied again."""
    if staged.head.offered:
        return published_or_lost(publish_offered(work, dataset, staged))
    with work.ledger.read() as connection:
        epoch = sequence.read(connection).epoch
        memory = rollback.recall(connection, dataset)
    head = staged.head
    may_move_tag = rollback.may_move_tag(work.ledger, work.tables, dataset, memory)
    outcome = publish(
        work.tables, dataset.name, head.branch, staged.snapshot, work.wap(head), epoch=epoch, may_move_tag=may_move_tag
    )
    match outcome:
        case AlreadyPublished(snapshot, settled_at):
            count = len(head.rows)
            if not blocks.mark_published(work.ledger, staged, row_count=count, snapshot=snapshot, settled=settled_at):
                raise _lost(head)
        case PublishHeld(why):
            raise BlockHeld(
                f"block {head.rows} of {dataset.name} cannot be published: {why}",
                hint="Restore the branch, or void the block with "
                f"`strandline ledger void {head.rows.lo} --reason TEXT`.",
            )
        case other:
            raise BlockHeld(f"block {head.rows} of {dataset.name} is in an unexpected state: {other}")
    return _find_published(work, head)


def _find_published(work: IngestContext, head: BlockHead) -> Published:
    block = blocks.find_block(work.ledger, head)
    if not isinstance(block, Published):
        raise _lost(head)
    return block


def after_failed_commit(work: IngestContext, dataset: Dataset, head: BlockHead) -> Published:
    """For a writer that staged its rows, and whose compare-and-set in the ledger failed. Returns the block if another
    process has published or staged it. Raises BlockLost otherwise."""
    match blocks.find_block(work.ledger, head):
        case Published() as published:
            return published  # recovery was faster
        case Staged() as staged:
            return publish_staged(work, dataset, staged)
        case Abandoned() | None:
            work.tables.remove_branch(dataset.name, head.branch)
            raise BlockLost(
                f"block {head.rows} of {dataset.name} was abandoned while its writer was paused; none of its rows are "
                "visible",
                hint="Ingest the batch again.",
            )
        case Reserved():
            raise BlockLost(
                f"block {head.rows} of {dataset.name} was taken over by another process, which settles it",
                hint="Ingest the batch again. If it has been settled by then, you get its outcome.",
            )


def _lost(head: BlockHead) -> BlockLost:
    return BlockLost(
        f"the ledger no longer knows block {head.rows}: it was restored from an older copy",
        hint="Ingest the batch again. The resync has published staged rows.",
    )


def void_staged(work: IngestContext, dataset: Dataset, staged: Staged, reason: str) -> None:
    """Voids a block that cannot be published. Removes its branch first, so that another process that is publishing it
    fails, too. Raises RefusedError if the block can be published."""
    try:
        publish_staged(work, dataset, staged)
    except BlockHeld:
        work.tables.remove_branch(dataset.name, staged.head.branch)
    else:
        raise RefusedError(f"block {staged.head.rows} could be published after all, and has been published")
    with work.ledger.write() as connection:
        # Takes a sequence number, as abandoning does, so that a restored ledger that does not know of this is noticed.
        sequence.take(connection, work.witness, 1, step="abandon")
        if not blocks.void(connection, staged, reason):
            raise RefusedError(f"block {staged.head.rows} was settled meanwhile")
        audit.record(
            connection, Event.BLOCK_VOIDED, block=str(staged.head.rows), batch=staged.head.batch_id, reason=reason
        )
