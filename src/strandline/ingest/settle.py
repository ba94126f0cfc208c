"""Takes a block from `staged` to `published`, in the writer's process, in recovery, or in another process."""

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
    """Publishes the block: a staged block is never abandoned. Raises BlockHeld if it cannot be published, or if it is
    unknown whether it was, and BlockLost for a follower's block that must be applied again."""
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
                hint="Bring the branch back, or give the block up with "
                f"`strandline ledger void {head.rows.lo} --reason TEXT`.",
            )
        case other:
            raise BlockHeld(f"block {head.rows} of {dataset.name} is in an unexpected state: {other}")
    return settled(work, head)


def settled(work: IngestContext, head: BlockHead) -> Published:
    found = blocks.find_block(work.ledger, head)
    if not isinstance(found, Published):
        raise _lost(head)
    return found


def after_failed_commit(work: IngestContext, dataset: Dataset, head: BlockHead) -> Published:
    """A writer staged its rows, but its compare-and-set failed: returns the block if another process has published it.
    Raises BlockLost."""
    match blocks.find_block(work.ledger, head):
        case Published() as published:
            return published  # recovery was faster
        case Staged() as staged:
            return publish_staged(work, dataset, staged)
        case Abandoned() | None:
            work.tables.remove_branch(dataset.name, head.branch)
            raise BlockLost(
                f"block {head.rows} of {dataset.name} was given up while its writer was away; nothing of it is visible",
                hint="Offer the batch again.",
            )
        case Reserved():
            raise BlockLost(
                f"block {head.rows} of {dataset.name} was taken over by another process, which settles it",
                hint="Offer the batch again; if it was settled meanwhile, the outcome is returned.",
            )


def _lost(head: BlockHead) -> BlockLost:
    return BlockLost(
        f"the ledger no longer knows block {head.rows}: it was restored from an older copy",
        hint="Offer the batch again; the resync has published staged rows.",
    )


def void_staged(work: IngestContext, dataset: Dataset, staged: Staged, reason: str) -> None:
    """Voids a block that cannot be published. Removes its branch first: a publisher that is still running then cannot
    publish it either."""
    try:
        publish_staged(work, dataset, staged)
    except BlockHeld:
        work.tables.remove_branch(dataset.name, staged.head.branch)
    else:
        raise RefusedError(f"block {staged.head.rows} could be published after all, and is now")
    with work.ledger.write() as connection:
        # A sequence number is taken, as for abandoning, so that a restore that undoes this is noticed.
        sequence.take(connection, work.witness, 1, step="abandon")
        if not blocks.void(connection, staged, reason):
            raise RefusedError(f"block {staged.head.rows} was settled meanwhile")
        audit.record(
            connection, Event.BLOCK_VOIDED, block=str(staged.head.rows), batch=staged.head.batch_id, reason=reason
        )
