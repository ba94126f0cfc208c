"""Jobs that were taken for dead, and the clock of the database itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from strandline.ledger.engine import utc_now
from strandline.ledger.maintain import clocks, runs
from strandline.ledger.maintain.runs import MaintenanceKind, MaintenanceOutcome, NewRun
from strandline.ledger.schema.maintain import maintenance_run
from tests.ledger.conftest import LakeState


def test_a_job_that_died_lately_counts_as_long_as_it_is_spared_and_is_not_forgotten(lake: LakeState) -> None:
    new = NewRun(lake.dataset.id, MaintenanceKind.COMPACT, "here:1")
    with lake.ledger.write() as connection:
        run = runs.begin(connection, new, lease_seconds=60)
        assert run is not None
        began = runs.get(connection, run).started_at
        assert runs.close_dead(connection, utc_now() + timedelta(hours=1), lease_seconds=60) == 1
        assert runs.oldest_running_since(connection) is None
        minute, now = timedelta(minutes=1), utc_now()
        assert runs.oldest_running_since(connection, died_since=now - minute) == began
        assert runs.oldest_running_since(connection, died_since=now + minute) is None
        for _ in range(3):
            done = runs.begin(connection, new, lease_seconds=60)
            assert done is not None and runs.end(connection, done, MaintenanceOutcome.DONE, reason=None, result=None)
        assert runs.forget_old(connection, lake.dataset.id, MaintenanceKind.COMPACT, runs_kept=1) == 2
        assert runs.get(connection, run).outcome is MaintenanceOutcome.DIED
        assert not runs.beat(connection, run)


@pytest.mark.parametrize("heard", [timedelta(days=-2), timedelta(days=2)])
def test_a_run_without_a_sign_of_life_is_told_as_died_before_anybody_closes_it(
    lake: LakeState, heard: timedelta
) -> None:
    new = NewRun(lake.dataset.id, MaintenanceKind.COMPACT, "here:1")
    with lake.ledger.write() as connection:
        run = runs.begin(connection, new, lease_seconds=60)
        assert run is not None
        alive, now = runs.get(connection, run), utc_now()
        assert alive.as_of(now, lease_seconds=60) == alive
        connection.execute(maintenance_run.update().values(heartbeat_at=alive.heartbeat_at + heard))
        dead = runs.get(connection, run)
        assert dead.outcome is None, "nobody has closed it"
        told = dead.as_of(now, lease_seconds=60)
        assert told.outcome is MaintenanceOutcome.DIED and told.seconds is not None and told.seconds >= 0
        assert runs.beat(connection, run), "reading changed nothing"
        assert runs.get(connection, run).as_of(utc_now(), lease_seconds=60).outcome is None
        runs.close_dead(connection, now + timedelta(hours=1), lease_seconds=60)
        closed = runs.get(connection, run)
        assert (closed.outcome, closed.reason) == (told.outcome, told.reason)
        assert closed.as_of(utc_now(), lease_seconds=60) == closed


def test_a_database_that_may_be_another_machines_says_what_time_it_has(lake: LakeState) -> None:
    with lake.ledger.read() as connection:
        told = clocks.database_now(connection)
        if connection.dialect.name == "sqlite":
            assert told is None
        else:
            assert told is not None and abs(told - datetime.now(UTC)) < timedelta(minutes=1)
