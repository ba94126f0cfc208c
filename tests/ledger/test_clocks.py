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
from tests.ledger.conftest import Bench

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def record_block(bench: Bench, at: timedelta) -> None:
    published = bench.publish(bench.reserve(f"at {at}"))
    with bench.ledger.write() as connection:
        connection.execute(
            sa.text("UPDATE block SET changed_at = :at WHERE lo = :lo"),
            {"at": micros(NOON + at), "lo": published.head.rows.lo},
        )


def record_run(bench: Bench, at: timedelta, outcome: MaintenanceOutcome) -> None:
    with bench.ledger.write() as connection:
        new = NewRun(bench.dataset.id, MaintenanceKind.RETAIN, "here:1")
        values = {"started_at": NOON + at, "heartbeat_at": NOON + at, "ended_at": NOON + at}
        runs._insert(connection, new, dry_run=False, outcome=outcome.value, reason="why", **values)


def seen(bench: Bench, since: timedelta | None, now: timedelta) -> list[timedelta]:
    with bench.ledger.read() as connection:
        found = clocks.times_around_longest_gap(connection, None if since is None else NOON + since, NOON + now)
    return [m - NOON for m in found]


def check(bench: Bench, at: timedelta, boot: str) -> None:
    clock.check(bench.ledger, bench.dataset.id, Moment(NOON + at, boot, HOUR), jump=HOUR, accept=False)


def test_the_longest_silence_is_found_among_all_that_anybody_recorded(bench: Bench) -> None:
    assert seen(bench, None, DAY) == [] and seen(bench, timedelta(), DAY) == []
    for at in (timedelta(), HOUR, 3 * HOUR):
        record_block(bench, at)
    assert seen(bench, None, DAY) == [3 * HOUR]
    assert seen(bench, timedelta(), 4 * HOUR) == [HOUR, 3 * HOUR]
    assert seen(bench, timedelta(), DAY) == [3 * HOUR], "the longest is the one that lasts"
    record_run(bench, 10 * HOUR, MaintenanceOutcome.DONE)
    record_run(bench, 20 * HOUR, MaintenanceOutcome.SKIPPED)
    assert seen(bench, timedelta(), 11 * HOUR) == [3 * HOUR, 10 * HOUR]
    assert seen(bench, timedelta(), DAY) == [10 * HOUR], "a run that was skipped proves nothing"
    assert seen(bench, timedelta(), HOUR) == [timedelta(), 10 * HOUR], "what lies ahead of the clock is told as well"


def test_a_machine_that_comes_back_a_day_ahead_skips_a_run_though_rows_came_since(bench: Bench) -> None:
    record_block(bench, timedelta())
    check(bench, timedelta(minutes=5), "a")
    record_block(bench, timedelta(minutes=10))
    record_block(bench, DAY + timedelta(minutes=20))
    with pytest.raises(Skipped, match=r"may have jumped: nothing was recorded for 1 d"):
        check(bench, DAY + timedelta(minutes=30), "b")
    check(bench, DAY + timedelta(minutes=40), "c")


def test_a_lake_that_is_touched_once_a_day_from_another_machine_each_time_is_not_skipped_for_ever(
    bench: Bench,
) -> None:
    record_block(bench, timedelta())
    check(bench, HOUR, "a")
    with pytest.raises(Skipped):
        check(bench, HOUR + DAY, "b")
    record_run(bench, HOUR + DAY, MaintenanceOutcome.SKIPPED)
    check(bench, HOUR + 2 * DAY, "c")
    record_run(bench, HOUR + 2 * DAY, MaintenanceOutcome.DONE)
    for week, boot in ((1, "d"), (2, "e")):
        with pytest.raises(Skipped):
            check(bench, HOUR + (2 + 7 * week) * DAY, boot)
        record_run(bench, HOUR + (2 + 7 * week) * DAY, MaintenanceOutcome.SKIPPED)
    check(bench, HOUR + 23 * DAY, "f")
    with bench.ledger.read() as connection:
        said = next(e for e in audit.latest(connection) if e.event == "maintain.clock_jumped")
    assert (said.detail["believed"], said.detail["accepted"]) == (True, False)
    record_run(bench, HOUR + 23 * DAY, MaintenanceOutcome.DONE)
    with pytest.raises(Skipped):
        check(bench, HOUR + 30 * DAY, "g")


def test_a_block_that_was_stamped_a_year_ahead_costs_one_run(bench: Bench) -> None:
    check(bench, timedelta(), "a")
    record_block(bench, 365 * DAY)
    with pytest.raises(Skipped, match="behind of what was recorded"):
        check(bench, HOUR, "b")
    record_run(bench, HOUR, MaintenanceOutcome.SKIPPED)
    check(bench, 2 * HOUR, "c")
