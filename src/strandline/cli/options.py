"""Options that all commands share, and how a command opens its lake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from strandline.cli.output import Output
from strandline.core.errors import RefusedError
from strandline.lake import Lake, open_lake

START, ROWS, DELIVERY, CARE = "Begin", "Rows", "Delivery", "Care"  # the groups that `strandline --help` shows

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The lake's settings file, or its folder.",
        show_default="STRANDLINE_CONFIG, or strandline.toml here",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, nothing else.")]
NameArgument = Annotated[str, typer.Argument(metavar="DATASET", help="TABLE or NAMESPACE.TABLE", show_default=False)]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@contextmanager
def opened(config: Path | None) -> Iterator[Lake]:
    """The lake, without Spark."""
    with open_lake(config) as lake:
        yield lake


@contextmanager
def opened_with_spark(config: Path | None, out: Output, doing: str) -> Iterator[Lake]:
    """The lake, with a spinner while Spark starts and works."""
    with open_lake(config) as lake, out.working("Starting Spark") as say:
        lake.on_start = say
        _ = lake.spark
        say(doing)
        yield lake


def confirm(out: Output, *, yes: bool, question: str, refusal: str) -> None:
    """Asks if a person is there; otherwise only --yes is an answer. Raises RefusedError."""
    if yes:
        return
    if not out.can_ask:
        raise RefusedError(refusal, hint="There is nobody to ask here: say --yes.")
    if not typer.confirm(question, err=True):
        raise RefusedError(f"{refusal}: the answer was no")
