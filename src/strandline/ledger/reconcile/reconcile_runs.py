"""Runs of the reconciler, and the lease that lets one of them act.

The lease is a fence: a run records what it is about to do in a transaction that checks the lease (`leases.holds`). What
a run has done is recorded even if it lost the lease: it happened.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from strandline.core.records.audit_events import Event
from strandline.core.records.reconcile_records import (
    AbortReason,
    Asked,
    Counts,
    Done,
    ReconcileRun,
    ReconcileRunId,
    StorageKind,
    SweepOutcome,
)
from strandline.core.types import Lease
from strandline.ledger import audit
from strandline.ledger.actor_columns import read_actor
from strandline.ledger.engine import Ledger, from_row, rows_with, slices, utc_now
from strandline.ledger.leases import LeaseColumns
from strandline.ledger.run_records import RunTable
from strandline.ledger.schema.reconcile import dropped_batch, reconcile_run, sweep_lease, swept_file

_NEEDED = ("begun", "held", "purging")
# How long the ledger remembers a file that could not be moved, or that was copied: long enough to purge it. Not
# forever: each run would find such a file again, and the records of all these runs would stay. Listing the quarantine
# also finds the files in it.
_LEFT_DAYS_MIN = 30


# ---- the lease -------------------------------------------------------------------------------------------------------


leases = LeaseColumns(sweep_lease.c.token, sweep_lease.c.until, fence=sweep_lease.c.fence)
_THE_ONLY_ROW = 1
DIED = "its process ended without recording why"


def take_lease(ledger: Ledger, *, seconds: float) -> Lease | None:
    """None while another process's lease runs. An expired lease is taken over."""
    return leases.take(ledger, _THE_ONLY_ROW, seconds=seconds)


def is_lease_held(connection: sa.Connection, now: datetime) -> bool:
    """Whether a run holds the lease. That of a dead run ends when its time is over."""
    held = sa.select(sweep_lease.c.id).where(sweep_lease.c.token.is_not(None), sweep_lease.c.until > now)
    return connection.execute(held).first() is not None


# ---- runs ------------------------------------------------------------------------------------------------------------


def start(connection: sa.Connection, asked: Asked, storage: StorageKind, folder: str | None = None) -> ReconcileRunId:
    """Starts a run. The caller holds the lease and checks it in the same transaction. A run that is still `running` is
    therefore dead, and must be settled first."""
    run = _RUNS.add(
        connection,
        fence=sa.select(sweep_lease.c.fence).scalar_subquery(),
        **asdict(asked),
        storage=storage.value,
        state="running",
        outcome=_outcome_text(SweepOutcome()),
        started_at=utc_now(),
        folder=folder,
    )
    audit.record(
        connection, Event.RUN_STARTED, run=run, dry_run=not asked.act, delete=asked.delete, storage=storage.value
    )
    return ReconcileRunId(run)


def progress(connection: sa.Connection, run: ReconcileRunId, outcome: SweepOutcome) -> bool:
    """Stores what a run has found so far, so that a run that dies leaves a record."""
    return _RUNS.change(connection, run, outcome=_outcome_text(outcome))


def complete(connection: sa.Connection, run: ReconcileRunId, outcome: SweepOutcome) -> bool:
    """Stores the end of the run. False, without a change, if another process took it for dead and ended it."""
    ended = _RUNS.change(connection, run, state="completed", outcome=_outcome_text(outcome), ended_at=utc_now())
    return ended and _audited(connection, Event.RUN_COMPLETED, run, outcome)


def abort(connection: sa.Connection, run: ReconcileRunId, outcome: SweepOutcome, reason: AbortReason, why: str) -> bool:
    """As `complete`, for a run that stops early."""
    end = {"reason": reason.value, "why": why}
    values = {"state": "aborted", **end, "outcome": _outcome_text(outcome), "ended_at": utc_now()}
    return _RUNS.change(connection, run, **values) and _audited(connection, Event.RUN_ABORTED, run, outcome, **end)


def close_dead(connection: sa.Connection, run: ReconcileRunId, outcome: SweepOutcome) -> bool:
    """Stores the end of a run that is taken for dead."""
    # With the reason `unknown`, and the true one in `why`: the database lets a run that lives after all correct only
    # this end.
    values = {
        "reason": AbortReason.UNKNOWN.value,
        "why": DIED,
        "outcome": _outcome_text(outcome),
        "ended_at": utc_now(),
    }
    ended = _RUNS.change(connection, run, state="aborted", **values)
    end = {"reason": AbortReason.DIED.value, "why": DIED}
    return ended and _audited(connection, Event.RUN_ABORTED, run, outcome, **end)


def record_late_end(connection: sa.Connection, run: ReconcileRunId, outcome: SweepOutcome) -> bool:
    """Records what a run really did that was wrongly taken for dead: it has lost its lease. False if the stored end is
    the run's own."""
    taken_for_dead = (
        reconcile_run.c.id == run,
        reconcile_run.c.state == "aborted",
        reconcile_run.c.reason == AbortReason.UNKNOWN.value,
        reconcile_run.c.why == DIED,
    )
    end = {"reason": AbortReason.LEASE_LOST.value, "why": "another run has taken over"}
    changed = connection.execute(
        reconcile_run.update().where(*taken_for_dead).values(**end, outcome=_outcome_text(outcome), ended_at=utc_now())
    )
    return changed.rowcount == 1 and _audited(connection, Event.RUN_ABORTED, run, outcome, **end)


def correct(connection: sa.Connection, run: ReconcileRunId, done: Done, *, settled: bool = False) -> bool:
    """Corrects the record of what an aborted run has done, such as a commit whose response was lost. `settled`: nothing
    that the run left is in doubt any more. False if the run was not aborted."""
    before = get(connection, run).outcome
    aborted = (reconcile_run.c.id == run, reconcile_run.c.state == "aborted")
    outcome = _outcome_text(replace(before, done=done, settled=settled or before.settled))
    return connection.execute(reconcile_run.update().where(*aborted).values(outcome=outcome)).rowcount == 1


def _audited(connection: sa.Connection, event: Event, run: ReconcileRunId, outcome: SweepOutcome, **end: str) -> bool:
    storage = connection.execute(sa.select(reconcile_run.c.storage).where(reconcile_run.c.id == run)).scalar_one()
    audit.record(
        connection,
        event,
        run=run,
        **end,
        storage=storage,
        partial=outcome.partial,
        cap_hit=outcome.cap_hit,
        skipped_recheck=outcome.done.skipped_recheck,
        planned=asdict(outcome.planned),
        done=asdict(outcome.done),
    )
    return True


def is_called_off(connection: sa.Connection) -> bool:
    """Whether the run that holds the lease was called off."""
    fence = sa.select(sweep_lease.c.fence).scalar_subquery()
    asked = (_RUNS.running, reconcile_run.c.fence == fence, reconcile_run.c.stop_asked_at.is_not(None))
    return connection.execute(sa.select(reconcile_run.c.id).where(*asked)).first() is not None


def find_running(connection: sa.Connection) -> ReconcileRun | None:
    running = _RUNS.latest(connection, _RUNS.running, runs_max=1)
    return running[0] if running else None


def runs_in_other_folders(connection: sa.Connection, folder: str | None) -> set[ReconcileRunId]:
    """Runs that used another folder than this one: this machine may not see their files."""
    if folder is None:
        return set()
    ids = connection.execute(sa.select(reconcile_run.c.id).where(reconcile_run.c.folder != folder))
    return {ReconcileRunId(run) for run in ids.scalars()}


def _ended_outcomes(connection: sa.Connection) -> Iterator[SweepOutcome]:
    """The outcomes of the runs that have ended, oldest first."""
    rows = connection.execute(
        sa.select(reconcile_run.c.outcome).where(reconcile_run.c.state != "running").order_by(reconcile_run.c.id)
    )
    return map(_read_outcome, rows.scalars())


def contents_before(connection: sa.Connection) -> dict[str, int]:
    """The references that the last complete run counted, by table uuid."""
    references: dict[str, int] = {}
    for outcome in _ended_outcomes(connection):
        references |= outcome.tables
    return references


def sequences_before(connection: sa.Connection) -> dict[str, int]:
    """The highest Iceberg sequence number that any run saw, by table uuid."""
    highest: dict[str, int] = {}
    for outcome in _ended_outcomes(connection):
        for uuid, number in outcome.sequences.items():
            highest[uuid] = max(number, highest.get(uuid, number))
    return highest


def clocks_before(connection: sa.Connection) -> list[Mapping[str, Any]]:
    """The clocks of earlier runs, newest first."""
    return [outcome.clock for outcome in _ended_outcomes(connection) if outcome.clock is not None][::-1]


def forget_old(connection: sa.Connection, *, runs_max: int, left_days: int = _LEFT_DAYS_MIN) -> int:
    """Deletes all but the newest runs, and none that still has files in quarantine or an unsettled batch of entries.
    Returns how many."""
    since = utc_now() - timedelta(days=max(left_days, _LEFT_DAYS_MIN))
    lately = sa.and_(swept_file.c.state == "left", swept_file.c.begun_at > since)
    needed = sa.exists().where(
        swept_file.c.run_id == reconcile_run.c.id, sa.or_(swept_file.c.state.in_(_NEEDED), lately)
    )
    unsettled = sa.exists().where(dropped_batch.c.run_id == reconcile_run.c.id, dropped_batch.c.state == "begun")
    forgotten = sa.select(reconcile_run.c.id).where(
        ~_RUNS.running, reconcile_run.c.id.not_in(_RUNS.newest_ids(runs_max=runs_max)), ~needed, ~unsettled
    )
    old = connection.scalars(forgotten).all()
    for part in slices(old):
        connection.execute(swept_file.delete().where(swept_file.c.run_id.in_(part)))
        connection.execute(dropped_batch.delete().where(dropped_batch.c.run_id.in_(part)))
        connection.execute(reconcile_run.delete().where(reconcile_run.c.id.in_(part)))
    return len(old)


def _count_held_files(connection: sa.Connection, runs: Sequence[int]) -> dict[int, int]:
    query = (
        sa.select(swept_file.c.run_id, sa.func.count().label("files"))
        .where(swept_file.c.state.in_(("held", "purging")))
        .group_by(swept_file.c.run_id)
    )
    return {row.run_id: row.files for row in rows_with(connection, query, swept_file.c.run_id, runs)}


def _read_all(connection: sa.Connection, rows: Sequence[Any]) -> list[ReconcileRun]:
    held = _count_held_files(connection, [row.id for row in rows])
    runs = {row.id: _run(row, held.get(row.id, 0)) for row in rows}
    running = [row for row in rows if row.ended_at is None]
    if running:
        now, lease = utc_now(), connection.execute(sa.select(sweep_lease)).one()
        for row in running:
            if row.fence != lease.fence or lease.token is None or lease.until <= now:
                runs[row.id] = _died(runs[row.id], now if lease.until is None else min(now, lease.until))
    return list(runs.values())


def _died(run: ReconcileRun, at: datetime) -> ReconcileRun:
    """The run as it is shown when it has lost its lease. The next run settles what it left, and stores its end."""
    return replace(run, ended_at=max(at, run.started_at), aborted=AbortReason.DIED, why=DIED)


def _run(row: Any, held: int) -> ReconcileRun:
    return from_row(
        ReconcileRun,
        row,
        asked=from_row(Asked, row),
        storage=StorageKind(row.storage),
        aborted=_aborted(row.reason, row.why),
        outcome=_read_outcome(row.outcome),
        held=held,
        actor=read_actor(row),
    )


def _aborted(reason: str | None, why: str | None) -> AbortReason | None:
    if reason == AbortReason.UNKNOWN and why == DIED:
        return AbortReason.DIED
    return None if reason is None else AbortReason(reason)


def _outcome_text(outcome: SweepOutcome) -> str:
    return json.dumps(asdict(outcome), sort_keys=True, default=str)


def _read_outcome(text: str) -> SweepOutcome:
    stored = json.loads(text)
    return SweepOutcome(
        **{
            **stored,
            "found": Counts(**stored["found"]),
            "planned": Counts(**stored["planned"]),
            "done": Done(**stored["done"]),
            "failures": tuple(stored["failures"]),
            "refusals": tuple(stored.get("refusals", ())),
            "samples": tuple(stored["samples"]),
        }
    )


_RUNS = RunTable(reconcile_run, sa.select(reconcile_run), _read_all, "strandline reconcile runs")
get = _RUNS.get
ask_to_stop = _RUNS.ask_to_stop


def latest(connection: sa.Connection, *, runs_max: int, before: int | None = None) -> list[ReconcileRun]:
    """Newest first; `before` is the id of the last run of the previous page."""
    wanted = () if before is None else (reconcile_run.c.id < before,)
    return _RUNS.latest(connection, *wanted, runs_max=runs_max)
