"""What long-running commands share: their loops, how they end, and within which time."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.cli.daemon_log import DaemonLog
from strandline.cli.log_lines import log_lines
from strandline.core.actor import Actor, Trigger, set_process_actor, system_user
from strandline.core.errors import FailedError
from strandline.jobs.loop import LoopControl, LoopStates

if TYPE_CHECKING:
    from types import FrameType

    from strandline.cli.command import Call
    from strandline.core.errors import StrandlineError
    from strandline.lake import Lake

INTERRUPTED = 128 + signal.SIGINT
CUT_OFF = FailedError.exit_code
_POLL_SECONDS = 0.1
_LAST_WORDS_SECONDS_MAX = 1.0  # how long the log line of the end may take


@dataclass(frozen=True, slots=True)
class Loop:
    """One of the loops of a process."""

    name: str  # in the log, and in `/readyz`
    run: Callable[[LoopControl], None]  # until its event is set


def lease_loops(lake: Lake) -> list[Loop]:
    """The loop that renews the site's lease, if there is an arbiter. Every process of the site runs it."""
    lease = lake.replication.lease
    return [] if lease is None else [Loop("lease", lease.run)]


def begin_daemon(call: Call) -> DaemonLog:
    """From now on what this process does is recorded as the daemon's work. Returns the open log."""
    set_process_actor(Actor(system_user(), Trigger.DAEMON))
    return open_log(call)


def open_log(call: Call) -> DaemonLog:
    """JSON with --json, and whenever standard output is no terminal."""
    return DaemonLog(as_json=call.as_json or not sys.stdout.isatty())


def run_loops(call: Call, journal: DaemonLog, loops: Sequence[Loop], states: LoopStates | None = None) -> None:
    """Runs each loop in a thread until a signal comes or one of them ends; then asks the others to stop, and closes the
    lake. Whatever hangs, the process ends within `run.stop_seconds_max`."""
    stopping, states = threading.Event(), states or LoopStates()
    call.lake.on_start = lambda words: journal.write("starting", what=words)
    seconds_max = call.lake.config.settings.run.stop_seconds_max
    with log_lines(as_json=journal.as_json), _Deadline(seconds_max, journal, stopping) as deadline:
        _run_until_stopped(call, journal, loops, states, stopping, deadline)
        journal.write("stopped")


def _run_until_stopped(
    call: Call,
    journal: DaemonLog,
    loops: Sequence[Loop],
    states: LoopStates,
    stopping: threading.Event,
    deadline: _Deadline,
) -> None:
    with closing(call):
        # Not in the main thread, where PySpark would replace our handler for Ctrl-C by its own.
        with _signals(stopping) as came, ThreadPoolExecutor(len(loops), "strandline-loop") as pool:
            running = {loop.name: pool.submit(_run, loop, stopping, journal, states) for loop in loops}
            deadline.running = running
            try:
                while not (came or any(loop.done() for loop in running.values())):
                    time.sleep(_POLL_SECONDS)
            finally:
                stopping.set()
            for signalled in came[:1]:
                journal.write("stopping", signal=signalled.name)
            for loop in running.values():
                loop.result()


def _run(loop: Loop, stopping: threading.Event, journal: DaemonLog, states: LoopStates) -> None:
    def troubled(error: StrandlineError) -> None:
        states.troubled(loop.name, error)
        journal.failed(f"{loop.name}_failed", error)

    def well() -> None:
        states.begun(loop.name)
        journal.write("well_again", loop=loop.name)

    states.begun(loop.name)
    try:
        loop.run(LoopControl(stopping, troubled, well))
    finally:
        states.ended(loop.name)


class _Deadline:
    """Ends the process when its time is over. That is as safe as a kill: leases expire, and the next process continues
    from the last durable step. It does not wait for the log: if nobody reads that, a write to it never ends."""

    def __init__(self, seconds_max: float, journal: DaemonLog, stopping: threading.Event) -> None:
        self._seconds_max = seconds_max
        self._journal = journal
        self._stopping = stopping
        self._over = threading.Event()
        self.running: dict[str, Future[None]] = {}

    def _watch(self) -> None:
        self._stopping.wait()
        if not self._over.wait(self._seconds_max):
            telling = threading.Thread(target=self._tell, name="strandline-cut-off", daemon=True)
            telling.start()
            telling.join(_LAST_WORDS_SECONDS_MAX)
            os._exit(CUT_OFF)

    def _tell(self) -> None:
        left = [name for name, loop in self.running.items() if not loop.done()]
        self._journal.write("cut_off", seconds=self._seconds_max, loops=self._journal.listed(left))

    def __enter__(self) -> _Deadline:
        threading.Thread(target=self._watch, name="strandline-deadline", daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._stopping.set()  # so that the thread ends


@contextmanager
def _signals(stopping: threading.Event) -> Iterator[list[signal.Signals]]:
    """The signals that came. The handler interrupts the main thread anywhere, so it takes no lock, even for the log."""
    came: list[signal.Signals] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if (came or stopping.is_set()) and number == signal.SIGINT:
            # Asked twice. Nothing is lost: the next process continues from here.
            os._exit(INTERRUPTED)
        came.append(signal.Signals(number))

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
