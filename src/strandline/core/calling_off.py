"""Whether the work of this thread was called off.

Code that begins work which can be called off (a task, a run, a loop, a deliverer) says so once, with `called_off_by`.
Every function that the work calls can ask here: one that waits for another thread, one that sends a request to a silent
destination. `iceberg/session/job_watch.py` then cancels the Spark jobs of the thread. Code that hands work to another
thread wraps it in `bind_context` (`actor.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from strandline.core.errors import CalledOff, RefusedError, UsageError
from strandline.core.failpoints import FailpointError

CALLED_OFF = "it was called off"
_CHECK_SECONDS = 0.2


class Stopping(threading.Event):
    """Set when work is called off. `by` names the actor who called off this work alone; None: its process stops."""

    by: str | None = None

    def call_off(self, by: str | None) -> None:
        if not self.is_set():
            self.by = by
        self.set()


@dataclass(frozen=True, slots=True)
class _Work:
    events: tuple[threading.Event, ...]
    ending: ExitStack = field(default_factory=ExitStack)
    entered: set[Hashable] = field(default_factory=set)


_current: ContextVar[_Work | None] = ContextVar("strandline_work", default=None)


@contextmanager
def called_off_by(*events: threading.Event) -> Iterator[None]:
    """Inside the block, the work of this thread is called off when one of the events is set, or one of a block around
    it. If the work fails after that, raises CalledOff instead of its error, because a cancelled job fails in many ways.
    Refusals of a guard are raised unchanged. Without events, it only replaces errors."""
    outer = _current.get()
    known = () if outer is None else outer.events
    new = tuple(event for event in dict.fromkeys(events) if event not in known)
    work = _Work((*new, *known)) if outer is None or new else outer
    before = _current.set(work)
    try:
        with nullcontext() if work is outer else work.ending:
            yield
    except (RefusedError, UsageError, FailpointError):
        raise
    except Exception as e:
        if (error := _error(work.events)) is not None:
            raise error from e
        raise
    finally:
        _current.reset(before)


def events_of_this_thread() -> tuple[threading.Event, ...]:
    """The events that call off the work of this thread; none if it cannot be called off."""
    work = _current.get()
    return () if work is None else work.events


def is_called_off() -> bool:
    return any(event.is_set() for event in events_of_this_thread())


def check_not_called_off() -> None:
    """Raises CalledOff if the work of this thread was called off."""
    _check(events_of_this_thread())


def check_for_other_threads() -> Callable[[], None]:
    """`check_not_called_off` of this thread's work, which any thread may call."""
    return partial(_check, events_of_this_thread())


def _check(events: tuple[threading.Event, ...]) -> None:
    if (error := _error(events)) is not None:
        raise error


def _error(events: tuple[threading.Event, ...]) -> CalledOff | None:
    called_off = [event for event in events if event.is_set()]
    if not called_off:
        return None
    by = next((event.by for event in called_off if isinstance(event, Stopping) and event.by is not None), None)
    return CalledOff(CALLED_OFF, hint="What it had finished stays.", by=by)


def enter_once(key: Hashable, make: Callable[[], AbstractContextManager[object]]) -> None:
    """Enters a context that ends with the work of this thread, once. Does nothing if the work cannot be called off."""
    work = _current.get()
    if work is not None and work.events and key not in work.entered:
        work.entered.add(key)
        work.ending.enter_context(make())


class _Lock(Protocol):
    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...

    def release(self) -> None: ...


@contextmanager
def holding(lock: _Lock) -> Iterator[None]:
    """Holds the lock inside the block. Raises CalledOff if the work is called off while it waits for the lock."""
    while not lock.acquire(timeout=_CHECK_SECONDS):
        check_not_called_off()
    try:
        yield
    finally:
        lock.release()
