"""The reconciler for those who steer it: whether it runs by itself, when it runs next, and its last run.

It reads only the settings, the ledger, and the id of the warehouse's folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from strandline.core.records.reconcile_records import ReconcileRun, StorageKind
from strandline.core.settings.lake_config import LakeConfig
from strandline.ledger import applied_settings
from strandline.ledger.engine import Ledger, utc_now
from strandline.ledger.reconcile import reconcile_runs
from strandline.reconcile.facade import Reconciler

_NOT_ENABLED = "it has no schedule (reconcile.enabled is false): it runs only when somebody asks for it"


@dataclass(frozen=True, slots=True)
class Reconciliation:
    enabled: bool
    reason: str | None  # why it is not enabled
    schedule: str
    next_run: datetime | None  # in the past if a run is due now, because one was missed; None if it is not enabled
    running: int | None  # the run that is under way
    report_only: bool  # whether a scheduled run only reports
    storage: StorageKind
    last_run: ReconcileRun | None  # the newest run, under way or not


def load_reconciliation(config: LakeConfig, ledger: Ledger, reconciler: Reconciler) -> Reconciliation:
    moment = utc_now()
    with ledger.read() as connection:
        settings = applied_settings.effective(connection, config).reconcile
        newest = reconcile_runs.latest(connection, runs_max=1)
        left = reconcile_runs.find_running(connection) if reconcile_runs.is_lease_held(connection, moment) else None
    running = None if left is None or left.ended_at is not None else left.id
    return Reconciliation(
        settings.enabled,
        None if settings.enabled else _NOT_ENABLED,
        settings.schedule,
        reconciler.next_run(),
        running,
        settings.dry_run,
        StorageKind.S3 if config.settings.warehouse.is_s3 else StorageKind.LOCAL,
        newest[0] if newest else None,
    )
