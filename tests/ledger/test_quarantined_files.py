"""Whatever may still be in quarantine is not forgotten, on both databases."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from strandline.drift import SweptState
from strandline.ledger import quarantined_files, reconcile_runs
from tests.ledger.conftest import Bench
from tests.ledger.test_reconcile_record import ended_run, swept


@pytest.mark.parametrize("state", quarantined_files.THERE)
def test_a_run_whose_files_may_be_in_quarantine_is_not_forgotten(bench: Bench, state: SweptState) -> None:
    run = ended_run(bench)
    files = swept(bench, run)
    with bench.ledger.write() as connection:
        quarantined_files.move(connection, files, state)
        assert reconcile_runs.forget_old(connection, runs_max=0) == 0
    for table, column in (("swept_file", "run_id"), ("reconcile_run", "id")):
        with pytest.raises(sa.exc.IntegrityError), bench.ledger.write() as connection:
            connection.exec_driver_sql(f"DELETE FROM {table} WHERE {column} = {run}")


def test_a_file_that_stayed_is_done_with_and_then_its_run_is_forgotten(bench: Bench) -> None:
    run = ended_run(bench)
    files = swept(bench, run)
    with bench.ledger.write() as connection:
        quarantined_files.move(connection, files, SweptState.LEFT)
        left = quarantined_files.of_run(connection, run)
        assert quarantined_files.move(connection, left, SweptState.RESTORED) == 2
        assert reconcile_runs.forget_old(connection, runs_max=0) == 1
