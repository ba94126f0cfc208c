"""Work that is called off: who sees it, for how long, and what becomes of its errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.core.actor import bind_context
from strandline.core.calling_off import (
    Stopping,
    called_off_by,
    check_for_other_threads,
    check_not_called_off,
    enter_once,
    events_of_this_thread,
    holding,
    is_called_off,
)
from strandline.core.errors import CalledOff, LeaseLost, RefusedError, StorageError, UsageError
from strandline.core.failpoints import FailpointError
from strandline.core.types import BlockHead, Fence, Reserved
from strandline.jobs.loop import LoopControl


def stopped() -> Stopping:
    event = Stopping()
    event.set()
    return event


def test_work_that_nobody_can_call_off_goes_on() -> None:
    check_not_called_off()
    assert not is_called_off() and events_of_this_thread() == ()
    with called_off_by():
        check_not_called_off()


def test_any_of_the_events_calls_it_off_and_only_inside_the_block() -> None:
    one, two = threading.Event(), threading.Event()
    with called_off_by(one, two):
        check_not_called_off()
        two.set()
        assert is_called_off()
        with pytest.raises(CalledOff):
            check_not_called_off()
    check_not_called_off()


def test_a_block_inside_another_is_called_off_by_both_and_the_outer_one_not_by_the_inner() -> None:
    outer, inner = threading.Event(), threading.Event()
    with called_off_by(outer):
        with called_off_by(inner, outer):
            outer.set()
            assert is_called_off()
            outer.clear()
            inner.set()
            assert is_called_off()
        assert not is_called_off()


def test_who_asked_is_known_and_stays_known_when_the_process_stops_after_that() -> None:
    asked, ends = Stopping(), Stopping()
    asked.call_off("ann")
    asked.call_off("bob")
    ends.set()
    for events, by in (((asked,), "ann"), ((ends, asked), "ann"), ((ends,), None), ((threading.Event(), ends), None)):
        with called_off_by(*events), pytest.raises(CalledOff) as raised:
            check_not_called_off()
        assert raised.value.by == by


def test_work_in_another_thread_is_called_off_if_it_is_carried_there() -> None:
    with ThreadPoolExecutor(1) as pool, called_off_by(stopped()):
        assert pool.submit(bind_context(is_called_off)).result()
        assert not pool.submit(is_called_off).result()
        with pytest.raises(CalledOff):
            pool.submit(check_for_other_threads()).result()


@pytest.mark.parametrize("error", [StorageError("the job failed"), LeaseLost("gone"), ValueError("unforeseen")])
def test_what_fails_after_it_was_called_off_was_called_off(error: Exception) -> None:
    event = Stopping()
    with pytest.raises(type(error)), called_off_by(event):
        raise error
    with pytest.raises(CalledOff) as raised, called_off_by(event):
        event.call_off("ann")
        raise error
    assert raised.value.__cause__ is error and raised.value.by == "ann"
    with called_off_by(event):
        with pytest.raises(CalledOff), called_off_by(event):  # also a block that brings nothing new
            raise error
    with pytest.raises(type(error)):
        raise error


@pytest.mark.parametrize(
    "error", [RefusedError("a guard"), UsageError("wrong"), FailpointError("x"), CalledOff("mine")]
)
def test_what_was_refused_stays_refused(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, called_off_by(stopped()):
        raise error
    assert raised.value is error


def test_what_ends_with_the_work_is_entered_once_and_left_at_its_end() -> None:
    told: list[str] = []

    @contextmanager
    def noting(name: str) -> Iterator[None]:
        told.append(f"{name} begins")
        try:
            yield
        finally:
            told.append(f"{name} ends")

    enter_once("spark", lambda: noting("nobody's"))  # nobody can call this off
    with called_off_by():
        enter_once("spark", lambda: noting("nobody's"))
    with called_off_by(outer := threading.Event()):
        enter_once("spark", lambda: noting("outer"))
        enter_once("spark", lambda: noting("again"))
        with called_off_by(outer):
            enter_once("spark", lambda: noting("the same work"))
        with called_off_by(threading.Event()):
            enter_once("spark", lambda: noting("inner"))
        assert told == ["outer begins", "inner begins", "inner ends"]
    assert told[3:] == ["outer ends"]


def test_whoever_waits_for_a_lock_is_called_off_there() -> None:
    lock, event, waits = threading.Lock(), threading.Event(), threading.Event()

    def wait() -> str:
        with called_off_by(event):
            waits.set()
            with holding(lock):
                return "taken"

    with ThreadPoolExecutor(1) as pool:
        with holding(lock):
            waiting = pool.submit(wait)
            assert waits.wait(60)
            event.set()
            with pytest.raises(CalledOff):
                waiting.result(60)
        event.clear()
        assert pool.submit(wait).result(60) == "taken"
    assert not lock.locked()


def test_the_end_of_a_loop_calls_off_the_pass_under_way_and_is_no_trouble() -> None:
    control = LoopControl(on_trouble=lambda error: pytest.fail(f"it was told: {error.message}"))
    passes: list[int] = []

    def work() -> None:
        passes.append(1)
        control.stopping.set()
        check_not_called_off()
        raise StorageError("it went on")

    def cancelled() -> None:
        passes.append(1)
        control.stopping.set()
        raise StorageError("the job was cancelled")

    for one in (work, cancelled):
        control.stopping.clear()
        control.repeat(one, name="work", poll_seconds=60)
    assert len(passes) == 2


def test_an_append_that_waits_for_another_live_writer_of_its_batch_is_called_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from strandline.ingest import append

    event, waits = threading.Event(), list[float]()
    live = Reserved(cast("BlockHead", None), Fence(1), datetime.now(UTC) + timedelta(hours=1))
    monkeypatch.setattr(append, "reserve_above_foreign", lambda *_: (live, False))

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            event.set()

    monkeypatch.setattr(append, "time", SimpleNamespace(sleep=sleep))
    unused = cast("Any", None)
    with called_off_by(event), pytest.raises(CalledOff):
        append._reserve(unused, unused, unused)
    assert len(waits) == 3, "it waits as long as nobody calls it off"
