"""A table that is quick where every cell fits in its line.

Rich lays out each cell by itself. A status of a thousand datasets has fifteen thousand cells, and took a second.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.control import strip_control_codes
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

GAP = 2  # spaces between two columns


class QuickTable(Table):
    """Without a frame, with a dim header. It looks the same as Rich's own layout, which it leaves wide tables to."""

    def __init__(self, *, show_header: bool) -> None:
        super().__init__(box=None, padding=(0, GAP, 0, 0), header_style="dim", show_header=show_header, pad_edge=False)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [[*([c.header] if self.show_header else []), *c.cells] for c in self.columns]
        texts = [[_one_line(cell) for cell in cells] for cells in columns]
        plain = [[text for text in column if text is not None] for column in texts]
        if [len(column) for column in plain] != [len(cells) for cells in columns] or not (plain and plain[0]):
            return super().__rich_console__(console, options)
        widths = [max(map(_width, column)) for column in plain]
        if not all(widths) or sum(widths) + GAP * (len(widths) - 1) > options.max_width:
            return super().__rich_console__(console, options)
        if console.color_system is None:
            return self._plain_lines(plain, widths)
        return self._lines(console, columns, plain, widths)

    def _plain_lines(self, plain: list[list[str]], widths: list[int]) -> Iterator[Segment]:
        """For a pipe: without styles a line is one segment."""
        padded = [
            [
                " " * (width - _width(t)) + t if column.justify == "right" else t + " " * (width - _width(t))
                for t in texts
            ]
            for column, texts, width in zip(self.columns, plain, widths, strict=True)
        ]
        for line in zip(*padded, strict=True):
            yield Segment((" " * GAP).join(line))
            yield Segment.line()

    def _lines(
        self, console: Console, columns: list[list[RenderableType]], plain: list[list[str]], widths: list[int]
    ) -> Iterator[Segment]:
        to_the_right = [column.justify == "right" for column in self.columns]
        for n in range(len(plain[0])):
            for at, width in enumerate(widths):
                text, cell = plain[at][n], columns[at][n]
                room = " " * (width - _width(text))
                if to_the_right[at]:
                    yield Segment(room)
                yield from _styled(console, cell, text, is_header=self.show_header and n == 0)
                yield Segment((room if not to_the_right[at] else "") + (" " * GAP if at < len(widths) - 1 else ""))
            yield Segment.line()


def _width(text: str) -> int:
    """As `cell_len`, which looks at each character of a text that it has not seen lately."""
    return len(text) if text.isascii() and text.isprintable() else cell_len(text)


def _one_line(cell: RenderableType) -> str | None:
    """None for what may take several lines, or ends with spaces, which Rich moves."""
    text = cell.plain if isinstance(cell, Text) else strip_control_codes(cell) if isinstance(cell, str) else None
    return None if text is None or "\n" in text or "\t" in text or text.endswith(" ") else text


def _styled(console: Console, cell: RenderableType, text: str, *, is_header: bool) -> Iterator[Segment]:
    if isinstance(cell, Text) and cell.spans:
        yield from cell.render(console)
    elif isinstance(cell, Text) and cell.style:
        yield Segment(text, console.get_style(cell.style))
    else:
        yield Segment(text, console.get_style("dim") if is_header else None)
