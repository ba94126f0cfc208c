"""Who acts: the name and the trigger that audit events and records of runs store by themselves.

A command sets the actor of its process once. Code that acts for another actor (a request, a schedule) says so with
`acting_as`. A new thread knows only the actor of the process, so code that hands work to another thread wraps it in
`bind_context`."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from typing import ParamSpec, TypeVar

from strandline.core.calling_off import called_off_by, events_of_this_thread

P = ParamSpec("P")
T = TypeVar("T")


class Trigger(StrEnum):
    """Through what an actor acts."""

    COMMAND = "command"  # a command line
    API = "api"  # a request to the HTTP API
    PAGE = "page"  # the dashboard in a browser
    SCHEDULE = "schedule"  # a schedule in the settings was due
    DAEMON = "daemon"  # work that `strandline run`, `serve` or `receive` does without a request
    LIBRARY = "library"  # a program that imports Strandline


@dataclass(frozen=True, slots=True)
class Actor:
    name: str  # of a token or of the operating system's user; "schedule" for a schedule
    trigger: Trigger


SCHEDULE = Actor("schedule", Trigger.SCHEDULE)


def system_user() -> str:
    """The user that the process runs as. Not from the environment, which every user can change."""
    user = os.geteuid()
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:  # a container's user often has no name
        return f"uid {user}"


class _Process:
    """The actor of threads without an actor of their own."""

    actor: Actor | None = None


_current: ContextVar[Actor | None] = ContextVar("strandline_actor", default=None)


def set_process_actor(actor: Actor | None) -> None:
    """For the start of a command. None: a program that imports Strandline, in the name of its user."""
    _Process.actor = actor


def current_actor() -> Actor:
    return _current.get() or _Process.actor or Actor(system_user(), Trigger.LIBRARY)


@contextmanager
def acting_as(actor: Actor) -> Iterator[None]:
    """Inside the block, this thread or task acts for the actor."""
    token = _current.set(actor)
    try:
        yield
    finally:
        _current.reset(token)


def bind_context(work: Callable[P, T]) -> Callable[P, T]:
    """Returns the work for another thread: it acts for the current actor, and what calls off the work of this thread
    calls it off, too."""
    actor, events = current_actor(), events_of_this_thread()

    @wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with acting_as(actor), called_off_by(*events):
            return work(*args, **kwargs)

    return run
