"""From `reserved` to `staged`: rows with their sequence numbers, on the block's own branch."""

from __future__ import annotations

from pyspark.sql import DataFrame

from strandline.core.errors import FailedError, StrandlineError
from strandline.core.types import Dataset, Published, Reserved, SnapshotId, Staged
from strandline.ingest.context import IngestContext
from strandline.ingest.settle import after_lost_mark, publish_staged
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import blocks


def stage_rows(work: IngestContext, dataset: Dataset, held: Reserved, rows: DataFrame) -> SnapshotId:
    """Appends the rows to the block's branch, which exists. Whatever the write raised, the branch tells whether it
    landed."""
    wap, branch = work.wap(held.head), held.branch
    failure: StrandlineError | None = None
    try:
        work.tables.stage(rows, dataset.name, branch, wap)
    except StrandlineError as e:
        failure = e
    if (landed := work.tables.own_head(dataset.name, branch, wap)) is None:
        raise failure or FailedError(f"branch {branch} of {dataset.name} does not end in what was just staged")
    return landed


def commit_staged(work: IngestContext, dataset: Dataset, held: Reserved, snapshot: SnapshotId) -> Published:
    """The commit point, and then the way forward: publishes what was staged. Raises `BlockLost` if the block is not
    ours any more and nobody has settled it, and `ResyncNeeded`."""
    if not blocks.mark_staged(work.ledger, work.witness, held, snapshot):
        return after_lost_mark(work, dataset, held.head)
    return publish_staged(work, dataset, Staged(held.head, held.fence, snapshot, utc_now()))
