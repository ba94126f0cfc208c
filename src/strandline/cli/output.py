"""Where output goes: results to standard output, everything else to standard error.

With --json there is one document on standard output and nothing else. Colour, spinners and bars are for terminals; in a
pipe the same words come plain, without progress.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.text import Text

from strandline.core.documents import json_text
from strandline.core.text.masking import masked

PIPE_WIDTH = 10_000  # a pipe has no width: no line is broken, so that a script reads a path as one word


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the process with its own exit code; `main` chooses the exit code."""
        raise BrokenPipeError


class _Collected(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(masked(self.format(record)))


def console(stream: TextIO) -> Console:
    width = None if stream.isatty() or os.environ.get("COLUMNS") else PIPE_WIDTH
    return _Console(file=stream, width=width, highlight=False, markup=False, soft_wrap=False)


class Output:
    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.out = console(sys.stdout)
        self.err = console(sys.stderr)

    @property
    def is_live(self) -> bool:
        """Whether a person sees the progress."""
        return self.err.is_terminal and not self.as_json

    @property
    def can_ask(self) -> bool:
        return self.is_live and sys.stdin.isatty()

    def show(self, document: dict[str, Any], *renderables: RenderableType) -> None:
        """The result: the document with --json, otherwise the text for people."""
        if self.as_json:
            print(dumps(document))
            return
        for renderable in renderables:
            # The terminal wraps lines of text, so that a path in one can be copied whole.
            self.out.print(renderable, soft_wrap=isinstance(renderable, Text))

    def note(self, text: str, style: str = "dim") -> None:
        if not self.as_json:
            self.err.print(Text(text, style), soft_wrap=True)

    @contextmanager
    def working(self, text: str) -> Iterator[Callable[[str], None]]:
        """A spinner on a terminal; the yielded function changes its text."""
        if not self.is_live:
            yield lambda _: None
            return
        with (
            self.warnings_after(),
            # If both are the terminal, everything must be printed through the console that draws the spinner.
            (self.out if self.out.is_terminal else self.err).status(Text(text, "dim")) as status,
        ):
            yield lambda words: status.update(Text(words, "dim"))

    @contextmanager
    def warnings_after(self) -> Iterator[None]:
        """Shows log messages after the spinner is gone, not in the midst of it."""
        collected = _Collected()
        ours = logging.getLogger("strandline")
        ours.addHandler(collected)
        try:
            yield
        finally:
            ours.removeHandler(collected)
            for line in collected.lines:
                self.note(line, "yellow")


def dumps(value: Any, *, indent: int | None = 2) -> str:
    return printable(json_text(value, indent=indent))


def printable(text: str) -> str:
    """The same JSON, escaped for terminals and pipes whose encoding lacks its characters."""
    if text.isascii() or (sys.stdout.encoding or "").lower().replace("-", "") == "utf8":
        return text
    return "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in text)


def shown(path: Path) -> str:
    """As a person in this folder would type it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_absolute() and path.is_relative_to(here) else str(path)
