"""Recovery: settles the blocks of dead writers. It runs when a lake is opened, before ingest, and in the daemon."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from strandline.core import failpoints
from strandline.core.block_branches import parse_branch
from strandline.core.calling_off import check_not_called_off
from strandline.core.errors import BlockHeld, BlockLost, ResyncNeeded, StrandlineError, TableRolledBack
from strandline.core.records.audit_events import Event
from strandline.core.types import SEQ_COLUMN, BlockKind, Dataset, Published, Reserved, Seq, SeqRange, SnapshotId, Staged
from strandline.iceberg.metadata.block_plans import Abandon, RollForward, SettlePublished, plan_recovery
from strandline.iceberg.metadata.table_metadata import TableView, WapId
from strandline.iceberg.spark.java_errors import explain
from strandline.ingest.context import IngestContext
from strandline.ingest.settle import publish_staged
from strandline.ingest.settle_offered import publish_offered
from strandline.ingest.stamp import staged_exactly
from strandline.ingest.table_peek import needs_no_recovery, peek
from strandline.ledger import audit
from strandline.ledger.deliver import lanes
from strandline.ledger.engine import Connection, utc_now
from strandline.ledger.ingest import blocks, datasets, table_states
from strandline.ledger.replicate import cuts, followers, sites
from strandline.read import rollback

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Recovered:
    published: list[SeqRange] = field(default_factory=list)
    abandoned: list[SeqRange] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    waiting: list[SeqRange] = field(default_factory=list)  # another process has the block, or a follower applies it
    branches_removed: int = 0
    # datasets that could not be settled, because their tables cannot be read or written
    troubled: list[str] = field(default_factory=list)


def recover(work: IngestContext) -> Recovered:
    """Settles all open blocks, lowest first. If a block cannot be settled, the others still are. Leaves out datasets
    that failed a short while ago."""
    report = Recovered()
    with work.ledger.read() as connection:
        all_datasets = datasets.list_datasets(connection)
        todo = {d.id: blocks.open_blocks(connection, d.id) for d in all_datasets}
        if not sites.get(connection).leads:
            todo = {d.id: _blocks_at_a_follower(connection, d, todo[d.id]) for d in all_datasets}
    for dataset in all_datasets:
        check_not_called_off()
        if any(block.head.kind is BlockKind.RECOVERED for block in todo[dataset.id]):
            report.troubled.append(dataset.name)  # the dataset must be resynced first
            continue
        if work.backoff.is_waiting(dataset.id):
            report.troubled.append(dataset.name)
            continue
        started_at = work.backoff.now()
        try:
            if not _needs_no_recovery(work, dataset, todo[dataset.id]):
                _recover_dataset(work, dataset, todo[dataset.id], report)
        except (ResyncNeeded, failpoints.FailpointError):
            raise
        except Exception as e:  # a damaged table may raise anything; the other datasets are settled
            check_not_called_off()  # a cancelled job is not a failure of the table
            work.backoff.failed(dataset.id, started_at)
            _record_trouble(work, dataset, e, report)
        else:
            work.backoff.succeeded(dataset.id)
            _clear_trouble(work, dataset)
    return report


def _blocks_at_a_follower(
    connection: Connection, dataset: Dataset, todo: Sequence[Reserved | Staged]
) -> list[Reserved | Staged]:
    """The blocks that recovery settles at a site that does not lead: staged items of its leader. Blocks from when the
    site itself led stay open until a cut abandons them. So do blocks that a recorded cut cuts out."""
    if not todo:
        return []
    recorded = [c.at for c in cuts.open_cuts(connection, dataset.id)]
    not_cut_out = [b for b in todo if not any(at.cuts_out(b.head) for at in recorded)]
    return [b for b in not_cut_out if b.head.offered or b.head.kind is BlockKind.RECOVERED]


def _needs_no_recovery(work: IngestContext, dataset: Dataset, todo: Sequence[Reserved | Staged]) -> bool:
    """Whether there is nothing to do, so that Iceberg need not load the table. Raises at once if the table's metadata
    is damaged."""
    state = work.ledger.query(table_states.get, dataset.id)
    view = peek(work.config, dataset.name)
    return not todo and state.trouble is None and view is not None and needs_no_recovery(view, state.settled)


def _recover_dataset(
    work: IngestContext, dataset: Dataset, todo: Sequence[Reserved | Staged], report: Recovered
) -> None:
    for block in todo:
        if _is_for_recovery(block):
            _recover_block(work, dataset, block, report)
    report.branches_removed += remove_stray_branches(work, dataset)
    # The tag must be moved: it keeps its snapshot alive, even with rows that the owner has deleted since. A rollback is
    # ignored here, because the stages refuse such a table.
    with suppress(TableRolledBack):
        rollback.move_tag(work.ledger, work.tables, dataset)


def _is_for_recovery(block: Reserved | Staged) -> bool:
    """False for an adopted block, which the next pass of adopt takes over, and for a follower's item that is not
    staged, which the follower applies."""
    if block.head.offered:
        return isinstance(block, Staged)
    return block.head.kind is not BlockKind.ADOPTED


def _record_trouble(work: IngestContext, dataset: Dataset, error: Exception, report: Recovered) -> None:
    reason = explain(error, "its open blocks cannot be settled").message
    if not isinstance(error, StrandlineError):
        log.warning("recovery of %s failed with an unexpected error", dataset.name, exc_info=error)
    report.held.append(f"{dataset.name}: {reason}")
    report.troubled.append(dataset.name)
    work.ledger.change(table_states.record_trouble, dataset.id, reason)


def _clear_trouble(work: IngestContext, dataset: Dataset) -> None:
    with work.ledger.read() as connection:
        trouble = table_states.get(connection, dataset.id).trouble
    if trouble is not None:
        work.ledger.change(table_states.clear_trouble, dataset.id)


def _recover_block(work: IngestContext, dataset: Dataset, block: Reserved | Staged, report: Recovered) -> None:
    try:
        if isinstance(block, Reserved):
            recover_reserved(work, dataset, block, report)
        elif not block.head.offered:
            publish_staged(work, dataset, block)
            report.published.append(block.head.rows)
        elif isinstance(publish_offered(work, dataset, block), Published):
            report.published.append(block.head.rows)
        else:
            report.waiting.append(block.head.rows)  # the follower applies it again
    except BlockHeld as e:
        report.held.append(e.message)
    except BlockLost:
        if not block.head.offered:
            raise
        report.waiting.append(block.head.rows)


def recover_reserved(work: IngestContext, dataset: Dataset, reserved: Reserved, report: Recovered) -> None:
    """Publishes or abandons the block, unless another process has it. Adds the outcome to the report."""
    block = blocks.take_over(work.ledger, reserved, lease_seconds=work.settings.lease_seconds)
    if block is None:
        report.waiting.append(reserved.head.rows)
        return
    head, wap = block.head, work.wap(block.head)
    view = work.tables.view(dataset.name)
    passed = work.ledger.query(highest_passed, dataset)
    plan = plan_recovery(
        view,
        head.branch,
        wap,
        branch_complete=branch_complete(work, dataset.name, view, view.refs.get(head.branch), wap),
        rows_in_main=work.tables.count(dataset.name, head.rows, view.main),
        passed=passed,
    )
    match plan:
        case RollForward(snapshot):
            digest = _digest_of(view, snapshot, work.lake)
            if blocks.mark_staged(work.ledger, work.witness, block, snapshot, digest=digest):
                publish_staged(work, dataset, Staged(replace(head, digest=digest), block.fence, snapshot, utc_now()))
                report.published.append(head.rows)
        case SettlePublished(snapshot):
            work.tables.remove_branch(dataset.name, head.branch)
            count, at, digest = len(head.rows), view.settled, _digest_of(view, snapshot, work.lake)
            if blocks.mark_published(work.ledger, block, row_count=count, snapshot=snapshot, settled=at, digest=digest):
                report.published.append(head.rows)
        case Abandon(why):
            if blocks.abandon(work.ledger, work.witness, block, why):
                report.abandoned.append(head.rows)
                work.tables.remove_branch(dataset.name, head.branch)
                failpoints.hit("abandon.after_branch")


def _digest_of(view: TableView, snapshot: SnapshotId | None, lake: str) -> str | None:
    """The digest that the snapshot records. The ledger does not have it, because the writer died before its commit
    point."""
    wap = None if snapshot is None else view.snapshots[snapshot].block_of(lake)
    return None if wap is None else wap.digest


def highest_passed(connection: Connection, dataset: Dataset) -> Seq | None:
    """The highest watermark of a sink or a follower: no block at or below it may be published."""
    watermarks = (lanes.highest_watermark(connection, dataset.id), followers.highest_applied(connection, dataset.id))
    return max((w for w in watermarks if w is not None), default=None)


def branch_complete(work: IngestContext, name: str, view: TableView, head: SnapshotId | None, wap: WapId) -> bool:
    """Whether the branch's head added exactly the rows of this block. Checks the rows, because the writer may have died
    before its own check."""
    snapshot = None if head is None else view.snapshots.get(head)
    if snapshot is None or not snapshot.added_block(wap):
        return False
    if (exact := staged_exactly(work.tables.staged_files(name, snapshot.id), wap.rows)) is not None:
        return exact
    own = work.tables.read(name, snapshot.id).where(f"{SEQ_COLUMN} BETWEEN {wap.rows.lo} AND {wap.rows.hi}")
    return bool(own.select(SEQ_COLUMN).distinct().count() == len(wap.rows) == own.select(SEQ_COLUMN).count())


def remove_stray_branches(work: IngestContext, dataset: Dataset) -> int:
    """Removes branches whose block was abandoned or is not in the ledger, because their writers died after they lost
    the block. Returns how many it removed. Their rows were not acknowledged: the resync has published all branches
    whose rows may have been."""
    removed = 0
    for branch in work.tables.view(dataset.name).branches:
        own = parse_branch(branch)
        owner = None if own is None else work.ledger.query(blocks.of_number, dataset.id, own.lo)
        # The block is read after the branch was listed: a writer reserves before it creates its branch.
        if isinstance(owner, Reserved | Staged):
            continue
        work.tables.remove_branch(dataset.name, branch)
        removed += 1
        work.ledger.change(audit.record, Event.STRAY_BRANCH_REMOVED, dataset=dataset.name, branch=branch)
    return removed
