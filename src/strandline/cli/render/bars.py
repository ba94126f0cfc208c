"""The bars of everything that takes long: what, how far, how many, a note, since when, and how much longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.cli.output import Output

if TYPE_CHECKING:
    from rich.progress import Progress, Task


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
    """The share that is done and how much longer it takes, where that is known."""
    if not total or not done:
        return ""
    share = f"{min(100, int(100 * done / total))} %"
    if seconds_left is None or done >= total:
        return share
    minutes, seconds = divmod(round(seconds_left), 60)
    hours, minutes = divmod(minutes, 60)
    left = f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
    return f"{share}, about {left} left"
