"""sink quarantine list, replay, discard."""

from __future__ import annotations

from typing import Annotated

import typer

from strandline.cli.command import Call, chosen, command
from strandline.cli.render import quarantine
from strandline.core.errors import FailedError
from strandline.core.text.wording import plural
from strandline.status.documents import lake_documents

app = typer.Typer(help="Rows that a sink refused for good: list them, send them again, or give them up.")

QuarantineSinkArgument = Annotated[str, typer.Argument(metavar="SINK", help="The sink's name.")]
NumbersArgument = Annotated[
    list[int] | None,
    typer.Argument(metavar="NUMBER…", help="Only rows with these sequence numbers."),
]
AllRowsOption = Annotated[bool, typer.Option("--all", help="Every row that the sink has in quarantine.")]


@command(app, "list")
def list_(
    call: Call,
    sink: str | None = typer.Argument(None, metavar="SINK", help="Only of this sink.", show_default="all"),
    settled_too: bool = typer.Option(False, "--settled", help="Also those that were replayed or discarded since."),
    limit: int = typer.Option(100, min=0, metavar="N", help="Show the content of N rows."),
) -> None:
    """The rows in quarantine: sequence number, reason, when, and the row itself. Starts no JVM."""
    found = call.lake.delivery.quarantined(sink, settled_too=settled_too, contents_max=limit)
    call.show({"rows": [lake_documents.quarantined_row(q) for q in found]}, *quarantine.listed(found))


@command(app)
def replay(
    call: Call, sink: QuarantineSinkArgument, numbers: NumbersArgument = None, everything: AllRowsOption = False
) -> None:
    """Send quarantined rows again. One that is refused again stays in quarantine. Starts no JVM.

    Ends with 1 if not all of them landed.
    """
    wanted = chosen(numbers, "rows", everything=everything)
    with call.bar(words := "Sending") as bar:
        report = call.lake.delivery.replay(sink, wanted, on_progress=lambda done, total: bar.step(words, done, total))
    call.show(lake_documents.replayed_rows(report), *quarantine.replayed(report))
    call.exit(FailedError.exit_code if report.failed else 0)


@command(app, asks=True)
def discard(
    call: Call, sink: QuarantineSinkArgument, numbers: NumbersArgument = None, everything: AllRowsOption = False
) -> None:
    """Give up quarantined rows: they are not delivered to this sink, and their stored content is removed."""
    wanted = chosen(numbers, "rows", everything=everything)
    call.lake.delivery.get(sink)
    which = "every row" if wanted is None else plural(len(wanted), "row")
    call.confirm(
        f"Give up {which} that {sink} has in quarantine? The sink never gets them; the lake keeps them.",
        refusal="nothing is discarded",
    )
    gone = call.lake.delivery.discard(sink, wanted)
    call.show(lake_documents.discarded_rows(sink, gone), quarantine.discarded(sink, gone))
