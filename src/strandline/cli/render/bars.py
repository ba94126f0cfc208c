"""Progress bars: description, bar, count, a note, elapsed and remaining time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.cli.output import Output

if TYPE_CHECKING:
    from rich.progress import Progress, Task


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

    class Told(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(how_far(task.completed, task.total, task.time_remaining), "dim")

    columns = (
        SpinnerColumn(style="cyan"),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[count]}", markup=False),
        TextColumn("{task.fields[note]}", style="dim", markup=False),
        TimeElapsedColumn(),
        Told(),
    )
    return Progress(*columns, console=out.err, transient=True)


def how_far(done: float, total: float | None, seconds_left: float | None) -> str:
    """The share that is done and the remaining time, if known."""
    if not total or not done:
        return ""
    share = f"{min(100, int(100 * done / total))} %"
    if seconds_left is None or done >= total:
        return share
    minutes, seconds = divmod(round(seconds_left), 60)
    hours, minutes = divmod(minutes, 60)
    left = f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
    return f"{share}, about {left} left"
