"""Progress on a terminal: description, bar, count, a note, elapsed and remaining time. In a pipe there is none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.cli.render.elements import rate
from strandline.core.text.wording import duration, plural

if TYPE_CHECKING:
    from rich.progress import Progress, Task, TaskID

    from strandline.cli.output import Output
    from strandline.ingest.ingest_files import FileOutcome


@dataclass(frozen=True, slots=True)
class OneBar:
    say: Callable[[str], None]  # sets the description, for work of unknown length
    step: Callable[[str, int, int | None], None]  # description, how much is done, and of how much if that is known


@contextmanager
def one_bar(out: Output, words: str) -> Iterator[OneBar]:
    """A bar on a terminal; nothing elsewhere. Log messages are shown after it is gone."""
    if not out.is_live:
        yield OneBar(lambda _: None, lambda *_: None)
        return
    with out.warnings_after(), bars_on(out) as bars:
        line = bars.add_task(words, total=None, count="", note="")
        before = [words]

        def step(what: str, done: int, total: int | None) -> None:
            if what != before[0]:  # another step begins, and its time starts anew
                bars.reset(line, total=total or None, description=what)
                before[0] = what
            count = f"{done:,}/{total:,}" if total else f"{done:,}" if done else ""
            bars.update(line, completed=done, total=total or None, count=count)

        yield OneBar(lambda words: step(words, 0, None), step)


def bars_on(out: Output) -> Progress:
    """Tasks have the fields `count` and `note`."""
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class HowFar(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(how_far(task.completed, task.total, task.time_remaining), "dim")

    columns = (
        SpinnerColumn(style="cyan"),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[count]}", markup=False),
        TextColumn("{task.fields[note]}", style="dim", markup=False),
        TimeElapsedColumn(),
        HowFar(),
    )
    return Progress(*columns, console=out.err, transient=True)


def how_far(done: float, total: float | None, seconds_left: float | None) -> str:
    """The share that is done and the remaining time, if known."""
    if not total or not done:
        return ""
    share = f"{min(100, int(100 * done / total))} %"
    if seconds_left is None or done >= total:
        return share
    return f"{share}, about {duration(round(seconds_left))} left"


_WORDS = {"counting": "counting rows", "writing": "writing", "publishing": "publishing"}


class Silent:
    """Shows nothing, where nobody sees the progress."""

    def on_start(self, words: str) -> None: ...

    def on_step(self, path: Path, step: str, rows: int | None) -> None: ...

    def on_bytes(self, path: Path, done: int, total: int) -> None: ...

    def on_done(self, outcome: FileOutcome) -> None: ...

    def on_rows(self, sink: str, done: int, total: int) -> None: ...


class IngestBars(Silent):
    """One line for all files, and one for each file under way. Called from the threads that work on files."""

    def __init__(self, progress: Progress, files: int) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._lines: dict[Path, TaskID] = {}
        self._rows = 0
        self._began: float | None = None
        self._files, self._done = files, 0
        self._all = progress.add_task("checking the files", total=files, count=f"0/{files}", note="")

    def on_start(self, words: str) -> None:
        self._progress.update(self._all, description=words)

    def on_step(self, path: Path, step: str, rows: int | None) -> None:
        with self._lock:
            if step == "checking":
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
            # Each step reads the file from its beginning, and each at another speed.
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


@dataclass
class _SinkLine:
    task: TaskID
    began: float
    before: int = 0  # rows of earlier plans: a sink that is far behind gets several
    done: int = 0
    total: int = 0


class DeliverBars(Silent):
    """A line for each sink. Called from the threads that deliver, one per sink."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._lines: dict[str, _SinkLine] = {}
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
                line = self._lines[sink] = _SinkLine(task, time.monotonic())
            if done == 0:  # the next plan
                line.before += line.total
            line.done, line.total = done, total
            dealt, whole = line.before + done, line.before + total
            note = rate(dealt, time.monotonic() - line.began).removeprefix(", ")
            self._progress.update(
                line.task, completed=dealt, total=whole, count=f"{dealt:,}/{plural(whole, 'row')}", note=note
            )


@contextmanager
def showing(out: Output, bars: Callable[[Progress], Silent]) -> Iterator[Silent]:
    """Shows the progress on a terminal, as `IngestBars` or `DeliverBars` do."""
    if not out.is_live:
        yield Silent()
        return
    with bars_on(out) as progress:
        yield bars(progress)
