"""sink quarantine list, replay, discard."""

from __future__ import annotations

from typing import Annotated

import typer

from strandline.cli.options import ConfigOption, JsonOption, YesOption, confirm, opened
from strandline.cli.output import Output
from strandline.cli.render import quarantine
from strandline.cli.render.bars import one_bar
from strandline.core.errors import UsageError
from strandline.core.wording import plural
from strandline.status import documents

app = typer.Typer(help="Rows that a sink refused for good and that were set aside: look at them, send them again.")

SinkArgument = Annotated[str, typer.Argument(metavar="SINK", help="The sink's name.", show_default=False)]
NumbersArgument = Annotated[
    list[int] | None, typer.Argument(metavar="NUMBER…", help="Only rows with these numbers.", show_default=False)
]
AllOption = Annotated[bool, typer.Option("--all", help="Every row that the sink has in quarantine.")]


def _chosen(numbers: list[int] | None, *, everything: bool) -> list[int] | None:
    """None: all of them, only with --all."""
    if bool(numbers) == everything:
        raise UsageError("which rows?", hint="Say their numbers, or --all.")
    return numbers or None


@app.command("list")
def list_(
    sink: Annotated[str | None, typer.Argument(metavar="SINK", help="Only of this sink.", show_default="all")] = None,
    settled_too: Annotated[
        bool, typer.Option("--settled", help="Also those that were replayed or discarded since.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=0, metavar="N", help="Show the content of so many rows.")] = 100,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """The rows that were set aside: number, reason, when, and the row itself. Starts no JVM."""
    with opened(config) as lake:
        found = lake.delivery.quarantined(sink, settled_too=settled_too, contents_max=limit)
    Output(as_json=json).show({"rows": [documents.quarantined_row(q) for q in found]}, *quarantine.listed(found))


@app.command()
def replay(
    sink: SinkArgument,
    numbers: NumbersArgument = None,
    everything: AllOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Send rows again that were set aside. One that is refused again stays where it is. Starts no JVM.

    Ends with 1 if not all of them landed.
    """
    out = Output(as_json=json)
    wanted = _chosen(numbers, everything=everything)
    with opened(config) as lake, one_bar(out, words := "Sending") as bar:
        report = lake.delivery.replay(sink, wanted, on_progress=lambda done, total: bar.step(words, done, total))
    out.show(documents.replayed_rows(report), *quarantine.replayed(report))
    if report.failed:
        raise typer.Exit(1)


@app.command()
def discard(
    sink: SinkArgument,
    numbers: NumbersArgument = None,
    everything: AllOption = False,
    yes: YesOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Give rows up that were set aside: they are not delivered to this sink, and their stored content is removed."""
    out = Output(as_json=json)
    wanted = _chosen(numbers, everything=everything)
    with opened(config) as lake:
        lake.delivery.get(sink)
        which = "every row" if wanted is None else plural(len(wanted), "row")
        confirm(
            out,
            yes=yes,
            question=f"Give up {which} that {sink} has in quarantine? It never gets them; the lake keeps its own.",
            refusal="nothing is discarded",
        )
        gone = lake.delivery.discard(sink, wanted)
    out.show(documents.discarded_rows(sink, gone), quarantine.discarded(sink, gone))
