"""Runs of maintenance: which process works on a dataset, since when, and the result.

Files that are younger than the oldest unfinished run may belong to it. A run without a heartbeat for the length of a
lease is taken for dead: it is shown as dead at once (`MaintenanceRun.as_of`), and the next run that begins closes
it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NewType

import sqlalchemy as sa

from strandline.core.actor import Actor
from strandline.core.calling_off import CALLED_OFF
from strandline.core.errors import AlreadyRunning
from strandline.core.records.maintenance_records import MaintenanceKind, MaintenanceOutcome
from strandline.core.text.wording import moment
from strandline.core.types import DatasetId
from strandline.ledger.actor_columns import read_actor
from strandline.ledger.engine import lock_row, utc_now
from strandline.ledger.row_memo import RowMemo
from strandline.ledger.run_records import Renewed, RunTable
from strandline.ledger.schema.core import dataset as dataset_table
from strandline.ledger.schema.maintain import maintenance_run

MaintenanceRunId = NewType("MaintenanceRunId", int)
# For this long, files that a dead run may have written are spared, and its record stays.
DIED_SPARED = timedelta(days=7)
_DIED = "its process has stopped renewing its lease; what it had committed stays, and the next run continues"


@dataclass(frozen=True, slots=True)
class MaintenanceRun:
    id: MaintenanceRunId
    dataset: str
    kind: MaintenanceKind
    node: str
    dry_run: bool
    by_schedule: bool
    started_at: datetime
    heartbeat_at: datetime
    ended_at: datetime | None
    outcome: MaintenanceOutcome | None  # None while it is under way
    reason: str | None
    result: Mapping[str, Any] | None
    actor: Actor | None = None  # None: recorded by a version that did not store it
    stop_asked_at: datetime | None = None  # None: nobody has called it off

    def as_of(self, now: datetime, *, lease_seconds: float) -> MaintenanceRun:
        """The run as it is shown: an unfinished run without a heartbeat has died."""
        lease = timedelta(seconds=lease_seconds)
        if self.ended_at is not None or now - lease <= self.heartbeat_at <= now + lease:
            return self
        return replace(
            self,
            ended_at=max(self.started_at, min(now, self.heartbeat_at + lease)),
            outcome=MaintenanceOutcome.DIED,
            reason=_DIED,
        )

    @property
    def was_called_off(self) -> bool:
        """Whether a person called the run off, or its process had to stop."""
        return self.outcome is MaintenanceOutcome.SKIPPED and self.reason == CALLED_OFF

    @property
    def seconds(self) -> float | None:
        return None if self.ended_at is None else round((self.ended_at - self.started_at).total_seconds(), 3)


@dataclass(frozen=True, slots=True)
class NewRun:
    dataset: DatasetId
    kind: MaintenanceKind
    node: str
    by_schedule: bool = False


def _run(row: Any) -> MaintenanceRun:
    # By position: a status of a thousand datasets has thousands of them.
    return MaintenanceRun(
        row.id,
        row.dataset_name,
        MaintenanceKind(row.kind),
        row.node,
        row.dry_run,
        row.by_schedule,
        row.started_at,
        row.heartbeat_at,
        row.ended_at,
        None if row.outcome is None else MaintenanceOutcome(row.outcome),
        row.reason,
        None if row.result is None else json.loads(row.result),
        read_actor(row),
        row.stop_asked_at,
    )


_RUNS = RunTable(
    maintenance_run,
    sa.select(maintenance_run, dataset_table.c.name.label("dataset_name")).join(
        dataset_table, dataset_table.c.id == maintenance_run.c.dataset_id
    ),
    lambda connection, rows: list(map(_run, rows)),
    "strandline maintenance runs",
)
get = _RUNS.get
ask_to_stop = _RUNS.ask_to_stop


def _of(dataset: DatasetId, kind: MaintenanceKind) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return maintenance_run.c.dataset_id == dataset, maintenance_run.c.kind == kind.value


def begin(
    connection: sa.Connection, new: NewRun, *, lease_seconds: float, after: MaintenanceRunId | None = None
) -> MaintenanceRunId | None:
    """Registers a run; `AlreadyRunning` if one of this kind is under way. None for a scheduled run if one is under way,
    or if another process has begun one since the run `after`."""
    now = utc_now()
    # Others that begin a run on this dataset wait here, so what is read below stays true.
    lock_row(connection, dataset_table, new.dataset)
    close_dead(connection, now, lease_seconds=lease_seconds)
    for running in _RUNS.latest(connection, _RUNS.running, *_of(new.dataset, new.kind), runs_max=1):
        if new.by_schedule:
            return None
        raise AlreadyRunning(
            f"{new.kind.value} of {running.dataset} is under way already: run {running.id} on {running.node}, "
            f"since {moment(running.started_at)}",
            hint=f"Wait for it. If its process is gone, it counts as dead {lease_seconds:.0f} s after its last "
            "heartbeat.",
        )
    if new.by_schedule:
        last = last_scheduled(connection, new.dataset, new.kind)
        if (None if last is None else last.id) != after:
            return None
    return _insert(connection, new, dry_run=False, started_at=now, heartbeat_at=now)


def _insert(connection: sa.Connection, new: NewRun, **values: object) -> MaintenanceRunId:
    columns = {"dataset_id": new.dataset, "kind": new.kind.value, "node": new.node, "by_schedule": new.by_schedule}
    return MaintenanceRunId(_RUNS.add(connection, **columns, **values))


def record_dry_run(
    connection: sa.Connection,
    new: NewRun,
    *,
    started_at: datetime,
    outcome: MaintenanceOutcome,
    reason: str | None,
    result: Mapping[str, Any] | None,
) -> MaintenanceRunId:
    """Stores a dry run when it has ended. It was not registered before: it writes no files that the reconciler would
    have to spare."""
    ending = _ending(outcome, reason, result)
    started = {"started_at": min(started_at, ending["ended_at"]), "heartbeat_at": ending["ended_at"]}
    return _insert(connection, new, dry_run=True, **started, **ending)


def _ending(outcome: MaintenanceOutcome, reason: str | None, result: Mapping[str, Any] | None) -> dict[str, Any]:
    text = None if result is None else json.dumps(dict(result))
    return {"ended_at": utc_now(), "outcome": outcome.value, "reason": reason, "result": text}


def beat(connection: sa.Connection, id: MaintenanceRunId) -> Renewed | None:
    """Stores a heartbeat, and returns whether the run was called off. None if it was taken for dead."""
    return _RUNS.renew(connection, maintenance_run.c.id == id, heartbeat_at=utc_now())


def end(
    connection: sa.Connection,
    id: MaintenanceRunId,
    outcome: MaintenanceOutcome,
    *,
    reason: str | None,
    result: Mapping[str, Any] | None,
) -> bool:
    """Stores the end of the run. False, without a change, if it was taken for dead."""
    return _RUNS.change(connection, id, **_ending(outcome, reason, result))


def close_dead(connection: sa.Connection, now: datetime, *, lease_seconds: float) -> int:
    """Closes runs without a heartbeat for the length of a lease. Returns how many. If the process lives after all, its
    next heartbeat fails."""
    # A heartbeat that far in the future counts as none: a clock was set back since, and the run would block all others
    # until then.
    lease, beat_at = timedelta(seconds=lease_seconds), maintenance_run.c.heartbeat_at
    closed = connection.execute(
        maintenance_run.update()
        .where(_RUNS.running, sa.or_(beat_at < now - lease, beat_at > now + abs(lease)))
        .values(
            ended_at=utc_now(),
            outcome=MaintenanceOutcome.DIED.value,
            reason=_DIED,
        )
    )
    return closed.rowcount


def forget_old(connection: sa.Connection, dataset: DatasetId, kind: MaintenanceKind, *, runs_kept: int) -> int:
    """Deletes all but the newest runs of the kind and those that died lately. Returns how many. The newest scheduled
    run always stays: the next one is scheduled from it."""
    same_kind = _of(dataset, kind)
    last = last_scheduled(connection, dataset, kind)
    deleted = connection.execute(
        maintenance_run.delete().where(
            *same_kind,
            ~_RUNS.running,
            ~_died_after(utc_now() - DIED_SPARED),
            maintenance_run.c.id.not_in(_RUNS.newest_ids(*same_kind, runs_max=runs_kept)),
            maintenance_run.c.id != (0 if last is None else last.id),
        )
    )
    return deleted.rowcount


def latest(
    connection: sa.Connection,
    *,
    datasets: Collection[DatasetId] | None = None,
    kind: MaintenanceKind | None = None,
    before: int | None = None,
    runs_max: int = 20,
) -> list[MaintenanceRun]:
    """Newest first; `before` is the id of the last run of the previous page."""
    wanted: list[sa.ColumnElement[bool]] = []
    if datasets is not None:
        wanted.append(maintenance_run.c.dataset_id.in_(datasets))
    if before is not None:
        wanted.append(maintenance_run.c.id < before)
    if kind is not None:
        wanted.append(maintenance_run.c.kind == kind.value)
    return _RUNS.latest(connection, *wanted, runs_max=runs_max)


def last_of_each_kind(connection: sa.Connection) -> dict[DatasetId, list[MaintenanceRun]]:
    """The newest run of each kind, by dataset, under way or not, without dry runs."""
    newest = (
        sa.select(sa.func.max(maintenance_run.c.id))
        .where(maintenance_run.c.dry_run.is_(False))
        .group_by(maintenance_run.c.dataset_id, maintenance_run.c.kind)
    )
    live = dataset_table.c.dropped_at.is_(None)
    query = _RUNS.rows.where(maintenance_run.c.id.in_(newest), live).order_by(maintenance_run.c.kind)
    runs: dict[DatasetId, list[MaintenanceRun]] = {}
    for id, run in _LAST.read(connection.execute(query).all()):
        runs.setdefault(id, []).append(run)
    return runs


_LAST = RowMemo(lambda row: (DatasetId(row.dataset_id), _run(row)))


def last_scheduled(connection: sa.Connection, dataset: DatasetId, kind: MaintenanceKind) -> MaintenanceRun | None:
    newest = _RUNS.latest(connection, *_of(dataset, kind), maintenance_run.c.by_schedule.is_(True), runs_max=1)
    return newest[0] if newest else None


def oldest_running_since(connection: sa.Connection, *, died_since: datetime | None = None) -> datetime | None:
    """When the oldest run that is under way began: younger files may belong to it. Runs that were taken for dead after
    `died_since` count, too: a machine that was suspended may resume in the middle of one."""
    wanted = _RUNS.running if died_since is None else sa.or_(_RUNS.running, _died_after(died_since))
    oldest: datetime | None = connection.scalar(sa.select(sa.func.min(maintenance_run.c.started_at)).where(wanted))
    return oldest


def datasets_with_runs(connection: sa.Connection) -> set[str]:
    """Names of the datasets with a run under way."""
    names = (
        sa.select(dataset_table.c.name)
        .join_from(maintenance_run, dataset_table, dataset_table.c.id == maintenance_run.c.dataset_id)
        .where(_RUNS.running)
    )
    return set(connection.scalars(names))


def _died_after(moment: datetime) -> sa.ColumnElement[bool]:
    return sa.and_(maintenance_run.c.outcome == MaintenanceOutcome.DIED.value, maintenance_run.c.ended_at > moment)
