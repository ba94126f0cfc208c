"""Progress of an ingest on a terminal: one line for all files, and one for each file under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.cli.output import Output
from strandline.cli.render.bars import bars_on
from strandline.cli.render.elements import rate
from strandline.core.wording import plural

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from strandline.ingest.ingest_files import FileOutcome

_WORDS = {"counting": "counting rows", "writing": "writing", "publishing": "publishing"}


class SilentIngest:
    """In a pipe, and with --json."""

    def on_start(self, words: str) -> None: ...

    def on_step(self, path: Path, step: str, rows: int | None) -> None: ...

    def on_bytes(self, path: Path, done: int, total: int) -> None: ...

    def on_done(self, outcome: FileOutcome) -> None: ...


class IngestBars(SilentIngest):
    """Called from the threads that work on files."""

    def __init__(self, progress: Progress, files: int) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._lines: dict[Path, TaskID] = {}
        self._rows = 0
        self._began: float | None = None
        self._files, self._done = files, 0
        self._all = progress.add_task("looking at the files", total=files, count=f"0/{files}", note="")

    def on_start(self, words: str) -> None:
        self._progress.update(self._all, description=words)

    def on_step(self, path: Path, step: str, rows: int | None) -> None:
        with self._lock:
            if step == "looking":
                return
            if step == "waiting":
                if self._began is None:
                    self._progress.update(self._all, description="starting Spark")
                return
            if self._began is None:
                self._began = time.monotonic()
                self._progress.update(self._all, description="ingesting")
            if path not in self._lines:
                self._lines[path] = self._progress.add_task(f"  {path.name}", total=None, count="", note="")
            note = _WORDS.get(step, step) if rows is None else f"{_WORDS.get(step, step)} {plural(rows, 'row')}"
            # Each step reads the file from its beginning, at a speed of its own.
            self._progress.reset(self._lines[path], total=None, count="", note=note)

    def on_bytes(self, path: Path, done: int, total: int) -> None:
        with self._lock:
            if path in self._lines:
                self._progress.update(self._lines[path], completed=done, total=total)

    def on_done(self, outcome: FileOutcome) -> None:
        with self._lock:
            if (line := self._lines.pop(outcome.path, None)) is not None:
                self._progress.remove_task(line)
            if not outcome.duplicate:
                self._rows += outcome.rows
            note = plural(self._rows, "row") if self._rows else ""
            if self._began is not None:
                note += rate(self._rows, time.monotonic() - self._began)
            self._done += 1
            self._progress.update(self._all, advance=1, count=f"{self._done}/{self._files}", note=note)


@contextmanager
def watching(out: Output, files: int) -> Iterator[SilentIngest]:
    if not out.is_live:
        yield SilentIngest()
        return
    with bars_on(out) as progress:
        yield IngestBars(progress, files)
