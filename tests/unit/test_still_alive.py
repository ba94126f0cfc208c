"""A run of maintenance that was taken for dead learns of it before it commits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import strandline
from strandline import Lake
from strandline.core.errors import LeaseLost
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.ledger.engine import utc_now
from strandline.ledger.maintain import runs
from strandline.ledger.maintain.runs import MaintenanceKind, MaintenanceOutcome
from strandline.maintain.runs import StillAlive, perform, rehearse, run_scheduled


@dataclass(frozen=True)
class Nothing:
    rows: int = 0


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    made = strandline.init_lake(tmp_path)
    made.create_dataset("a", parse_columns([{"name": "v", "type": "string"}]))
    yield made
    made.close()


@pytest.mark.parametrize("by_schedule", [False, True])
def test_a_run_that_was_closed_by_another_does_not_commit(lake: Lake, by_schedule: bool) -> None:
    committed = []
    context, dataset = lake.maintenance.context, lake.dataset("a")

    def work(alive: StillAlive) -> Nothing:
        for n in range(2):
            alive()
            committed.append(n)
            with lake.ledger.write() as connection:  # the machine slept meanwhile, and somebody looked
                assert runs.close_dead(connection, utc_now(), lease_seconds=-60) == 1
        return Nothing()

    with pytest.raises(LeaseLost):
        if by_schedule:
            run_scheduled(context, dataset, MaintenanceKind.COMPACT, work, after=None)
        else:
            perform(context, dataset, MaintenanceKind.COMPACT, work)
    assert committed == [0]
    with lake.ledger.read() as connection:
        assert runs.latest(connection)[0].outcome is MaintenanceOutcome.DIED


def test_a_dry_run_is_not_registered_and_nobody_takes_it_for_dead(lake: Lake) -> None:
    def work(alive: StillAlive) -> Nothing:
        alive()
        return Nothing()

    assert rehearse(lake.maintenance.context, lake.dataset("a"), MaintenanceKind.COMPACT, work).run.dry_run
