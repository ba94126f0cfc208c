"""Plans what to do with a follower's staged block, from the metadata that the commit will replace. Pure.

A follower can get the rows again. So no block waits for a person: a block that cannot be published is applied again
(docs/adr/0070).
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.core.types import SnapshotId
from strandline.iceberg.metadata.block_plans import AlreadyPublished, CherryPick, CountRows, RemoveBranch, stages_again
from strandline.iceberg.metadata.table_metadata import SnapshotView, TableView, WapId


@dataclass(frozen=True, slots=True)
class ApplyAgain:
    why: str


OfferedPlan = CherryPick | RemoveBranch | AlreadyPublished | CountRows | ApplyAgain


def plan_offered(
    view: TableView, branch: str, snapshot: SnapshotId, wap: WapId, *, rows_shared: int | None
) -> OfferedPlan:
    """`rows_shared` is how many sequence numbers of the staged snapshot main has; None if they have not been counted.
    Other rows of the range do not count: main may have a part of a merged or recovered range, and the missing rows must
    still come. With any plan, the commit removes all branches of the block: another process may have staged it, too."""
    published = view.published_as(wap)
    if published is None and any(s.id == snapshot for s in view.ancestors(view.main)):
        published = snapshot
    if published is not None:
        return RemoveBranch(published) if view.branches_of(wap.rows.lo) else AlreadyPublished(published, view.settled)
    head, staged = view.refs.get(branch), view.snapshots.get(snapshot)
    if head is None or staged is None:
        return ApplyAgain(f"branch {branch} is gone and main never had its rows")
    if head != snapshot and not stages_again(view, head, snapshot, wap):
        return ApplyAgain(f"branch {branch} was moved by someone else, from snapshot {snapshot} to {head}")
    if _no_rows_since(view, staged, wap):
        return CherryPick(snapshot)
    if rows_shared is None:
        return CountRows()
    return ApplyAgain("main has rows of it by now") if rows_shared else CherryPick(snapshot)


def _no_rows_since(view: TableView, staged: SnapshotView, wap: WapId) -> bool:
    """Whether main's history shows that main got no row of the range since the branch was created. (Staging left out
    the rows that main had before.) The branch of an empty table begins with a snapshot that main never has. For such a
    branch, main's history must be complete back to its first snapshot."""
    oldest = None
    for ancestor in view.ancestors(view.main):
        if ancestor.id == staged.parent:
            return True
        block = ancestor.block_of(wap.lake)
        is_apart = block is not None and not block.rows.overlaps(wap.rows)
        if not is_apart and ancestor.operation not in ("replace", "delete"):
            return False
        oldest = ancestor
    return oldest is None or oldest.parent is None
