"""Runs worker processes, tracks their tasks, and kills those that take too long. `worker.py` is the other end."""

from __future__ import annotations

import fcntl
import marshal
import os
import selectors
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from strandline.reconcile.storage.worker import FRAME_BYTES, MARSHAL_VERSION

WORKERS = 2
TASKS_AT_ONCE_MAX = 256
ENDING_SECONDS_MAX = 5.0
_READ_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031

_START = "from strandline.reconcile.storage.worker import main; main()"

OnPart = Callable[[Any, Any], None]
# takes the task, how it ended (`end`, `failed`, `timeout`, or the worker's word) and the answer; returns further tasks
OnEnd = Callable[[Any, str, Any], Iterable[Any]]


class _Worker:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            bufsize=0,
        )
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("a process without pipes")
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        os.set_blocking(self.stdout.fileno(), False)
        with suppress(OSError):  # only an optimization, which not every system has
            fcntl.fcntl(self.stdout.fileno(), _F_SETPIPE_SZ, _READ_BYTES)
        self.received = bytearray()
        self.tasks: deque[Any] = deque()
        self.since = 0.0

    def give(self, doing: str, tasks: Sequence[Any]) -> None:
        body = marshal.dumps((doing, list(tasks)), MARSHAL_VERSION)
        self.tasks.extend(tasks)
        self.since = time.monotonic()
        message = memoryview(len(body).to_bytes(FRAME_BYTES, "big") + body)
        while message:
            message = message[self.stdin.write(message) or 0 :]

    def results(self) -> Iterable[tuple[str, Any]]:
        """The complete messages that have arrived."""
        at = 0
        while len(self.received) - at >= FRAME_BYTES:
            end = at + FRAME_BYTES + int.from_bytes(self.received[at : at + FRAME_BYTES], "big")
            if len(self.received) < end:
                break
            with memoryview(self.received) as view:
                result = marshal.loads(view[at + FRAME_BYTES : end])
            yield result
            at = end
        del self.received[:at]

    def end(self) -> None:
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            # Otherwise it hangs in the kernel, where no signal reaches it, and ends when the call returns.
            self.process.wait(ENDING_SECONDS_MAX)
        self.stdin.close()
        self.stdout.close()


class Pool(AbstractContextManager["Pool"]):
    """Starts workers when there is something to do, and replaces a worker that died or was killed."""

    def __init__(self, workers: int = WORKERS) -> None:
        self._workers: list[_Worker | None] = [None] * workers

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for n, worker in enumerate(self._workers):
            if worker is not None:
                worker.end()
                self._workers[n] = None

    def run(
        self,
        doing: str,
        tasks: Iterable[Any],
        on_part: OnPart,
        on_end: OnEnd,
        *,
        timeout_seconds: float,
        at_once_max: int = TASKS_AT_ONCE_MAX,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Runs until no task is left. `check` may raise to abort."""
        waiting = deque(tasks)
        try:
            while waiting or any(w is not None and w.tasks for w in self._workers):
                self._hand_out(doing, waiting, at_once_max)
                self._collect(waiting, on_part, on_end)
                self._end_slow(waiting, on_end, timeout_seconds)
                if check is not None:
                    check()
        except BaseException:
            self.close()  # pending results would be taken for answers to the next call
            raise

    def _hand_out(self, doing: str, waiting: deque[Any], at_once_max: int) -> None:
        for n, worker in enumerate(self._workers):
            if not waiting:
                return
            if worker is not None and worker.tasks:
                continue
            share = max(1, min(at_once_max, len(waiting) // (2 * len(self._workers))))
            idle = worker or _Worker()
            self._workers[n] = idle
            batch = [waiting.popleft() for _ in range(min(share, len(waiting)))]
            with suppress(OSError):  # it died; `_collect` notices
                idle.give(doing, batch)

    def _collect(self, waiting: deque[Any], on_part: OnPart, on_end: OnEnd) -> None:
        with selectors.DefaultSelector() as selector:
            for n, worker in enumerate(self._workers):
                if worker is not None and worker.tasks:
                    selector.register(worker.stdout, selectors.EVENT_READ, n)
            ready = [key.data for key, _ in selector.select(timeout=0.25)]
        for n in ready:
            worker = self._workers[n]
            if worker is not None and not self._receive(worker, waiting, on_part, on_end):
                self._replace(n, waiting, on_end, "failed", "the process that worked on it died")

    @staticmethod
    def _receive(worker: _Worker, waiting: deque[Any], on_part: OnPart, on_end: OnEnd) -> bool:
        try:
            got = os.read(worker.stdout.fileno(), _READ_BYTES)
        except BlockingIOError:
            return True
        if not got:
            return False
        worker.received += got
        for how, what in worker.results():
            if how == "part":
                on_part(worker.tasks[0], what)
                continue
            worker.since = time.monotonic()
            waiting.extend(on_end(worker.tasks.popleft(), how, what))
        return True

    def _end_slow(self, waiting: deque[Any], on_end: OnEnd, timeout_seconds: float) -> None:
        for n, worker in enumerate(self._workers):
            if worker is not None and worker.tasks and time.monotonic() - worker.since > timeout_seconds:
                self._replace(n, waiting, on_end, "timeout", f"no answer in {timeout_seconds:g} s")

    def _replace(self, n: int, waiting: deque[Any], on_end: OnEnd, how: str, why: str) -> None:
        """The current task of the worker failed; the tasks after it go to another."""
        worker = self._workers[n]
        if worker is None:
            return
        self._workers[n] = None
        worker.end()
        task = worker.tasks.popleft()
        waiting.extendleft(reversed(worker.tasks))
        waiting.extend(on_end(task, how, why))
