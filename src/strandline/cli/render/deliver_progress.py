"""Progress of a delivery on a terminal: a bar for each sink."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.cli.output import Output
from strandline.cli.render.bars import bars_on
from strandline.cli.render.elements import rate
from strandline.core.wording import plural

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class SilentDelivery:
    """In a pipe, and with --json."""

    def on_start(self, words: str) -> None: ...

    def on_rows(self, sink: str, done: int, total: int) -> None: ...


@dataclass
class _Line:
    task: TaskID
    began: float
    before: int = 0  # rows of earlier plans: a sink that is far behind gets several
    done: int = 0
    total: int = 0


class DeliverBars(SilentDelivery):
    """Called from the threads that deliver, one per sink."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}
        self._waiting: TaskID | None = progress.add_task("starting Spark", total=None, count="", note="")

    def on_start(self, words: str) -> None:
        with self._lock:
            if self._waiting is not None:
                self._progress.update(self._waiting, description=words)

    def on_rows(self, sink: str, done: int, total: int) -> None:
        with self._lock:
            if self._waiting is not None:
                self._progress.remove_task(self._waiting)
                self._waiting = None
            line = self._lines.get(sink)
            if line is None:
                task = self._progress.add_task(sink, total=None, count="", note="")
                line = self._lines[sink] = _Line(task, time.monotonic())
            if done == 0:  # the next plan
                line.before += line.total
            line.done, line.total = done, total
            dealt, whole = line.before + done, line.before + total
            note = rate(dealt, time.monotonic() - line.began).removeprefix(", ")
            self._progress.update(
                line.task, completed=dealt, total=whole, count=f"{dealt:,}/{plural(whole, 'row')}", note=note
            )


@contextmanager
def delivering(out: Output) -> Iterator[SilentDelivery]:
    if not out.is_live:
        yield SilentDelivery()
        return
    with bars_on(out) as progress:
        yield DeliverBars(progress)
