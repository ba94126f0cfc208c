"""Plans what to do with a block, from the metadata that the commit will replace. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.core.batch_names import can_share_rows
from strandline.core.text.wording import plural
from strandline.core.types import Anchor, Seq, SeqRange, SnapshotId
from strandline.iceberg.metadata.table_metadata import TableView, WapId

# What to do with a staged block.


@dataclass(frozen=True, slots=True)
class CherryPick:
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class RemoveBranch:
    """Main has the rows already; only the branch is left."""

    published: SnapshotId | None


@dataclass(frozen=True, slots=True)
class AlreadyPublished:
    published: SnapshotId | None
    settled: Anchor | None = None  # the tag's position at that time


@dataclass(frozen=True, slots=True)
class CountRows:
    """Main's history does not show whether it has the rows: count them, and plan again."""


@dataclass(frozen=True, slots=True)
class PublishHeld:
    """The block can be neither published nor settled: a person must decide."""

    why: str


PublishPlan = CherryPick | RemoveBranch | AlreadyPublished | CountRows | PublishHeld


def plan_publish(
    view: TableView, branch: str, snapshot: SnapshotId, wap: WapId, *, rows_in_main: int | None
) -> PublishPlan:
    """`rows_in_main` is how many rows of the block's range main has; None if they have not been counted. If main has
    some of the rows, that proves nothing: others can write any sequence number, and rows can be deleted."""
    head = view.refs.get(branch)
    published = view.published_as(wap)
    if published is None and any(s.id == snapshot for s in view.ancestors(view.main)):
        published = snapshot
    if head is not None and head != snapshot and not stages_again(view, head, snapshot, wap):
        return PublishHeld(f"branch {branch} was moved by someone else, from snapshot {snapshot} to {head}")
    if published is not None:
        return AlreadyPublished(published, view.settled) if head is None else RemoveBranch(published)
    staged = view.snapshots.get(snapshot)
    if staged is not None and view.chain_reaches(staged.parent):
        if head is None:
            return PublishHeld(f"branch {branch} is gone and main never had its rows")
        return CherryPick(snapshot)
    if rows_in_main is None:
        return CountRows()
    if 0 < rows_in_main < len(wap.rows):
        rows = plural(len(wap.rows), "sequence number")
        return PublishHeld(f"main has {rows_in_main:,} of its {rows}, and no history that shows why")
    if rows_in_main > 0:
        return AlreadyPublished(None, view.settled) if head is None else RemoveBranch(None)
    if head is None:
        return PublishHeld(f"branch {branch} is gone and main has none of its rows")
    return CherryPick(snapshot)


def stages_again(view: TableView, head: SnapshotId, snapshot: SnapshotId, wap: WapId) -> bool:
    """Whether all snapshots after the block's on its branch stage the same block again, because a writer that had lost
    its lease continued. Those snapshots are never published."""
    for ancestor in view.ancestors(head):
        if ancestor.id == snapshot:
            return True
        if not ancestor.added_block(wap):
            return False
    return False


# What to do with a reserved block whose writer is gone.


@dataclass(frozen=True, slots=True)
class RollForward:
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class SettlePublished:
    published: SnapshotId | None


@dataclass(frozen=True, slots=True)
class Abandon:
    why: str


RecoveryPlan = RollForward | SettlePublished | Abandon


def plan_recovery(
    view: TableView, branch: str, wap: WapId, *, branch_complete: bool, rows_in_main: int, passed: Seq | None = None
) -> RecoveryPlan:
    """Rows that are neither in main nor complete on the branch were never acknowledged, so their block can be
    abandoned. `passed` is the highest watermark of the sinks and followers: they would never get rows that appear at or
    below it."""
    other_rows = batch_elsewhere(view, wap)
    head = view.refs.get(branch)
    published = view.published_as(wap)
    # Others can write any sequence number, so the count of rows decides only if history is incomplete.
    has_landed = rows_in_main > 0 and not view.chain_reaches(None)
    if published is not None or has_landed:
        return SettlePublished(published)
    if other_rows is not None:
        return Abandon(f"the batch is in main under {other_rows}")
    if passed is not None and wap.rows.lo <= passed:
        return Abandon(f"the watermark of a sink is already past it, at {passed}")
    if head is not None and branch_complete:
        return RollForward(head)
    return Abandon("its writer is gone and staged nothing" if head is None else "its writer left the branch incomplete")


def batch_elsewhere(view: TableView, wap: WapId) -> SeqRange | None:
    """The other range under which main's history has the batch, a part of it, or a batch that contains it."""
    for snapshot in view.ancestors(view.main):
        other = snapshot.block_of(wap.lake)
        if other is not None and other.rows != wap.rows and can_share_rows(other.batch_id, wap.batch_id):
            return other.rows
    return None
