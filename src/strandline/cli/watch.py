"""Output that is drawn again and again on a terminal: `--watch`, `top`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from strandline.core.errors import UsageError

if TYPE_CHECKING:
    from strandline.cli.command import Call

WATCH_SECONDS = 2.0

WatchOption = Annotated[bool, typer.Option("--watch", help="Show it again every two seconds, until Ctrl-C.")]


def watch(call: Call, draw: Callable[[], RenderableType], *, once: str) -> None:
    """Shows what `draw` returns, every two seconds, until Ctrl-C. `once`: the command for a script."""
    check_terminal(call, "--watch", once=once)
    from rich.live import Live

    with suppress(KeyboardInterrupt), Live(draw(), console=call.out, auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_SECONDS)
            live.update(draw(), refresh=True)


def check_terminal(call: Call, what: str, *, once: str) -> None:
    """Raises UsageError in a pipe, and with --json."""
    if call.as_json or not call.out.is_terminal:
        raise UsageError(f"{what} is for a terminal", hint=f"In a script, call `{once} --json` repeatedly.")
