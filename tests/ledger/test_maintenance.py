"""Runs of maintenance: one at a time of a kind, the dead give way, a turn of the schedule is taken once."""

from __future__ import annotations

from datetime import timedelta
from itertools import count

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from strandline.core.errors import AlreadyRunning, NoSuchRun
from strandline.core.types import Dataset
from strandline.ledger.engine import Ledger, utc_now
from strandline.ledger.maintain import runs
from strandline.ledger.maintain.runs import MaintenanceKind, MaintenanceOutcome, MaintenanceRunId, NewRun
from tests.ledger.conftest import LakeState
from tests.ledger.receiving import at_once

LEASE = 60
_names = count(1)


@pytest.fixture
def dataset(shared: LakeState) -> Dataset:
    return shared.add_dataset(f"default.kept{next(_names)}")


def begin(
    lake: LakeState,
    dataset: Dataset,
    kind: MaintenanceKind = MaintenanceKind.COMPACT,
    *,
    by_schedule: bool = False,
    after: MaintenanceRunId | None = None,
    lease_seconds: float = LEASE,
) -> MaintenanceRunId | None:
    with lake.ledger.write() as connection:
        new = NewRun(dataset.id, kind, "here:1", by_schedule)
        return runs.begin(connection, new, lease_seconds=lease_seconds, after=after)


def end(
    lake: LakeState,
    run: MaintenanceRunId | None,
    outcome: MaintenanceOutcome = MaintenanceOutcome.DONE,
    reason: str | None = None,
) -> bool:
    assert run is not None
    with lake.ledger.write() as connection:
        return runs.end(connection, run, outcome, reason=reason, result={"rows": 7})


def get(lake: LakeState, run: MaintenanceRunId | None) -> runs.MaintenanceRun:
    assert run is not None
    with lake.ledger.read() as connection:
        return runs.get(connection, run)


def test_a_run_is_stored_with_its_result_and_found_again(shared: LakeState, dataset: Dataset) -> None:
    run = begin(shared, dataset)
    under_way = get(shared, run)
    assert (under_way.outcome, under_way.ended_at, under_way.seconds, under_way.result) == (None, None, None, None)
    assert end(shared, run)
    found = get(shared, run)
    assert (found.dataset, found.kind, found.outcome, found.result) == (dataset.name, "compact", "done", {"rows": 7})
    assert found.seconds is not None and found.seconds >= 0 and not found.dry_run and not found.by_schedule
    with shared.ledger.read() as connection:
        assert runs.latest(connection, datasets=[dataset.id]) == [found]
        assert runs.latest(connection, datasets=[dataset.id], kind=MaintenanceKind.EXPIRE) == []
        with pytest.raises(NoSuchRun, match="999999"):
            runs.get(connection, 999_999)


def test_the_same_kind_runs_once_on_a_dataset_and_others_beside_it(shared: LakeState, dataset: Dataset) -> None:
    run = begin(shared, dataset)
    with pytest.raises(AlreadyRunning, match=f"run {run} on here:1") as refused:
        begin(shared, dataset)
    assert refused.value.retryable and "60 s" in str(refused.value.hint)
    assert begin(shared, dataset, by_schedule=True) is None
    expiry = begin(shared, dataset, MaintenanceKind.EXPIRE)
    other = begin(shared, shared.add_dataset(f"{dataset.name}_b"))
    for each in (expiry, other, run):
        assert end(shared, each)
    assert end(shared, begin(shared, dataset))


def test_the_store_itself_refuses_a_second_run_and_a_change_of_one_that_ended(
    shared: LakeState, dataset: Dataset
) -> None:
    run = begin(shared, dataset)
    with pytest.raises(DBAPIError), shared.ledger.write() as connection:
        runs._insert(
            connection,
            NewRun(dataset.id, MaintenanceKind.COMPACT, "there:2"),
            dry_run=False,
            started_at=utc_now(),
            heartbeat_at=utc_now(),
        )
    assert end(shared, run)
    with pytest.raises(DBAPIError), shared.ledger.write() as connection:
        connection.execute(sa.text("UPDATE maintenance_run SET reason = 'x' WHERE id = :id"), {"id": run})
    assert not end(shared, run, MaintenanceOutcome.FAILED, "late")
    assert get(shared, run).outcome == "done"


def test_whoever_gives_no_sign_of_life_is_closed_as_dead_and_cannot_end_its_run(
    shared: LakeState, dataset: Dataset
) -> None:
    run = begin(shared, dataset)
    next_one = begin(shared, dataset, lease_seconds=-1)  # every sign of life is older than that
    assert next_one is not None and next_one != run
    dead = get(shared, run)
    assert dead.outcome == "died" and dead.reason is not None and "stopped renewing its lease" in dead.reason
    assert run is not None
    with shared.ledger.write() as connection:
        assert not runs.beat(connection, run)
        assert runs.beat(connection, next_one)
    assert not end(shared, run)
    assert get(shared, run).outcome == "died"
    assert end(shared, next_one)


def test_a_run_that_gives_signs_of_life_is_not_taken_for_dead(shared: LakeState, dataset: Dataset) -> None:
    run = begin(shared, dataset)
    assert run is not None
    began = get(shared, run).heartbeat_at
    with shared.ledger.write() as connection:
        assert runs.beat(connection, run)
        assert runs.close_dead(connection, began + timedelta(seconds=LEASE), lease_seconds=LEASE) == 0
    assert get(shared, run).heartbeat_at > began
    assert end(shared, run)


def test_a_run_whose_clock_was_ahead_keeps_nobody_away_once_the_clock_is_set_right(
    shared: LakeState, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process was killed, so its last sign of life stays a day ahead."""
    with monkeypatch.context() as ahead:
        ahead.setattr(runs, "utc_now", lambda: utc_now() + timedelta(days=1))
        run = begin(shared, dataset)
    next_one = begin(shared, dataset)
    assert next_one is not None and get(shared, run).outcome == "died"
    assert end(shared, next_one)
    with monkeypatch.context() as ahead:
        ahead.setattr(runs, "utc_now", lambda: utc_now() + timedelta(seconds=LEASE / 2))
        run = begin(shared, dataset)
    with pytest.raises(AlreadyRunning):
        begin(shared, dataset)  # clocks of machines differ by a little
    assert end(shared, run)


def test_a_turn_of_the_schedule_is_taken_once_however_many_daemons_see_it(shared: LakeState, dataset: Dataset) -> None:
    def take(ledger: Ledger) -> MaintenanceRunId | None:
        with ledger.write() as connection:
            return runs.begin(
                connection, NewRun(dataset.id, MaintenanceKind.COMPACT, "here:1", by_schedule=True), lease_seconds=LEASE
            )

    taken = [r for r in at_once(shared, [take] * 4) if r is not None]
    assert len(taken) == 1
    end(shared, taken[0])
    # One that looked before the first began and comes after it ended: the turn is gone.
    assert begin(shared, dataset, by_schedule=True, after=None) is None
    following = begin(shared, dataset, by_schedule=True, after=taken[0])
    assert following is not None
    end(shared, following)
    by_hand = begin(shared, dataset)
    end(shared, by_hand)
    with shared.ledger.read() as connection:
        last = runs.last_scheduled(connection, dataset.id, MaintenanceKind.COMPACT)
    assert last is not None and last.id == following, "what is done by hand takes no turn"


def test_a_dry_run_is_stored_and_stands_in_nobodys_way(shared: LakeState, dataset: Dataset) -> None:
    run = begin(shared, dataset)
    with shared.ledger.write() as connection:
        dry = runs.record_dry_run(
            connection,
            NewRun(dataset.id, MaintenanceKind.COMPACT, "here:1"),
            started_at=utc_now() - timedelta(seconds=2),
            outcome=MaintenanceOutcome.DONE,
            reason=None,
            result={"rows": 3},
        )
    found = get(shared, dry)
    assert found.dry_run and found.result == {"rows": 3} and found.seconds is not None and found.seconds >= 2
    with shared.ledger.read() as connection:
        assert [r.id for r in runs.last_of_each_kind(connection)[dataset.id]] == [run]
    assert end(shared, run)


def test_old_runs_are_forgotten_but_never_the_turn_that_the_schedule_counts_from(
    shared: LakeState, dataset: Dataset
) -> None:
    turn = begin(shared, dataset, by_schedule=True)
    end(shared, turn)
    made = []
    for _ in range(5):
        made.append(begin(shared, dataset))
        end(shared, made[-1])
    with shared.ledger.write() as connection:
        assert runs.forget_old(connection, dataset.id, MaintenanceKind.COMPACT, runs_kept=2) == 3
        left = [r.id for r in runs.latest(connection, datasets=[dataset.id])]
        assert left == [made[4], made[3], turn]
        assert runs.forget_old(connection, dataset.id, MaintenanceKind.COMPACT, runs_kept=2) == 0


def test_the_oldest_job_under_way_says_which_files_belong_to_somebody(shared: LakeState, dataset: Dataset) -> None:
    with shared.ledger.read() as connection:
        assert runs.oldest_running_since(connection) is None
    first = begin(shared, dataset)
    second = begin(shared, dataset, MaintenanceKind.EXPIRE)
    with shared.ledger.read() as connection:
        assert runs.oldest_running_since(connection) == get(shared, first).started_at
    end(shared, first)
    with shared.ledger.read() as connection:
        assert runs.oldest_running_since(connection) == get(shared, second).started_at
    end(shared, second)


def test_runs_of_several_pages_come_once_newest_first(shared: LakeState, dataset: Dataset) -> None:
    made = []
    for _ in range(5):
        made.append(begin(shared, dataset))
        assert end(shared, made[-1])
    found: list[MaintenanceRunId] = []
    before = None
    with shared.ledger.read() as connection:
        while page := runs.latest(connection, datasets=[dataset.id], before=before, runs_max=2):
            found += [run.id for run in page]
            before = page[-1].id
        assert runs.latest(connection, datasets=[]) == []
    assert found == made[::-1]
