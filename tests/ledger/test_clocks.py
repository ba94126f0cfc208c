"""What the ledger recorded is what a clock is compared with, beyond a boot of the machine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from strandline.core.clock import Moment
from strandline.core.errors import Skipped
from strandline.ledger import audit
from strandline.ledger.maintain import clocks, runs
from strandline.ledger.maintain.runs import MaintenanceKind, MaintenanceOutcome, NewRun
from strandline.ledger.schema.core import micros
from strandline.maintain import clock
from tests.ledger.conftest import LakeState

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def record_block(lake: LakeState, at: timedelta) -> None:
    published = lake.publish(lake.reserve(f"at {at}"))
    with lake.ledger.write() as connection:
        connection.execute(
            sa.text("UPDATE block SET changed_at = :at WHERE lo = :lo"),
            {"at": micros(NOON + at), "lo": published.head.rows.lo},
        )


def record_run(lake: LakeState, at: timedelta, outcome: MaintenanceOutcome) -> None:
    with lake.ledger.write() as connection:
        new = NewRun(lake.dataset.id, MaintenanceKind.RETAIN, "here:1")
        values = {"started_at": NOON + at, "heartbeat_at": NOON + at, "ended_at": NOON + at}
        runs._insert(connection, new, dry_run=False, outcome=outcome.value, reason="why", **values)


def seen(lake: LakeState, since: timedelta | None, now: timedelta) -> list[timedelta]:
    with lake.ledger.read() as connection:
        found = clocks.times_around_longest_gap(connection, None if since is None else NOON + since, NOON + now)
    return [m - NOON for m in found]


def check(lake: LakeState, at: timedelta, boot: str) -> None:
    clock.check(lake.ledger, lake.dataset.id, Moment(NOON + at, boot, HOUR), jump=HOUR, accept=False)


def test_the_longest_silence_is_found_among_all_that_anybody_recorded(lake: LakeState) -> None:
    assert seen(lake, None, DAY) == [] and seen(lake, timedelta(), DAY) == []
    for at in (timedelta(), HOUR, 3 * HOUR):
        record_block(lake, at)
    assert seen(lake, None, DAY) == [3 * HOUR]
    assert seen(lake, timedelta(), 4 * HOUR) == [HOUR, 3 * HOUR]
    assert seen(lake, timedelta(), DAY) == [3 * HOUR], "the longest is the one that lasts"
    record_run(lake, 10 * HOUR, MaintenanceOutcome.DONE)
    record_run(lake, 20 * HOUR, MaintenanceOutcome.SKIPPED)
    assert seen(lake, timedelta(), 11 * HOUR) == [3 * HOUR, 10 * HOUR]
    assert seen(lake, timedelta(), DAY) == [10 * HOUR], "a run that was skipped proves nothing"
    assert seen(lake, timedelta(), HOUR) == [timedelta(), 10 * HOUR], "what lies ahead of the clock is told as well"


def test_a_machine_that_comes_back_a_day_ahead_skips_a_run_though_rows_came_since(lake: LakeState) -> None:
    record_block(lake, timedelta())
    check(lake, timedelta(minutes=5), "a")
    record_block(lake, timedelta(minutes=10))
    record_block(lake, DAY + timedelta(minutes=20))
    with pytest.raises(Skipped, match=r"may have jumped: nothing was recorded for 1 d"):
        check(lake, DAY + timedelta(minutes=30), "b")
    check(lake, DAY + timedelta(minutes=40), "c")


def test_a_lake_that_is_touched_once_a_day_from_another_machine_each_time_is_not_skipped_for_ever(
    lake: LakeState,
) -> None:
    record_block(lake, timedelta())
    check(lake, HOUR, "a")
    with pytest.raises(Skipped):
        check(lake, HOUR + DAY, "b")
    record_run(lake, HOUR + DAY, MaintenanceOutcome.SKIPPED)
    check(lake, HOUR + 2 * DAY, "c")
    record_run(lake, HOUR + 2 * DAY, MaintenanceOutcome.DONE)
    for week, boot in ((1, "d"), (2, "e")):
        with pytest.raises(Skipped):
            check(lake, HOUR + (2 + 7 * week) * DAY, boot)
        record_run(lake, HOUR + (2 + 7 * week) * DAY, MaintenanceOutcome.SKIPPED)
    check(lake, HOUR + 23 * DAY, "f")
    with lake.ledger.read() as connection:
        said = next(e for e in audit.latest(connection) if e.event == "maintain.clock_jumped")
    assert (said.detail["believed"], said.detail["accepted"]) == (True, False)
    record_run(lake, HOUR + 23 * DAY, MaintenanceOutcome.DONE)
    with pytest.raises(Skipped):
        check(lake, HOUR + 30 * DAY, "g")


def test_a_block_that_was_stamped_a_year_ahead_costs_one_run(lake: LakeState) -> None:
    check(lake, timedelta(), "a")
    record_block(lake, 365 * DAY)
    with pytest.raises(Skipped, match="behind of what was recorded"):
        check(lake, HOUR, "b")
    record_run(lake, HOUR, MaintenanceOutcome.SKIPPED)
    check(lake, 2 * HOUR, "c")
