"""Blocks in a resync: publishes or removes staged branches, and records the batches in the table's history."""

from __future__ import annotations

from strandline.core.batch_names import enclosing_batches
from strandline.core.block_branches import BlockBranch, parse_branch
from strandline.core.sites.replication import route, shard_ids
from strandline.core.types import BRANCH_PREFIX, BlockKind, Dataset, Published, Reserved, SeqRange, ShardId, SnapshotId
from strandline.iceberg.metadata.block_plans import Abandon, AlreadyPublished, batch_elsewhere, plan_recovery
from strandline.iceberg.metadata.table_metadata import TableView, WapId
from strandline.iceberg.spark.publish import publish
from strandline.ingest.context import IngestContext
from strandline.ingest.recover import branch_complete
from strandline.ingest.resync.cuts import cuts_on, is_cut_out
from strandline.ledger.engine import Connection
from strandline.ledger.ingest import blocks, datasets, restored_blocks
from strandline.ledger.receive import ended_batches
from strandline.read import rollback


def roll_forward(
    work: IngestContext, connection: Connection, name: str, gap: SeqRange | None, epoch: int
) -> list[SeqRange]:
    """Publishes complete branches in the gap, because their blocks may have been committed. Removes all branches in the
    gap. Returns the ranges that it published. Of one batch, publishes only the branch with the highest number: lower
    ones were abandoned before the higher one was reserved.

    On a table that is or was followed, publishes nothing, and abandons reserved blocks unless main has their rows. A
    block that was abandoned after the copy was made may lie below a follower's bound, which this ledger does not know,
    and the follower would never get it. Its rows were not acknowledged (docs/adr/0070)."""
    view = work.tables.view(name)
    dataset = datasets.get(connection, name)
    if view.is_followed:
        _give_up_reserved(work, connection, dataset, view)
        work.tables.remove_branches(name, lambda current: _branches_in(current, gap))
        return []
    newest: dict[str, tuple[WapId, SnapshotId]] = {}
    for branch, head in view.branches.items():
        wap = view.snapshots[head].block_of(work.lake) if head in view.snapshots else None
        own = parse_branch(branch)
        if wap is None or gap is None or own != BlockBranch(wap.rows.lo, None) or wap.rows.lo not in gap:
            continue
        lo = wap.rows.lo
        if wap.batch_id not in newest or newest[wap.batch_id][0].rows.lo < lo:
            newest[wap.batch_id] = (wap, head)
    for batch_id in list(newest):  # if a part of a batch has a branch, the whole batch was abandoned before
        for enclosing in enclosing_batches(batch_id):
            newest.pop(enclosing, None)
    rolled = []
    memory = rollback.recall(connection, dataset)
    may_move_tag = rollback.may_move_tag(connection, work.tables, dataset, memory)
    passed = work.sinks.highest_delivered(connection, dataset) if newest else None
    for wap, head in sorted(newest.values(), key=lambda x: x[0].rows.lo):
        recorded = blocks.of_batch(connection, dataset.id, wap.batch_id)
        if isinstance(recorded, Published) or batch_elsewhere(view, wap) is not None:
            continue
        if passed is not None and wap.rows.lo <= passed:
            continue  # a sink's watermark is past it: the block was abandoned, and the sink would never get it
        if not branch_complete(work, name, view, head, wap):
            continue
        outcome = publish(
            work.tables, name, f"{BRANCH_PREFIX}{wap.rows.lo}", head, wap, epoch=epoch, may_move_tag=may_move_tag
        )
        if isinstance(outcome, AlreadyPublished):
            rolled.append(wap.rows)
    # The remaining branches must never be committed, because the seal will rise above their numbers.
    work.tables.remove_branches(name, lambda current: _branches_in(current, gap))
    return rolled


def _give_up_reserved(work: IngestContext, connection: Connection, dataset: Dataset, view: TableView) -> None:
    """Abandons the reserved blocks whose rows are not in main, and removes their branches."""
    for block in blocks.open_blocks(connection, dataset.id):
        head = block.head
        if not isinstance(block, Reserved) or head.offered or head.kind is not BlockKind.BATCH:
            continue
        counted = 0 if view.chain_reaches(None) else work.tables.count(dataset.name, head.rows, view.main)
        plan = plan_recovery(view, head.branch, work.wap(head), branch_complete=False, rows_in_main=counted)
        if isinstance(plan, Abandon):
            work.tables.remove_branch(dataset.name, head.branch)
            blocks.abandon_in(connection, block, "a follower may have passed it before the ledger was restored")


def _branches_in(view: TableView, gap: SeqRange | None) -> list[str]:
    """The branches of blocks that begin in the gap."""
    parsed = {name: parse_branch(name) for name in view.branches}
    return [name for name, branch in parsed.items() if branch is not None and gap is not None and branch.lo in gap]


def restore_batches(connection: Connection, dataset: Dataset, view: TableView, gap: SeqRange, lake: str) -> int:
    """Records the batches in the table's history again, so that a repeat of one is still recognized. Returns how many
    it recorded."""
    restored, cuts = 0, cuts_on(view)
    for snapshot in view.ancestors(view.main):
        wap = snapshot.block_of(lake)
        if wap is None or wap.rows.lo not in gap or is_cut_out(wap.rows, cuts):
            continue
        recorded = blocks.of_batch(connection, dataset.id, wap.batch_id)
        if isinstance(recorded, Reserved):
            blocks.abandon_in(connection, recorded, f"its batch is in main under {wap.rows}")
        ended_batches.divide_again(connection, dataset.id, wap.batch_id)
        restored += restored_blocks.insert_published(
            connection,
            dataset.id,
            wap.rows,
            kind=BlockKind.BATCH,
            batch_id=wap.batch_id,
            digest=wap.digest,
            row_count=len(wap.rows),
            snapshot=snapshot.id,
            shard=_shard(dataset, wap),
        )
    return restored


def _shard(dataset: Dataset, wap: WapId) -> ShardId:
    if wap.shard is not None and wap.shard in shard_ids(dataset.first_shard, dataset.shards):
        return wap.shard
    return route(wap.batch_id, dataset.first_shard, dataset.shards)
