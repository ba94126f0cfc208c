"""A clock that jumped is noticed before it decides what is old."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from strandline.core.clock import SKIPS_MAX, Moment, current_moment, find_jump

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def moment(wall: timedelta, up: timedelta | None = None, boot: str | None = "a") -> Moment:
    return Moment(NOON + wall, boot if up is not None else None, up)


def jumped(now: Moment, stored: Moment | None, *seen: timedelta, skipped: Sequence[timedelta] = ()) -> timedelta | None:
    found = find_jump(now, stored, [NOON + s for s in seen], jump=HOUR, skipped=[NOON + s for s in skipped])
    return None if found is None or found.is_confirmed else found.by


@pytest.mark.parametrize("passed", [timedelta(), HOUR, 3 * DAY, 400 * DAY])
def test_within_a_boot_the_clock_must_go_as_fast_as_the_machine(passed: timedelta) -> None:
    before = moment(timedelta(), HOUR)
    assert jumped(moment(passed, HOUR + passed), before) is None
    assert jumped(moment(passed + HOUR / 2, HOUR + passed), before) is None
    assert jumped(moment(passed + DAY, HOUR + passed), before) == DAY
    assert jumped(moment(passed - DAY, HOUR + passed), before) == -DAY


def test_what_others_recorded_does_not_matter_within_a_boot() -> None:
    """After a jump back, what was recorded before it lies in the future for as long as the jump was wide."""
    assert jumped(moment(HOUR, 2 * HOUR), moment(timedelta(), HOUR), 30 * DAY) is None


BOOTS = [lambda wall: moment(wall, HOUR, "b"), lambda wall: moment(wall)]


@pytest.mark.parametrize("now_of", BOOTS, ids=["another boot", "a system that does not tell"])
def test_after_another_boot_what_was_recorded_is_what_there_is_to_go_by(now_of: Callable[[timedelta], Moment]) -> None:
    before = moment(timedelta(), HOUR)
    assert jumped(now_of(5 * HOUR), before) is None
    assert jumped(now_of(-HOUR / 2), before) is None, "machines differ by a little"
    assert jumped(now_of(-DAY), before) == -DAY
    assert jumped(now_of(HOUR), before, DAY) == HOUR - DAY
    assert jumped(now_of(3 * DAY), before) == 3 * DAY


def test_a_clock_that_comes_back_a_day_ahead_is_seen_whoever_recorded_something_since() -> None:
    before, minute = moment(timedelta(), HOUR), timedelta(minutes=1)
    ahead = moment(DAY, minute, "b")
    assert jumped(ahead, before) == DAY
    assert jumped(ahead, before, DAY - minute) == DAY - minute, "a writer that trusted the same clock proves nothing"
    assert jumped(moment(2 * DAY, DAY, "b"), before, HOUR, DAY + HOUR, 2 * DAY - HOUR) == DAY
    steady = [HOUR * n for n in range(0, 48, 10)]
    assert jumped(moment(2 * DAY, DAY, "b"), before, *steady) is None, "somebody was there all the time"


def test_a_silence_costs_one_run_and_not_every_one_of_a_lake_that_is_touched_once_a_day() -> None:
    before = moment(timedelta(), HOUR)
    daily = moment(DAY, HOUR, "b")
    assert jumped(daily, before) == DAY
    once, twice = [timedelta()], [-DAY, timedelta()]
    assert jumped(daily, before, skipped=once) is None
    assert jumped(moment(2 * DAY, HOUR, "b"), before, skipped=once) == 2 * DAY
    assert jumped(moment(-DAY, HOUR, "b"), before, skipped=once) == -DAY
    assert jumped(moment(7 * DAY, HOUR, "b"), before, skipped=twice) is None
    assert jumped(moment(-DAY, HOUR, "b"), before, skipped=twice) == -DAY


def test_clocks_that_contradict_each_other_are_never_believed_to_be_ahead() -> None:
    """Two machines take turns, and the clock of one is a year ahead."""
    right, wrong = moment(timedelta(), HOUR), 365 * DAY
    assert jumped(moment(wrong + HOUR, HOUR, "b"), right, skipped=[wrong, timedelta()]) == wrong + HOUR
    assert jumped(moment(HOUR, HOUR, "b"), moment(wrong, HOUR), skipped=[timedelta(), wrong]) == HOUR - wrong


def test_a_row_that_was_stamped_a_year_ahead_costs_one_run() -> None:
    before, later = moment(timedelta(), HOUR), moment(HOUR, HOUR, "b")
    assert jumped(later, before, 365 * DAY) == HOUR - 365 * DAY
    assert jumped(later, before, 365 * DAY, skipped=[timedelta()]) is None
    found = find_jump(later, before, [NOON + 365 * DAY], jump=HOUR, skipped=[NOON])
    assert found is not None and found.is_confirmed and "behind of what was recorded" in found.message


@pytest.mark.parametrize("seed", range(300))
def test_however_a_clock_behaved_once_it_is_right_retention_goes_on_after_two_runs(seed: int) -> None:
    """On one machine or a new one for each run, hours or months apart, whatever wrong clocks have stamped."""
    rng = random.Random(seed)
    true, up, boot, stored = timedelta(), HOUR, 0, None
    skipped: list[datetime] = []
    seen: list[datetime] = []
    in_a_row = 0
    for n in range(14):
        passed = rng.choice([HOUR, DAY, 7 * DAY, 90 * DAY]) * rng.uniform(0.5, 2)
        true, up = true + passed, up + passed
        if rng.random() < 0.6:
            boot, up = boot + 1, HOUR
        wrong = timedelta() if n >= 8 else rng.choice([-400 * DAY, -DAY, timedelta(), DAY, 400 * DAY])
        now = Moment(NOON + true + wrong, str(boot), up)
        if rng.random() < 0.5:
            seen.append(now.wall - passed * rng.random())
        found = find_jump(now, stored, seen, jump=HOUR, skipped=skipped)
        skips = found is not None and not found.is_confirmed
        skipped = [*skipped, now.wall][-SKIPS_MAX:] if skips else []
        stored = now
        in_a_row = in_a_row + 1 if skips and n >= 8 else 0
        assert in_a_row <= 2


def test_what_was_recorded_before_the_last_run_was_judged_then() -> None:
    assert jumped(moment(HOUR, HOUR, "b"), moment(timedelta(), HOUR), -9 * DAY) is None


def test_the_first_run_of_all_goes_by_the_newest_rows() -> None:
    assert jumped(moment(timedelta(), HOUR), None) is None
    assert jumped(moment(timedelta(), HOUR), None, -HOUR) is None
    assert jumped(moment(400 * DAY, HOUR), None, timedelta()) == 400 * DAY


def test_this_machine_tells_which_boot_it_is() -> None:
    first, second = current_moment(NOON), current_moment(NOON)
    assert first.boot == second.boot and first.wall == NOON
    if first.up is not None and second.up is not None:
        assert second.up >= first.up > timedelta()
