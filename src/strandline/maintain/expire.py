"""Expiry of snapshots. Staged blocks are published first, and branches and tags stay. So Strandline needs no snapshot
that can expire, whichever tool expires it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from strandline.core import failpoints
from strandline.core.errors import TableUnfit, UsageError
from strandline.core.records.audit_events import Event
from strandline.core.types import Dataset
from strandline.iceberg.metadata.table_metadata import SETTLED_TAG, TableView
from strandline.ledger import audit
from strandline.ledger.engine import utc_now
from strandline.maintain.context import MaintainContext, MaintainProgress, quiet
from strandline.maintain.expire_plan import ExpireOptions, ExpirePlan, plan, refusal
from strandline.read import rollback

if TYPE_CHECKING:
    from strandline.iceberg.spark.maintenance import FilesDeleted

SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class ExpiredSnapshot:
    snapshot: int
    at: datetime
    operation: str


@dataclass(frozen=True, slots=True)
class Expired:
    cutoff: datetime
    snapshots_before: int
    snapshots_expired: int
    oldest_kept_at: datetime | None
    branches_kept: int  # besides main, including those of blocks that are not settled yet
    tags_kept: int  # besides ours
    # Files: None in a dry run, which does not determine them.
    data_files_deleted: int | None
    delete_files_deleted: int | None
    manifests_deleted: int | None
    manifest_lists_deleted: int | None
    sample: tuple[ExpiredSnapshot, ...]  # the oldest few that expired, or would expire


def expire(
    context: MaintainContext,
    dataset: Dataset,
    options: ExpireOptions = ExpireOptions(),
    *,
    now: datetime | None = None,
    dry_run: bool = False,
    progress: MaintainProgress = quiet,
) -> Expired:
    """Expires old snapshots of the dataset. Raises `TableUnfit` as `check` does."""
    from strandline.iceberg.spark import maintenance

    if options.keep_min < 1:
        raise UsageError("at least one snapshot of each branch is kept")
    tables = context.tables.settled
    before = tables.view(dataset.name)
    check(dataset, before)
    if not dry_run:
        progress("settling staged blocks", 0, None)
        context.ingestion.recover()
        failpoints.hit("expire.after_settle")
        # Our tag moves to main first: then no snapshot between the two can expire.
        rollback.move_tag(context.ledger, tables, dataset)
        before = tables.view(dataset.name)
        check(dataset, before)
    context.check(dataset)
    chosen = plan(before, options, now or utc_now())
    if dry_run:
        return _expired(before, chosen, None, len(chosen.expired))
    if not chosen.expired:
        return _expired(before, chosen, maintenance.FilesDeleted(0, 0, 0, 0), 0)
    progress("expiring snapshots", 0, len(chosen.expired))
    cutoff_ms = int(chosen.cutoff.timestamp() * 1000)
    deleted = maintenance.expire_snapshots(tables, dataset.name, cutoff_ms=cutoff_ms, keep_min=options.keep_min)
    failpoints.hit("expire.after_expire")
    expired = len(before.snapshots.keys() - tables.view(dataset.name).snapshots.keys())
    progress("expiring snapshots", expired, expired)
    context.ledger.change(
        audit.record,
        Event.EXPIRED,
        dataset=dataset.name,
        snapshots=expired,
        older_than=chosen.cutoff,
        data_files=deleted.data,
        delete_files=deleted.deletes,
    )
    return _expired(before, chosen, deleted, expired)


def check(dataset: Dataset, table: TableView) -> None:
    """Raises `TableUnfit` if expiry would be refused. Callers that must know in advance use it, too."""
    if why := refusal(table):
        raise TableUnfit(
            f"snapshots of {dataset.name} are not expired: {why}",
            hint="Unset that (ALTER TABLE … UNSET TBLPROPERTIES, or ALTER TABLE … REPLACE BRANCH), then run it again.",
        )


def _expired(before: TableView, chosen: ExpirePlan, deleted: FilesDeleted | None, expired: int) -> Expired:
    planned = {s.id for s in chosen.expired}
    kept = [s for s in before.snapshots.values() if s.id not in planned]
    return Expired(
        chosen.cutoff,
        len(before.snapshots),
        expired,
        min((s.at for s in kept), default=None),
        sum(1 for ref in before.ref_rules if ref.is_branch and ref.name != "main"),
        sum(1 for ref in before.ref_rules if not ref.is_branch and ref.name != SETTLED_TAG),
        None if deleted is None else deleted.data,
        None if deleted is None else deleted.deletes,
        None if deleted is None else deleted.manifests,
        None if deleted is None else deleted.manifest_lists,
        tuple(ExpiredSnapshot(s.id, s.at, s.operation) for s in chosen.expired[:SHOWN_MAX]),
    )
