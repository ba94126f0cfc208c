"""The read model of the reconciler: what it found last.

It reads only the ledger. What is unknown is None, never 0: before the first run, everything is; and a run that ended
before it compared tables with storage knows no drift.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from strandline.core.documents import fields_of
from strandline.core.records.reconcile_records import ReconcileRun
from strandline.core.settings.lake_config import LakeConfig
from strandline.ledger.engine import Connection
from strandline.ledger.reconcile import reconcile_runs


@dataclass(frozen=True, slots=True)
class Compared:
    """What a run found and left, if it got as far as comparing."""

    run: int
    at: datetime
    orphans: int
    missing: int
    partial: bool


@dataclass(frozen=True, slots=True)
class ReconcileStatus:
    """The newest run that ended, and the newest that compared. They differ if runs end too early."""

    last_run: int | None = None
    at: datetime | None = None
    ended_at: datetime | None = None
    orphans: int | None = None
    missing: int | None = None
    partial: bool | None = None
    aborted: str | None = None
    held: int | None = None  # files of the run that are still in quarantine
    compared: Compared | None = None
    doubts: tuple[str, ...] | None = None  # why its result may be incomplete or wrong


_RUNS_AT_FIRST = 20  # among these there is nearly always one that compared

NOT_YET = ReconcileStatus()  # before the first run


def read_reconcile(connection: Connection, config: LakeConfig) -> ReconcileStatus:
    runs_max = config.settings.reconcile.history_runs
    runs = reconcile_runs.latest(connection, runs_max=min(runs_max, _RUNS_AT_FIRST))
    if not any(run.ended_at is not None and run.has_compared for run in runs) and len(runs) == _RUNS_AT_FIRST:
        runs = reconcile_runs.latest(connection, runs_max=runs_max)  # a long time without a run that compared
    ended = [run for run in runs if run.ended_at is not None]
    if not ended:
        return NOT_YET
    last, compared = ended[0], next((_compared(run) for run in ended if run.has_compared), None)
    own = fields_of(compared, "run", "at") if compared is not None and compared.run == last.id else {}
    return ReconcileStatus(
        last_run=last.id,
        at=last.started_at,
        ended_at=last.ended_at,
        aborted=None if last.aborted is None else last.aborted.value,
        held=last.held,
        compared=compared,
        doubts=tuple(doubt.value for doubt in last.doubts),
        **own,
    )


def _compared(run: ReconcileRun) -> Compared:
    outcome = run.outcome
    found, done = outcome.found, outcome.done
    return Compared(
        run.id,
        run.started_at,
        max(found.orphans - done.orphans, 0),
        # More files may be restored than were missing: a table that could not be read has no missing entries.
        max(found.missing - done.missing - done.restored, 0),
        outcome.partial,
    )
