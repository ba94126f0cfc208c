"""The loop of a daemon: how long it waits, and what it reports."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.errors import StorageError
from strandline.core.retry import backoff_seconds
from strandline.jobs.loop import BACKOFF_SECONDS_MAX, Health, LoopControl


def after(failures: int) -> Health:
    health = Health()
    for _ in range(failures):
        health = health.after_failure("away")
    return health


def test_a_loop_that_is_well_waits_exactly_its_interval() -> None:
    assert [Health().wait_seconds(0.25, chance) for chance in (0.0, 1.0)] == [0.25, 0.25]
    assert after(5).after_success().wait_seconds(0.25, 1.0) == 0.25


def test_each_failure_doubles_the_wait_up_to_a_bound() -> None:
    assert [after(n).wait_seconds(1.0, 1.0) for n in range(1, 6)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert after(99).wait_seconds(600.0, 1.0) == 600.0, "an interval above the bound stays as it is"


@given(failures=st.integers(0, 2000), poll=st.floats(0.01, 3600), chance=st.floats(0, 1))
def test_the_wait_is_never_shorter_than_the_interval_and_never_unbounded(
    failures: int, poll: float, chance: float
) -> None:
    waits = Health(failures).wait_seconds(poll, chance)
    assert poll <= waits <= max(poll, BACKOFF_SECONDS_MAX)


def test_two_that_failed_together_do_not_try_again_together() -> None:
    assert after(4).wait_seconds(0.5, 0.1) != after(4).wait_seconds(0.5, 0.9)


def test_the_same_trouble_is_news_once_and_again_after_a_pass_that_went_well() -> None:
    assert Health().is_news("away")
    assert not after(3).is_news("away") and after(3).is_news("busy")
    assert after(3).after_success().is_news("away")


def test_what_fails_is_tried_again_ever_later_but_not_never() -> None:
    waits = [backoff_seconds(failures, 1.0, longest=60) for failures in range(30)]
    assert waits == sorted(waits) and waits[0] <= 2 and waits[-1] == 60
    assert backoff_seconds(3, 0.0, longest=60) < backoff_seconds(3, 1.0, longest=60)


@pytest.mark.parametrize("unforeseen", [False, True])
def test_the_loop_outlives_what_fails_and_says_when_it_is_well_again(unforeseen: bool) -> None:
    error = ZeroDivisionError("zero") if unforeseen else StorageError("away")
    message = "unexpected ZeroDivisionError: zero" if unforeseen else "away"
    stopping, heard = threading.Event(), list[str]()

    def fail() -> None:
        raise error

    steps: list[Callable[[], None]] = [fail, fail, lambda: None, lambda: None, fail, lambda: None, stopping.set]
    control = LoopControl(stopping, lambda e: heard.append(e.message), lambda: heard.append("well again"))
    control.repeat(lambda: steps.pop(0)(), name="work", poll_seconds=0.001)
    assert heard == [message, "well again"] * 2 and not steps


def test_a_loop_that_is_told_to_stop_before_it_begins_does_nothing() -> None:
    stopping = threading.Event()
    stopping.set()
    LoopControl(stopping).repeat(lambda: pytest.fail("it worked"), name="work", poll_seconds=60)
