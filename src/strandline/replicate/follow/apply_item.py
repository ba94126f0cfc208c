"""Applies one item of the leader: takes its block, stages the leader's rows with their numbers on the block's branch,
and publishes them as ingest does.

Durable steps: take the block (fence), record the bodies of a received batch (docs/adr/0075), create the branch of this
fence, stage the rows, mark the block `staged` (the commit point), publish, mark it `published`. If a process dies
before the commit point, another one takes the block when its lease has expired, and removes the branch with the staged
rows. A process that lost its lease and does not know it can stage again, on a branch of its own, but not commit: its
fence is lower. The rules are in docs/adr/0070.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from strandline.core import failpoints
from strandline.core.block_branches import BlockBranch
from strandline.core.errors import BlockLost, FailedError, StrandlineError
from strandline.core.text.wording import plural
from strandline.core.types import SEQ_COLUMN, Dataset, ItemKind, Published, Reserved, SeqRange, SnapshotId, Staged
from strandline.iceberg.metadata.identifier import in_spark
from strandline.iceberg.metadata.table_metadata import TableView
from strandline.iceberg.spark.number_bounds import NewFile
from strandline.iceberg.spark.stage import write_rows
from strandline.ingest.digest import ObservedDigest
from strandline.ingest.settle_offered import commit_offered, publish_offered
from strandline.ingest.stage import stage_rows
from strandline.ledger.engine import utc_now
from strandline.ledger.replicate import following, sites, table_epochs
from strandline.ledger.replicate.following import Followed, OpenItem
from strandline.read.settled_view import check_table
from strandline.replicate.follow.apply_plan import above_floor, plan_fetch
from strandline.replicate.follow.carry_out_purge import carry_out_purge
from strandline.replicate.follow.check_digest import check_staged_rows
from strandline.replicate.follow.context import FollowContext
from strandline.replicate.follow.fetch_bodies import take_bodies
from strandline.replicate.follow.follow_schema import follow_schema
from strandline.replicate.follow.schema_plan import KnownFields
from strandline.replicate.take_over.carry_out_cut import carry_out_cut

_ATTEMPTS_MAX = 3  # of an item in one pass


def apply_item(context: FollowContext, followed: Followed, item: OpenItem) -> bool:
    """False if another process has the item, or if it is a cut that has to wait."""
    dataset = followed.dataset
    work, outcome = context.work, item.block
    try:
        for _ in range(_ATTEMPTS_MAX):
            published: bool | Published | Reserved
            if isinstance(outcome, Staged):
                published = publish_offered(work, dataset, outcome)
            elif (block := following.take(work.ledger, outcome, lease_seconds=work.settings.lease_seconds)) is not None:
                published = _apply_reserved(context, followed, block, item)
            else:
                return False
            if not isinstance(published, Reserved):
                return bool(published)
            outcome = published  # it cannot be published: apply it again
    except BlockLost:
        pass  # another process has taken the block over, and settles it
    return False


def _apply_reserved(
    context: FollowContext, followed: Followed, block: Reserved, item: OpenItem
) -> bool | Published | Reserved:
    """False if another process has the item; `Reserved` if it has to be applied again."""
    dataset = followed.dataset
    work = context.work
    failpoints.hit("follow.after_take")
    try:
        with work.renewed(block):
            if (cut := item.numbered_cut) is not None:
                done = carry_out_cut(work, dataset, block, cut, behind_upto=followed.witnessed)
                if not done:
                    following.release_item(work.ledger, block)
                return done
            if not _has_the_epoch(context, dataset, block):
                return Reserved(block.head, block.fence, utc_now())
            if block.head.item is ItemKind.PURGE:
                carry_out_purge(context, dataset, block, item.ranges)
                return following.settle_without_rows(work.ledger, work.witness, block, row_count=0)
            take_bodies(work.ledger, work.receipts, context.source, dataset, block)
            return _apply_segment(context, followed, block, item)
    except BlockLost:
        raise
    except StrandlineError:
        if following.release_item(work.ledger, block):
            raise
        return False  # our lease is over: the failure is of no interest


def _apply_segment(
    context: FollowContext, followed: Followed, block: Reserved, item: OpenItem
) -> bool | Published | Reserved:
    dataset, work, tables = followed.dataset, context.work, context.work.tables
    view = check_table(work.ledger, tables, work.lake, dataset)
    if (wanted := above_floor(block.head.rows, view.floor)) is None:
        return _settle_without_rows(context, dataset, block)
    with context.source.content(tables, dataset.uuid, wanted) as content:
        former = KnownFields.parse(content.former_fields)
        schema_id = follow_schema(context, dataset, content.fields, followed.term, former)
        found = content.frame(tables.spark.table(in_spark(dataset.name)).schema)
        try:
            began = _begin_branch(context, dataset, block)
            snapshot = _stage(context, dataset, block, item, found, began)
            _check_columns(context, dataset, snapshot, schema_id)
        except StrandlineError:
            with suppress(StrandlineError):  # else the next applier removes it
                tables.remove_branch(dataset.name, block.branch)
            raise
    if snapshot is None:
        return _settle_without_rows(context, dataset, block)
    return commit_offered(work, dataset, block, snapshot)


def _has_the_epoch(context: FollowContext, dataset: Dataset, block: Reserved) -> bool:
    """Raises the table's epoch to the fence's: it may not have been readable when the ledger was found behind its
    witness. False if it is above, because a cut or a promotion raised it and never recorded it: then the ledger records
    it, and the block is released, so that it is taken again with a fence of a higher epoch."""
    work, epoch = context.work, following.epoch_of(block.fence)
    found = work.tables.view(dataset.name).epoch
    if found < epoch:
        work.tables.raise_epoch(dataset.name, epoch)
    if found <= epoch:
        return True
    with work.ledger.write() as connection:
        sites.check_may_commit(connection, offered=True)  # a promotion that goes on records it itself
        table_epochs.record(connection, work.witness, dataset, found)
    if not following.release_item(work.ledger, block):
        raise BlockLost(f"{dataset.name}: another process has taken {block.head.rows}")
    return False


def _begin_branch(context: FollowContext, dataset: Dataset, block: Reserved) -> TableView:
    """Creates this process's branch from main, and removes branches with lower fences. Returns the table's view after
    that: the branch's head is the snapshot of main that staged rows are compared with."""
    tables = context.work.tables

    def is_older(branch: BlockBranch) -> bool:
        return branch.fence is None or branch.fence <= block.fence

    def older(view: TableView) -> list[str]:
        return [name for name, branch in view.branches_of(block.head.rows.lo).items() if is_older(branch)]

    tables.remove_branches(dataset.name, older)
    tables.create_branch(dataset.name, block.branch)
    return tables.view(dataset.name)


def _stage(
    context: FollowContext, dataset: Dataset, block: Reserved, item: OpenItem, rows: DataFrame, began: TableView
) -> SnapshotId | None:
    """Stages the rows. None if there are none: the leader has deleted them since, or the table has them. Commits to
    main after the branch was created are noticed when the block is published."""
    tables, base = context.work.tables, began.refs[block.branch]

    def may_have(above: SeqRange) -> bool:
        return tables.data_files(dataset.name, base, above.lo - 1, above.hi, files_max=0) is None

    if (fetch := plan_fetch(block.head.rows, began.floor, may_have=may_have)) is None:
        return None
    inside = F.col(SEQ_COLUMN).between(int(fetch.rows.lo), int(fetch.rows.hi))
    wanted = rows.where(inside)
    if fetch.subtract:
        own = tables.read(dataset.name, base).where(inside).select(SEQ_COLUMN)
        wanted = wanted.join(own, SEQ_COLUMN, "left_anti")
    digest, is_whole = block.head.digest, not fetch.subtract and fetch.rows == block.head.rows
    observed = ObservedDigest(wanted) if digest is not None and is_whole else None
    written = write_rows(tables, dataset.name, wanted if observed is None else observed.frame)
    snapshot = stage_rows(context.work, dataset, block, written)
    staged = tables.staged_files(dataset.name, snapshot)
    check_applied(staged, block.head.rows, item.offered_rows)
    if observed is not None and observed.read() != digest:
        check_staged_rows(context, dataset, fetch.rows, snapshot)
    return snapshot if staged else None


def _check_columns(context: FollowContext, dataset: Dataset, snapshot: SnapshotId | None, schema_id: int) -> None:
    """Raises FailedError if the columns were changed while the rows were staged: rows are written by column name, and a
    name may belong to another column by now."""
    if snapshot is None:
        return
    staged = context.work.tables.view(dataset.name).snapshots.get(snapshot)
    if staged is None or staged.schema_id not in (None, schema_id):
        raise FailedError(
            f"the columns of {dataset.name} were changed while rows were staged",
            hint="Nothing of it was committed, and the follower fetches it again.",
        )


def _settle_without_rows(context: FollowContext, dataset: Dataset, block: Reserved) -> bool:
    """Removes all branches of the block first: a restored ledger may have lost a commit of another process, which would
    publish its branch later, after a purge or after retention."""
    work, head = context.work, block.head
    work.tables.remove_branches(dataset.name, lambda view: view.branches_of(head.rows.lo))
    count = work.tables.count(dataset.name, head.rows, work.tables.view(dataset.name).main)
    return following.settle_without_rows(work.ledger, work.witness, block, row_count=count)


def check_applied(files: Sequence[NewFile], rows: SeqRange, offered_rows: int | None) -> None:
    """Raises FailedError if the files have numbers outside of the item's, or more rows than the leader counted."""
    count = sum(file.rows for file in files)
    if any(not rows.lo <= file.lo <= file.hi <= rows.hi for file in files):
        raise FailedError(f"the leader sent rows with other sequence numbers than {rows}", hint=_AGAIN)
    most = len(rows) if offered_rows is None else min(len(rows), offered_rows)
    if count > most:
        why = f"the leader sent {plural(count, 'row')} for {rows}, which has {most:,} at most"
        raise FailedError(why, hint=_AGAIN)


_AGAIN = "Nothing of it was committed, and the follower fetches it again. Run `strandline verify` at the leader."
