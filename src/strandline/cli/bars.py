"""The bars of everything that takes long: what, how far, how many, a note, and since when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.cli.output import Output

if TYPE_CHECKING:
    from rich.progress import Progress


def bars_on(out: Output) -> Progress:
    """Tasks have the fields `count` and `note`."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(style="cyan"),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[count]}", markup=False),
        TextColumn("{task.fields[note]}", style="dim", markup=False),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=out.err, transient=True)
