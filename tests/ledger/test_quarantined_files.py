"""Whatever may still be in quarantine is not forgotten, on both databases."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa

from strandline.core.records.reconcile_records import SweptState
from strandline.ledger.engine import utc_now
from strandline.ledger.reconcile import quarantined_files, reconcile_runs
from tests.ledger.conftest import LakeState
from tests.ledger.test_reconcile_record import ended_run, swept


@pytest.mark.parametrize("state", quarantined_files.IN_QUARANTINE)
def test_a_run_whose_files_may_be_in_quarantine_is_not_forgotten(lake: LakeState, state: SweptState) -> None:
    run = ended_run(lake)
    files = swept(lake, run)
    with lake.ledger.write() as connection:
        quarantined_files.move(connection, files, state)
        assert reconcile_runs.forget_old(connection, runs_max=0) == 0
    if state is SweptState.LEFT:
        return  # For a while only: see below.
    for table, column in (("swept_file", "run_id"), ("reconcile_run", "id")):
        with pytest.raises(sa.exc.IntegrityError), lake.ledger.write() as connection:
            connection.exec_driver_sql(f"DELETE FROM {table} WHERE {column} = {run}")


def test_a_file_that_stayed_is_done_with_and_then_its_run_is_forgotten(lake: LakeState) -> None:
    run = ended_run(lake)
    files = swept(lake, run)
    with lake.ledger.write() as connection:
        quarantined_files.move(connection, files, SweptState.LEFT)
        left = quarantined_files.of_run(connection, run)
        assert quarantined_files.move(connection, left, SweptState.RESTORED) == 2
        assert reconcile_runs.forget_old(connection, runs_max=0) == 1


def test_a_file_that_can_never_be_moved_does_not_keep_its_runs_for_ever(
    lake: LakeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = swept(lake, ended_run(lake))
    with lake.ledger.write() as connection:
        quarantined_files.move(connection, files, SweptState.LEFT)
    now = utc_now()
    for days, forgotten in ((29, 0), (31, 1)):
        monkeypatch.setattr(reconcile_runs, "utc_now", lambda days=days: now + timedelta(days=days))
        with lake.ledger.write() as connection:
            assert reconcile_runs.forget_old(connection, runs_max=0) == forgotten
