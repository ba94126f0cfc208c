"""The quick table prints what Rich's own layout prints."""

from __future__ import annotations

import io
import re
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from strandline.cli.render.elements import grid

WORDS = st.text(st.sampled_from("ab 你é…\x07"), max_size=8)
CELLS = st.one_of(
    WORDS,
    st.builds(Text, WORDS, style=st.sampled_from(["", "bold", "yellow"])),
    st.builds(lambda a, b: Text.assemble((a, "red"), b), WORDS, WORDS),
    st.builds(lambda a: f"{a}\n{a}", WORDS),
)

Colours = Literal["standard"]


def printed(table: Table, width: int, colours: Colours | None = None, *, quickly: bool) -> str:
    """Without its colours, which Rich puts around the spaces of a cell, too."""
    out = io.StringIO()
    terminal = colours is not None
    console = Console(
        file=out, width=width, highlight=False, markup=False, color_system=colours, force_terminal=terminal
    )
    console.print(table if quickly else _as_rich_does(table))
    return re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())


def _as_rich_does(table: Table) -> Table:
    plain = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_header=table.show_header, pad_edge=False)
    for column in table.columns:
        plain.add_column(column.header, justify=column.justify, overflow="fold")
    for row in zip(*(column.cells for column in table.columns), strict=True):
        plain.add_row(*row)
    return plain


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.tuples(
            st.lists(st.sampled_from(["", "name", "rows"]), min_size=n, max_size=n),
            st.lists(st.lists(CELLS, min_size=n, max_size=n), max_size=4),
        )
    ),
    st.sampled_from([12, 40, 200]),
)
def test_it_prints_what_rich_prints(made: tuple[list[str], list[list[RenderableType]]], width: int) -> None:
    headers, rows = made
    table = grid(*headers, right=("rows",))
    for row in rows:
        table.add_row(*row)
    as_rich_does = printed(table, width, quickly=False)
    assert printed(table, width, quickly=True) == as_rich_does
    assert printed(table, width, "standard", quickly=True) == as_rich_does


def test_colours_are_there_on_a_terminal() -> None:
    table = grid("name", "rows", right=("rows",))
    table.add_row(Text("a", "bold"), Text.assemble(("7", "red"), " new"))
    out = io.StringIO()
    Console(file=out, width=80, force_terminal=True, color_system="standard").print(table)
    assert "\x1b[2mname" in out.getvalue() and "\x1b[1ma" in out.getvalue() and "\x1b[31m7" in out.getvalue()
