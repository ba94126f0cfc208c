"""Takes a block from `reserved` to `staged`: its rows, with their sequence numbers, on the block's own branch."""

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
    """Appends the rows to the block's branch, which must exist. The snapshot records `digest`; None if the ledger has
    it already. After an error, the branch is read, which shows whether the commit landed."""
    head = block.head if digest is None else replace(block.head, digest=digest)
    wap, branch = work.wap(head), block.branch
    failure: StrandlineError | None = None
    try:
        stage(work.tables, dataset.name, branch, wap, written)
    except StrandlineError as e:
        failure = e
    if (landed := work.tables.own_head(dataset.name, branch, wap)) is None:
        raise failure or FailedError(f"branch {branch} of {dataset.name} does not end with the rows that were staged")
    return landed


def commit_staged(
    work: IngestContext, dataset: Dataset, block: Reserved, snapshot: SnapshotId, *, digest: str | None = None
) -> Published:
    """Marks the block as staged, which is the commit point, then publishes it. Raises `BlockLost` if another process
    has the block and has not settled it, and `ResyncNeeded`."""
    if not blocks.mark_staged(work.ledger, work.witness, block, snapshot, digest=digest):
        return after_failed_commit(work, dataset, block.head)
    head = block.head if digest is None else replace(block.head, digest=digest)
    return publish_staged(work, dataset, Staged(head, block.fence, snapshot, utc_now()))
