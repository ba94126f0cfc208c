"""From `reserved` to `staged`: rows with their sequence numbers, on the block's own branch."""

from __future__ import annotations

from dataclasses import replace

from strandline.core.errors import FailedError, StrandlineError
from strandline.core.types import Dataset, Published, Reserved, SnapshotId, Staged
from strandline.iceberg.spark.stage import WrittenRows, stage
from strandline.ingest.context import IngestContext
from strandline.ingest.settle import after_failed_commit, publish_staged
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import blocks


def stage_rows(
    work: IngestContext, dataset: Dataset, block: Reserved, written: WrittenRows, *, digest: str | None = None
) -> SnapshotId:
    """Appends the rows to the block's branch, which exists. The snapshot names their `digest`, unless the ledger has it
    already. After an error, the branch shows whether the commit landed."""
    head = block.head if digest is None else replace(block.head, digest=digest)
    wap, branch = work.wap(head), block.branch
    failure: StrandlineError | None = None
    try:
        stage(work.tables, dataset.name, branch, wap, written)
    except StrandlineError as e:
        failure = e
    if (landed := work.tables.own_head(dataset.name, branch, wap)) is None:
        raise failure or FailedError(f"branch {branch} of {dataset.name} does not end in what was just staged")
    return landed


def commit_staged(
    work: IngestContext, dataset: Dataset, block: Reserved, snapshot: SnapshotId, *, digest: str | None = None
) -> Published:
    """The commit point; then publishes the block. Raises `BlockLost` if another
    process has the block and has not settled it, and `ResyncNeeded`."""
    if not blocks.mark_staged(work.ledger, work.witness, block, snapshot, digest=digest):
        return after_failed_commit(work, dataset, block.head)
    head = block.head if digest is None else replace(block.head, digest=digest)
    return publish_staged(work, dataset, Staged(head, block.fence, snapshot, utc_now()))
