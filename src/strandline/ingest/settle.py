"""From `staged` to `published`, by whoever gets there: the writer, recovery, or another process."""

from __future__ import annotations

from strandline.errors import BlockHeld, BlockLost
from strandline.ingest.workbench import Workbench
from strandline.ledger import blocks, sequence
from strandline.tables.metadata import AlreadyPublished, Held
from strandline.types import Abandoned, BlockHead, Dataset, Published, Reserved, Staged


def publish_staged(work: Workbench, dataset: Dataset, staged: Staged) -> Published:
    """There is no way but forward. A block of which nobody can tell whether it was published is held, and said."""
    with work.ledger.read() as connection:
        epoch = sequence.read(connection).epoch
    head = staged.head
    outcome = work.tables.publish(dataset.name, head.branch, staged.snapshot, work.wap(head), epoch=epoch)
    match outcome:
        case AlreadyPublished(snapshot):
            if not blocks.mark_published(work.ledger, staged, row_count=len(head.rows), snapshot=snapshot):
                raise _lost(head)
        case Held(why):
            raise BlockHeld(
                f"block {head.rows} of {dataset.name} cannot be published: {why}",
                hint=f"Bring the branch back, or give the block up with `strandline ledger void {head.rows.lo}`.",
            )
        case other:
            raise BlockHeld(f"block {head.rows} of {dataset.name} is in an unexpected state: {other}")
    return settled(work, head)


def settled(work: Workbench, head: BlockHead) -> Published:
    found = blocks.look(work.ledger, head)
    if not isinstance(found, Published):
        raise _lost(head)
    return found


def after_lost_mark(work: Workbench, dataset: Dataset, head: BlockHead) -> Published:
    """A writer staged its rows, but its compare-and-set failed: look who has the block now."""
    match blocks.look(work.ledger, head):
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
                hint="Offer the batch again; if it was settled meanwhile, that is found out.",
            )


def _lost(head: BlockHead) -> BlockLost:
    return BlockLost(
        f"the ledger no longer knows block {head.rows}: it was restored from an older copy",
        hint="Offer the batch again; the opening procedure has kept what was staged.",
    )
