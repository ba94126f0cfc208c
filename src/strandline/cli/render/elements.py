"""The parts that rendered texts share. Values in, renderables out; nothing in `render/` asks the lake."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from strandline.cli.render.quick_table import QuickTable
from strandline.core.text.wording import plural

if TYPE_CHECKING:
    from strandline.status.problems.status_problem import StatusProblem

UNKNOWN = "?"
OK, BAD, NOTHING = ("✓", "green"), ("✗", "bold red"), ("·", "dim")
DOUBT = ("!", "yellow")  # neither done nor failed: a person should check
LINES_MAX = 20  # longer lists are cut for people; --json has all
CHARS_MAX = 300  # of a reason or a row, likewise
NO_SINKS = Text("No sinks yet. `strandline sink add` adds one.", "dim")


def grid(*headers: str, right: Iterable[str] = ()) -> Table:
    """A table without a frame, with a dim header."""
    table = QuickTable(show_header=any(headers))
    for header in headers:
        table.add_column(header, justify="right" if header in set(right) else "left", overflow="fold")
    return table


def done(text: str) -> Text:
    return Text.assemble(OK, " ", text)


def nothing(text: str) -> Text:
    return Text.assemble(NOTHING, " ", text)


def dim(text: str) -> Text:
    return Text(text, "dim")


def cut(lines: Sequence[RenderableType], noun: str) -> list[RenderableType]:
    """The first lines of a long list of things, and how many more things there are."""
    more = len(lines) - LINES_MAX
    if more <= 0:
        return list(lines)
    return [*lines[:LINES_MAX], dim(f"  … and {plural(more, noun)} more; --json has all")]


def one_line(text: str) -> str:
    short = " ".join(text.split())
    return short if len(short) <= CHARS_MAX else f"{short[:CHARS_MAX]}…"


def number(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def rate(rows: int, seconds: float) -> str:
    """To follow a time; empty if below one row per second."""
    per_second = rows / max(seconds, 0.001)
    return f", {per_second:,.0f} rows/s" if per_second >= 1 else ""


def attention(problem: StatusProblem) -> Text:
    """What is wrong, and what to do."""
    style = "bold red" if problem.severity == "error" else "yellow"
    return Text.assemble(("! ", style), problem.line)
