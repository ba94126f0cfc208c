"""Calling off runs of maintenance and of the reconciler: stored once, seen by their process, and never taken back."""

from __future__ import annotations

from itertools import count

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from strandline.core import failpoints
from strandline.core.errors import NoSuchRun
from strandline.core.failpoints import FailpointError
from strandline.core.records.reconcile_records import Asked, ReconcileRunId, StorageKind, SweepOutcome
from strandline.core.types import Lease
from strandline.jobs.heartbeat import Heartbeat
from strandline.lake import open_lake
from strandline.ledger.engine import Ledger
from strandline.ledger.maintain import runs
from strandline.ledger.maintain.runs import MaintenanceKind, NewRun
from strandline.ledger.reconcile import reconcile_runs
from strandline.ledger.run_records import Renewed
from strandline.reconcile.run_watch import Aborted, RunWatch
from tests.ledger.conftest import LakeState

_names = count(1)


def begin(lake: LakeState) -> runs.MaintenanceRunId:
    dataset = lake.add_dataset(f"default.called{next(_names)}")
    with lake.ledger.write() as connection:
        run = runs.begin(connection, NewRun(dataset.id, MaintenanceKind.COMPACT, "here:1"), lease_seconds=60)
    assert run is not None
    return run


def test_a_run_of_maintenance_learns_with_its_next_sign_of_life_that_it_was_called_off(shared: LakeState) -> None:
    run, other = begin(shared), begin(shared)
    with shared.ledger.write() as connection:
        assert runs.beat(connection, run) == Renewed(stop_asked=False)
        assert runs.ask_to_stop(connection, run) and not runs.ask_to_stop(connection, run), "once"
        assert runs.get(connection, run).stop_asked_at is not None
        assert (runs.beat(connection, run), runs.beat(connection, other)) == (Renewed(True), Renewed(False))
        runs.end(connection, run, runs.MaintenanceOutcome.SKIPPED, reason="it was called off", result=None)
        assert runs.beat(connection, run) is None and not runs.ask_to_stop(connection, run)


@pytest.mark.parametrize("table", ["maintenance_run", "reconcile_run"])
def test_nobody_takes_it_back(shared: LakeState, table: str) -> None:
    run = begin(shared) if table == "maintenance_run" else sweep(shared)[1]
    with shared.ledger.write() as connection:
        (runs if table == "maintenance_run" else reconcile_runs).ask_to_stop(connection, run)
    refused = pytest.raises(DBAPIError, match="stays_called_off")
    with refused, shared.ledger.write() as connection:
        connection.execute(sa.text(f"UPDATE {table} SET stop_asked_at = NULL WHERE id = {run}"))
    if table == "reconcile_run":
        end_sweep(shared.ledger, ReconcileRunId(run))


def sweep(lake: LakeState) -> tuple[Lease, ReconcileRunId]:
    lease = reconcile_runs.take_lease(lake.ledger, seconds=60)
    assert lease is not None
    with lake.ledger.write() as connection:
        return lease, reconcile_runs.start(connection, Asked(act=True), StorageKind.LOCAL)


def end_sweep(ledger: Ledger, run: ReconcileRunId) -> None:
    with ledger.write() as connection:
        assert reconcile_runs.complete(connection, run, SweepOutcome())
        reconcile_runs.leases.release_all(connection)


def test_a_run_of_the_reconciler_sees_it_in_the_transaction_of_its_next_batch(shared: LakeState) -> None:
    lease, run = sweep(shared)
    watch = RunWatch(shared.ledger, lease, Heartbeat(lambda: True, lease_seconds=60), run_seconds_max=60)
    with shared.ledger.write() as connection:
        watch.fence(connection)
        assert not reconcile_runs.is_called_off(connection)
    with shared.ledger.write() as connection:
        assert reconcile_runs.ask_to_stop(connection, run)
    watch.check()  # it asks nobody
    with pytest.raises(Aborted, match="cancelled"), shared.ledger.write() as connection:
        watch.fence(connection)
    with pytest.raises(Aborted, match="cancelled"):
        watch.check()
    end_sweep(shared.ledger, run)


def test_what_was_asked_of_a_dead_run_does_not_end_the_next_one(shared: LakeState) -> None:
    _, dead = sweep(shared)
    with shared.ledger.write() as connection:
        reconcile_runs.ask_to_stop(connection, dead)
        reconcile_runs.leases.release_all(connection)  # its time is over
    assert reconcile_runs.take_lease(shared.ledger, seconds=60) is not None
    assert not shared.ledger.query(reconcile_runs.is_called_off)
    end_sweep(shared.ledger, dead)


@pytest.mark.parametrize("point", ["maintain.after_called_off", "reconcile.after_called_off"])
def test_what_was_asked_stays_when_the_process_dies_that_asked(sqlite_lake: LakeState, point: str) -> None:
    maintains = point.startswith("maintain")
    run: int = begin(sqlite_lake) if maintains else sweep(sqlite_lake)[1]
    with open_lake(sqlite_lake.config.home) as opened:
        cancel = opened.maintenance.cancel if maintains else opened.reconciler.cancel
        with pytest.raises(NoSuchRun):
            cancel(run + 1000)
        failpoints.arm(f"{point}=fail")
        try:
            with pytest.raises(FailpointError):
                cancel(run)
        finally:
            failpoints.arm("")
        found = opened.maintenance.get(run) if maintains else opened.reconciler.show(run)[0]
        assert found.stop_asked_at is not None and cancel(run) == found, "once more changes nothing"
