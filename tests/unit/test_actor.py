"""Who acts, in this thread and in those that it starts."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from strandline.core.actor import (
    Actor,
    Trigger,
    acting_as,
    bind_context,
    current_actor,
    set_process_actor,
    system_user,
)
from strandline.core.errors import UsageError
from strandline.core.records.audit_events import Event, events_named

ANN, BOB = Actor("ann", Trigger.API), Actor("bob", Trigger.PAGE)


@pytest.fixture(autouse=True)
def nobody_said_who() -> Iterator[None]:
    set_process_actor(None)
    yield
    set_process_actor(None)


def test_a_program_that_says_nothing_acts_as_its_user() -> None:
    assert current_actor() == Actor(pwd.getpwuid(os.geteuid()).pw_name, Trigger.LIBRARY)


def test_the_user_is_not_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    before = system_user()
    for name in ("USER", "LOGNAME", "USERNAME"):
        monkeypatch.setenv(name, "somebody-else")
    assert system_user() == before


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert system_user() == f"uid {os.geteuid()}"


def test_whoever_acts_for_another_says_so_for_the_length_of_a_block() -> None:
    set_process_actor(BOB)
    with pytest.raises(ZeroDivisionError), acting_as(ANN):
        assert current_actor() == ANN
        with acting_as(BOB):
            assert current_actor() == BOB
        assert current_actor() == ANN
        _ = 1 / 0
    assert current_actor() == BOB


def test_a_thread_acts_for_the_process_unless_the_actor_is_carried_to_it() -> None:
    set_process_actor(BOB)
    with ThreadPoolExecutor(1) as pool, acting_as(ANN):
        assert pool.submit(current_actor).result() == BOB
        assert pool.submit(bind_context(current_actor)).result() == ANN
        assert pool.submit(current_actor).result() == BOB, "the thread does not keep it"


def test_tasks_of_one_event_loop_do_not_act_for_each_other() -> None:
    async def act(actor: Actor, first: asyncio.Event, then: asyncio.Event) -> Actor:
        with acting_as(actor):
            first.set()
            await then.wait()
            return current_actor()

    async def both() -> list[Actor]:
        a, b = asyncio.Event(), asyncio.Event()
        return list(await asyncio.gather(act(ANN, a, b), act(BOB, b, a)))

    assert asyncio.run(both()) == [ANN, BOB]


def test_every_event_has_a_stage_in_front() -> None:
    assert all(event.count(".") == 1 and event == event.lower() for event in Event)


def test_events_are_found_by_the_beginning_of_their_names() -> None:
    assert events_named("reconcile.run_") == [
        Event.RUN_ABORTED,
        Event.RUN_CALLED_OFF,
        Event.RUN_COMPLETED,
        Event.RUN_SETTLED,
        Event.RUN_STARTED,
    ]
    assert events_named("sink.paused") == [Event.SINK_PAUSED]
    assert events_named("") == list(Event)
    with pytest.raises(UsageError, match="paused") as refused:
        events_named("paused")
    assert "sink" in str(refused.value.hint)
