"""Does long work in threads of this process, each recorded in the ledger as a task that every process can show.

The commit points are those of `ledger/tasks.py`: a task is recorded before its work begins, and its end is stored
once. What the work itself has done is durable in its own stage, whatever becomes of the task.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

from strandline.core import failpoints
from strandline.core.actor import bind_context, current_actor
from strandline.core.calling_off import Stopping, called_off_by
from strandline.core.documents import error_document, json_text
from strandline.core.errors import (
    CalledOff,
    RefusedError,
    StrandlineError,
    TooManyTasks,
    UsageError,
    as_strandline_error,
)
from strandline.core.records.task_records import TaskOutcome
from strandline.core.types import Lease
from strandline.jobs.heartbeat import beating
from strandline.jobs.node import node
from strandline.jobs.store_end import store_end
from strandline.ledger import tasks
from strandline.ledger.engine import Ledger, utc_now
from strandline.ledger.tasks import BegunBy, Task, TaskId

log = logging.getLogger(__name__)

# Gets an event that is set when somebody calls the task off. Returns the result, as JSON values; raises `CalledOff` at
# its next durable step after the event was set. Its Spark jobs are cancelled then (`core/calling_off.py`).
TaskWork = Callable[[threading.Event], Mapping[str, Any]]

AT_ONCE_MAX = 8  # each may hold a thread and a connection for hours
KEPT_MAX = 1000  # tasks on record
RESULT_CHARS_MAX = 1 << 20  # a result is read as a whole whenever the task is shown

# Gets the kind of a task and its result. Returns what needs attention in the result, or None.
FindAttention = Callable[[str, Mapping[str, Any]], str | None]


@dataclass(frozen=True, slots=True)
class _RunningTask:
    stopping: Stopping
    thread: threading.Thread


class Tasks:
    """The tasks that this process works on, and the record of all. Thread-safe."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        lease_seconds: float,
        at_once_max: int = AT_ONCE_MAX,
        judge: FindAttention = lambda kind, result: None,
    ) -> None:
        """`judge` finds what needs attention in a result that is too large: only that is stored of it."""
        self._ledger = ledger
        self._judge = judge
        self._lease_seconds = lease_seconds
        self.free = threading.BoundedSemaphore(at_once_max)  # places for long work in this process
        self._lock = threading.Lock()
        self._here: dict[TaskId, _RunningTask] = {}
        self._closing = threading.Event()

    def start(self, kind: str, subject: str, work: TaskWork) -> Task:
        """Records the task, begins its work in a thread, and returns at once. The work acts for the current actor.
        `AlreadyRunning` if a task of this kind works on the same subject, `TooManyTasks` if this process is busy."""
        if self._closing.is_set() or not self.free.acquire(blocking=False):
            raise TooManyTasks("this process can take no more tasks now", hint="Try again when one has ended.")
        begun: Task | None = None
        stopping = Stopping()
        try:
            begun, lease = self._ledger.change(tasks.begin, kind, subject, node(), lease_seconds=self._lease_seconds)
            failpoints.hit("task.after_begin")
            thread = threading.Thread(
                target=bind_context(self._run),
                args=(begun, lease, stopping, work),
                name=f"strandline-task-{begun.id}",
                daemon=True,
            )
            with self._lock:
                self._here[begun.id] = _RunningTask(stopping, thread)
            thread.start()
        except BaseException:  # a task that is on record and has no thread is shown as died when its lease has run out
            with self._lock:
                if begun is not None:
                    self._here.pop(begun.id, None)
            self.free.release()
            raise
        if self._closing.is_set():  # `close` may have listed the tasks before this one was added
            stopping.set()
        return begun

    def _run(self, task: Task, lease: Lease, stopping: Stopping, work: TaskWork) -> None:
        def renew() -> bool:
            renewed = self._ledger.change(tasks.renew, lease, seconds=self._lease_seconds)
            if renewed is None:
                stopping.set()
            elif renewed.stop_asked and not stopping.is_set():
                stopping.call_off(self._ledger.query(tasks.stop_asked_by, task.id))
            return renewed is not None

        try:
            with beating(renew, lease_seconds=self._lease_seconds):
                end = _result_of(task, work, stopping, self._judge)
                failpoints.hit("task.before_end")
                self._store_end(task, lease, end)
                failpoints.hit("task.after_end")
        finally:
            with self._lock:
                del self._here[task.id]
            self.free.release()

    def _store_end(self, task: Task, lease: Lease, end: _TaskEnd) -> None:
        tries = 0

        def store() -> None:
            nonlocal tries
            tries += 1
            with self._ledger.write() as connection:
                stored = tasks.end(connection, lease, end.outcome, result=end.result, error=end.error)
                tasks.forget_old(connection, tasks_kept=KEPT_MAX)
            if not stored and tries == 1:  # a later try may find the end that an earlier one stored
                log.warning("task %d (%s) was recorded as dead; it ended as %s", task.id, task.kind, end.outcome)

        with suppress(StrandlineError):  # it is logged
            store_end(store, f"task {task.id}", self._closing)

    def cancel(self, id: int) -> Task:
        """Calls a task off, also one of another process, which sees it within a third of the lease. The task ends at
        its next durable step. `NoSuchRun` if it is unknown."""
        asked = self._ledger.change(tasks.ask_to_stop, id)
        with self._lock:
            here = self._here.get(asked.id)
        if here is not None:
            here.stopping.call_off(current_actor().name)
        return self._closed_if_dead(asked)

    def get(self, id: int) -> Task:
        return self._closed_if_dead(self._ledger.query(tasks.get, id))

    def latest(
        self,
        *,
        kind: str | None = None,
        subject: str | None = None,
        begun_by: BegunBy | None = None,
        before: int | None = None,
        tasks_max: int = 20,
    ) -> list[Task]:
        """Newest first."""
        wanted: dict[str, Any] = {"kind": kind, "subject": subject, "begun_by": begun_by, "before": before}
        found = self._ledger.query(tasks.latest, **wanted, tasks_max=tasks_max)
        if any(task.seems_dead(utc_now()) for task in found):
            self._ledger.change(tasks.close_dead)
            found = self._ledger.query(tasks.latest, **wanted, tasks_max=tasks_max)
        return found

    def _closed_if_dead(self, found: Task) -> Task:
        if not found.seems_dead(utc_now()):
            return found
        self._ledger.change(tasks.close_dead)
        return self._ledger.query(tasks.get, found.id)

    def call_all_off(self) -> list[_RunningTask]:
        """Calls off all tasks of this process, which takes no more, and returns them."""
        self._closing.set()
        with self._lock:
            left = list(self._here.values())
        for task in left:
            task.stopping.set()
        return left

    def close(self, *, seconds_max: float = 10.0) -> bool:
        """Calls off all tasks of this process and waits for them, at most so long. False if some still work: they end
        with the process, and are shown as died when their lease has run out."""
        left = self.call_all_off()
        deadline = monotonic() + seconds_max
        for task in left:
            task.thread.join(max(0.0, deadline - monotonic()))
        return not any(task.thread.is_alive() for task in left)


@dataclass(frozen=True, slots=True)
class _TaskEnd:
    outcome: TaskOutcome
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None


def _result_of(task: Task, work: TaskWork, stopping: threading.Event, judge: FindAttention) -> _TaskEnd:
    try:
        with called_off_by(stopping):
            return _TaskEnd(TaskOutcome.DONE, result=_bounded(task.kind, work(stopping), judge))
    except CalledOff as e:
        return _TaskEnd(TaskOutcome.CANCELLED, error=error_document(e))
    except (RefusedError, UsageError) as e:
        return _TaskEnd(TaskOutcome.REFUSED, error=error_document(e))
    except Exception as e:
        error = as_strandline_error(e)
        if error is not e:
            log.error("task %d (%s) failed with an unexpected error", task.id, task.kind, exc_info=e)
        return _TaskEnd(TaskOutcome.FAILED, error=error_document(error))


def _bounded(kind: str, result: Mapping[str, Any], judge: FindAttention) -> Mapping[str, Any]:
    """The result; if it is too large, only its numbers and what needs attention in it."""
    text = json_text(dict(result))
    if len(text) <= RESULT_CHARS_MAX:
        return result
    whole: dict[str, Any] = json.loads(text)
    numbers = {name: value for name, value in whole.items() if isinstance(value, int | float)}
    omitted = f"the result has {len(text):,} characters; more than {RESULT_CHARS_MAX:,} are not stored"
    return numbers | {"omitted": omitted, "attention": judge(kind, whole)}
