"""Publishes a staged block: one commit adds its rows to main and removes its branch. The commit lands only on the
metadata that it was planned on.

Any process may publish a block, and repeat that: the rows are in main once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from pyspark.sql import functions as F

from strandline.core import failpoints
from strandline.core.types import SEQ_COLUMN, SeqRange, SnapshotId
from strandline.iceberg.metadata.block_plans import CherryPick, CountRows, PublishPlan, RemoveBranch, plan_publish
from strandline.iceberg.metadata.offered_plan import OfferedPlan, plan_offered
from strandline.iceberg.metadata.table_metadata import TableView, WapId
from strandline.iceberg.spark.java_errors import explaining
from strandline.iceberg.spark.table_change import TableChange, check_epoch
from strandline.iceberg.spark.tables import ReadAgain, SparkTables, iterate


def publish(
    tables: SparkTables,
    name: str,
    branch: str,
    snapshot: SnapshotId,
    wap: WapId,
    *,
    epoch: int,
    may_move_tag: Callable[[TableView], bool],
) -> PublishPlan:
    """Returns the final state: `AlreadyPublished` or `PublishHeld`. `may_move_tag` gets the metadata that the commit
    replaces, and returns whether our tag may follow main."""

    def attempt() -> PublishPlan:
        change = tables.change(name)
        view = tables.view_of(change.table)  # the metadata that `change` replaces; on any other, it fails
        check_epoch(view, epoch)
        plan = plan_publish(view, branch, snapshot, wap, rows_in_main=None)
        if isinstance(plan, CountRows):
            counted = tables.count(name, wap.rows, view.main)
            plan = plan_publish(view, branch, snapshot, wap, rows_in_main=counted)
        if isinstance(plan, CherryPick | RemoveBranch):
            _commit(change, plan, [branch], settle=may_move_tag(view))
        return plan

    return tables.repeat(attempt, f"{wap.rows} cannot be published in {name}", lock_table=name)


def publish_offered(
    tables: SparkTables,
    name: str,
    branch: str,
    snapshot: SnapshotId,
    wap: WapId,
    *,
    epoch: int,
    may_move_tag: Callable[[TableView], bool],
) -> OfferedPlan:
    """Like `publish`, for a follower's block: the commit removes all branches of the block. Returns the final state:
    `AlreadyPublished` or `ApplyAgain`."""

    def attempt() -> OfferedPlan:
        change = tables.change(name)
        view = tables.view_of(change.table)
        check_epoch(view, epoch)
        plan = plan_offered(view, branch, snapshot, wap, rows_shared=None)
        if isinstance(plan, CountRows):
            shared = _count_shared(tables, name, wap.rows, snapshot, view.main)
            plan = plan_offered(view, branch, snapshot, wap, rows_shared=shared)
        if isinstance(plan, CherryPick | RemoveBranch):
            _commit(change, plan, sorted(view.branches_of(wap.rows.lo)), settle=may_move_tag(view))
        return plan

    return tables.repeat(attempt, f"{wap.rows} cannot be published in {name}", lock_table=name)


def _commit(change: TableChange, plan: CherryPick | RemoveBranch, branches: Sequence[str], *, settle: bool) -> NoReturn:
    """Sends the commit. Always raises `ReadAgain`, so that the next attempt reads the table and returns
    `AlreadyPublished`."""
    failpoints.hit("publish.before_commit")
    change.commit(pick=plan.snapshot if isinstance(plan, CherryPick) else None, remove=branches, settle=settle)
    failpoints.hit("publish.after_commit")
    raise ReadAgain("the commit was sent, and its result has not been read back")


def _count_shared(tables: SparkTables, name: str, rows: SeqRange, staged: SnapshotId, main: SnapshotId | None) -> int:
    """How many sequence numbers of the staged snapshot main has."""
    if main is None:
        return 0
    table = tables.load(name)
    files = [str(file.location()) for file in iterate(table.snapshot(staged).addedDataFiles(table.io()))]
    inside = F.col(SEQ_COLUMN).between(rows.lo, rows.hi)
    in_staged = tables.read(name, staged).where(inside & F.col("_file").isin(files)).select(SEQ_COLUMN)
    in_main = tables.read(name, main).where(inside).select(SEQ_COLUMN)
    with explaining(f"the rows of {name} cannot be compared"):
        return int(in_staged.join(in_main, SEQ_COLUMN, "left_semi").count())
