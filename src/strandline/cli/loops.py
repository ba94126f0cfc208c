"""What long-running commands share: their loops, how they end, and within which time."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.cli.daemon_log import DaemonLog
from strandline.core.errors import FailedError
from strandline.jobs.loop import LoopStates, OnTrouble

if TYPE_CHECKING:
    from types import FrameType

    from strandline.cli.command import Call
    from strandline.core.errors import StrandlineError

INTERRUPTED = 128 + signal.SIGINT
CUT_OFF = FailedError.exit_code
_LOOKS_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Loop:
    """One of the things that a process keeps doing."""

    name: str  # in the log, and in `/readyz`
    run: Callable[[threading.Event, OnTrouble, Callable[[], None]], None]  # until the event is set


def open_log(call: Call) -> DaemonLog:
    """JSON with --json, and whenever standard output is no terminal."""
    return DaemonLog(as_json=call.as_json or not sys.stdout.isatty())


def run_loops(call: Call, journal: DaemonLog, loops: Sequence[Loop], states: LoopStates | None = None) -> None:
    """Runs each loop in a thread until a signal comes or one of them ends; then asks the others to stop, and closes the
    lake. Whatever hangs, the process ends within `run.stop_seconds_max`."""
    stopping, states = threading.Event(), states or LoopStates()
    call.lake.on_start = lambda words: journal.write("starting", what=words)
    with _Deadline(call.lake.config.settings.run.stop_seconds_max, journal) as deadline, closing(call):
        # Not in the main thread, where PySpark would replace our handler for Ctrl-C by its own.
        with _stopped_by_signals(stopping, journal), ThreadPoolExecutor(len(loops), "strandline-loop") as pool:
            running = {loop.name: pool.submit(_run, loop, stopping, journal, states) for loop in loops}
            try:
                while not (stopping.wait(_LOOKS_SECONDS) or any(loop.done() for loop in running.values())):
                    pass
            finally:
                stopping.set()
                deadline.start(running)
            for loop in running.values():
                loop.result()
    journal.write("stopped")


def _run(loop: Loop, stopping: threading.Event, journal: DaemonLog, states: LoopStates) -> None:
    def troubled(error: StrandlineError) -> None:
        states.troubled(loop.name, error)
        journal.failed(f"{loop.name}_failed", error)

    def well() -> None:
        states.begun(loop.name)
        journal.write("well_again", loop=loop.name)

    states.begun(loop.name)
    try:
        loop.run(stopping, troubled, well)
    finally:
        states.ended(loop.name)


class _Deadline:
    """Ends the process when its time is over. That is as safe as a kill: leases run out, and the next process goes on
    from the last durable step."""

    def __init__(self, seconds_max: float, journal: DaemonLog) -> None:
        self._seconds_max = seconds_max
        self._journal = journal
        self._over = threading.Event()

    def start(self, running: dict[str, Future[None]]) -> None:
        def watch() -> None:
            if not self._over.wait(self._seconds_max):
                left = [name for name, loop in running.items() if not loop.done()]
                self._journal.write("cut_off", seconds=self._seconds_max, loops=self._journal.listed(left))
                os._exit(CUT_OFF)

        threading.Thread(target=watch, name="strandline-deadline", daemon=True).start()

    def __enter__(self) -> _Deadline:
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()


@contextmanager
def _stopped_by_signals(stopping: threading.Event, journal: DaemonLog) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        if stopping.is_set() and number == signal.SIGINT:
            # Asked twice. Nothing is lost: the next process continues from here.
            os._exit(INTERRUPTED)
        stopping.set()
        journal.write("stopping", signal=signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
