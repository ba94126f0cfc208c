"""Long work that a request starts: the answer is 202 with a place that shows it and calls it off.

Maintenance and the reconciler have records of their own runs. Everything else is a task (`jobs/tasks.py`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic

from strandline.core.actor import bind_context
from strandline.core.calling_off import called_off_by
from strandline.core.errors import StrandlineError, TooManyTasks
from strandline.jobs.tasks import Tasks

log = logging.getLogger(__name__)

OnBegun = Callable[[int], None]
# Gets an event that is set when the run is called off, and a function to call with the run's id once it is on record.
RunWork = Callable[[threading.Event, OnBegun], object]


class LongWork:
    """The long work of this process. Thread-safe."""

    def __init__(self, tasks: Tasks, *, stop_seconds_max: float) -> None:
        """Runs and tasks share the places of `tasks`."""
        self.tasks = tasks
        self._stop_seconds_max = stop_seconds_max
        self._free = tasks.free
        self._lock = threading.Lock()
        self._here: dict[tuple[str, int], threading.Event] = {}
        self._threads: dict[threading.Thread, threading.Event] = {}
        self._stopping = threading.Event()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def start_run(self, kind: str, work: RunWork) -> int:
        """Begins the work in a thread, as the current actor. Returns the run's id, or raises what comes before it."""
        if self.is_stopping or not self._free.acquire(blocking=False):
            raise TooManyTasks("this process has too much long work now", hint="Try again when some of it has ended.")
        begun: Future[int] = Future()
        called_off = threading.Event()

        def note_begun(run: int) -> None:
            with self._lock:
                self._here[kind, run] = called_off
            begun.set_result(run)

        def run() -> None:
            try:
                with called_off_by(called_off):
                    work(called_off, note_begun)
            except BaseException as e:
                if begun.done():
                    if not isinstance(e, StrandlineError):
                        log.error("run %d (%s) failed with an unexpected error", begun.result(), kind, exc_info=e)
                    return  # it is on the record of the run
                begun.set_exception(e)
            finally:
                with self._lock:
                    self._threads.pop(threading.current_thread(), None)
                    if begun.done() and begun.exception() is None:
                        self._here.pop((kind, begun.result()), None)
                self._free.release()
                if not begun.done():
                    begun.set_exception(RuntimeError(f"work of {kind} ended without a run"))

        thread = threading.Thread(target=bind_context(run), name=f"strandline-{kind}", daemon=True)
        with self._lock:
            self._threads[thread] = called_off
        thread.start()
        if self._stopping.is_set():  # `close` may have called all off before the thread was in the list
            called_off.set()
        return begun.result()

    def call_off(self, kind: str, run: int) -> bool:
        """False if this process does not do the run."""
        with self._lock:
            found = self._here.get((kind, run))
        if found is not None:
            found.set()
        return found is not None

    def call_all_off(self) -> list[threading.Thread]:
        """Calls off everything, begins nothing more, and returns the threads of runs."""
        self._stopping.set()
        self.tasks.call_all_off()
        with self._lock:
            left = dict(self._threads)
        for event in left.values():
            event.set()
        return list(left)

    def close(self) -> None:
        """Calls off everything, and waits for it for a bounded time. What is left is seen as died by its lease."""
        left, deadline = self.call_all_off(), monotonic() + self._stop_seconds_max
        self.tasks.close(seconds_max=self._stop_seconds_max)
        for thread in left:
            thread.join(max(0.0, deadline - monotonic()))
