"""A clock that jumped is noticed before it decides what is old."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from strandline.maintain.clock import Moment, here, judge

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def moment(wall: timedelta, up: timedelta | None = None, boot: str | None = "a") -> Moment:
    return Moment(NOON + wall, boot if up is not None else None, up)


def jumped(now: Moment, stored: Moment | None, newest: timedelta | None = None) -> timedelta | None:
    found = judge(now, stored, None if newest is None else NOON + newest, jump=HOUR)
    return None if found is None else found.by


@pytest.mark.parametrize("passed", [timedelta(), HOUR, 3 * DAY, 400 * DAY])
def test_within_a_boot_the_clock_must_go_as_fast_as_the_machine(passed: timedelta) -> None:
    before = moment(timedelta(), HOUR)
    assert jumped(moment(passed, HOUR + passed), before) is None
    assert jumped(moment(passed + HOUR / 2, HOUR + passed), before) is None
    assert jumped(moment(passed + DAY, HOUR + passed), before) == DAY
    assert jumped(moment(passed - DAY, HOUR + passed), before) == -DAY


def test_what_others_recorded_does_not_matter_within_a_boot() -> None:
    """After a jump back, what was recorded before it lies in the future for as long as the jump was wide."""
    assert jumped(moment(HOUR, 2 * HOUR), moment(timedelta(), HOUR), newest=30 * DAY) is None


def test_after_another_boot_or_on_another_machine_what_was_recorded_is_what_there_is_to_go_by() -> None:
    before = moment(timedelta(), HOUR)
    for now_of in (lambda wall: moment(wall, HOUR, "b"), lambda wall: moment(wall)):
        assert jumped(now_of(5 * HOUR), before) is None
        assert jumped(now_of(-HOUR / 2), before) is None, "machines differ by a little"
        assert jumped(now_of(-DAY), before) == -DAY
        assert jumped(now_of(3 * DAY), before) == 3 * DAY
        assert jumped(now_of(3 * DAY), before, newest=3 * DAY - HOUR) is None, "somebody was there meanwhile"
        assert jumped(now_of(HOUR), before, newest=DAY) == HOUR - DAY


def test_the_first_run_of_all_goes_by_the_newest_rows() -> None:
    assert jumped(moment(timedelta(), HOUR), None) is None
    assert jumped(moment(timedelta(), HOUR), None, newest=-HOUR) is None
    assert jumped(moment(400 * DAY, HOUR), None, newest=timedelta()) == 400 * DAY


def test_this_machine_tells_which_boot_it_is() -> None:
    first, second = here(NOON), here(NOON)
    assert first.boot == second.boot and first.wall == NOON
    if first.up is not None and second.up is not None:
        assert second.up >= first.up > timedelta()
