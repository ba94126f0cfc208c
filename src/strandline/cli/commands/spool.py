"""spool list, replay, discard, clear."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from strandline.cli.command import Call, NameArgument, chosen, command
from strandline.cli.render.elements import LINES_MAX, done, nothing, one_line
from strandline.core.documents import fields_of
from strandline.core.errors import UsageError
from strandline.core.text.wording import age, plural
from strandline.iceberg.metadata.identifier import full_name
from strandline.status.documents import lake_documents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strandline.ledger.receive.ended_batches import Cleared, SetAsideBody
    from strandline.ledger.receive.spool_files import LeftFiles

app = typer.Typer(
    name="spool",
    help="Received bodies that could not be ingested: list them, try them again, or give them up.",
)

BodiesArgument = Annotated[
    list[int] | None,
    typer.Argument(metavar="BODY…", help="Only these bodies, by the numbers that `list` shows."),
]
AllBodiesOption = Annotated[bool, typer.Option("--all", help="Every body that was set aside.")]
SpoolDatasetOption = Annotated[
    str | None,
    typer.Option(metavar="DATASET", help="With --all: only those of this dataset.", show_default="all"),
]


def _chosen(bodies: list[int] | None, *, everything: bool, dataset: str | None) -> list[int] | None:
    found = chosen(bodies, "bodies", everything=everything)
    if dataset is not None and not everything:
        raise UsageError("--dataset goes with --all", hint="The number of a body names its dataset already.")
    return found


@command(app, "list")
def list_(
    call: Call,
    dataset: str | None = typer.Argument(None, metavar="DATASET", help="Only of this dataset.", show_default="all"),
) -> None:
    """The bodies that were set aside, each with its reason. Starts no JVM.

    They were answered with 202 and could not be ingested, while other bodies of their dataset could. They stay in the
    spool, and a sender that repeats one gets the same answer. Below them are files whose bodies a receiver could not
    record after the ledger was restored.
    """
    found = call.lake.receiver.set_aside(dataset)
    left = call.lake.receiver.unrecorded()
    named = None if dataset is None else full_name(dataset)
    document = {
        "bodies": [lake_documents.spool_body(b) for b in found],
        "unrecorded": lake_documents.unrecorded(left, named),
    }
    call.show(document, *listed(found), *unrecorded(left, named))


@command(app)
def replay(
    call: Call, bodies: BodiesArgument = None, everything: AllBodiesOption = False, dataset: SpoolDatasetOption = None
) -> None:
    """Ingest bodies again that were set aside, with the next batch of a receiver. One that fails is set aside again."""
    wanted = _chosen(bodies, everything=everything, dataset=dataset)
    found = call.lake.receiver.replay(wanted, dataset)
    said = f"{plural(len(found), 'body', 'waits')} for `strandline receive` to ingest again"
    call.show({"replayed": [b.id for b in found]}, done(said))


@command(app, asks=True)
def discard(
    call: Call,
    bodies: BodiesArgument = None,
    everything: AllBodiesOption = False,
    dataset: SpoolDatasetOption = None,
    not_recorded: bool = typer.Option(
        False,
        "--unrecorded",
        help="Instead, give up files whose bodies could not be recorded: they stay in the spool, renamed to `.unsure`.",
    ),
) -> None:
    """Give up bodies that were set aside: their rows never enter the table, and their files are removed."""
    if not_recorded:
        if bodies or everything:
            raise UsageError("--unrecorded goes with --dataset only", hint="Those files have no numbers.")
        _discard_unrecorded(call, dataset)
        return
    wanted = _chosen(bodies, everything=everything, dataset=dataset)
    receiver = call.lake.receiver
    which = "every body that was set aside" if wanted is None else plural(len(wanted), "body")
    call.confirm(
        f"Give up {which}? The rows were acknowledged to their sender, and are lost.",
        refusal="nothing is discarded",
    )
    gone = receiver.discard(wanted, dataset)
    rows = sum(b.rows for b in gone)
    document = {"discarded": [b.id for b in gone], "rows": rows}
    call.show(document, done(f"{plural(len(gone), 'body')} of {plural(rows, 'row')} given up"))


def _discard_unrecorded(call: Call, dataset: str | None) -> None:
    receiver = call.lake.receiver
    call.confirm(
        "Give up every body that could not be recorded? The receiver may have answered some of them with 202.",
        refusal="nothing is discarded",
    )
    gone = receiver.move_unrecorded_aside(dataset)
    said = done(f"{plural(len(gone), 'file')} renamed to `.unsure`, and will not be ingested")
    call.show({"files_set_aside": [f.name for f in gone]}, said)


@command(app, asks=True)
def clear(call: Call, name: NameArgument) -> None:
    """Give up all bodies that were received for a dropped dataset; `strandline status` shows how many there are.

    A dataset of the same name that is in use is not touched.
    """
    receiver = call.lake.receiver
    call.confirm(
        f"Give up every body that was received for {name}, which was dropped? The rows are lost.",
        refusal="nothing is cleared",
    )
    gone = receiver.clear(name)
    call.show({"dataset": name} | fields_of(gone), cleared(name, gone))


def listed(found: Sequence[SetAsideBody], now: datetime | None = None) -> list[RenderableType]:
    if not found:
        return [nothing("No bodies are set aside.")]
    lines: list[RenderableType] = []
    for b in found[:LINES_MAX]:
        named = f"key {b.key}" if b.sender is None else f"from {b.sender}"
        lines.append(
            Text.assemble(
                (b.dataset, "bold"),
                f"  body {b.id}  ",
                f"{plural(b.rows, 'row')}, {plural(b.bytes, 'byte')}, {named}, set aside {age(b.since, now)} ago",
            )
        )
        lines.append(Text(f"  {one_line(b.reason)}", "red"))
    if len(found) > LINES_MAX:
        lines.append(Text(f"… and {plural(len(found) - LINES_MAX, 'body')} more; --json has all", "dim"))
    lines.append(Text("`strandline spool replay BODY…` tries them again, `… discard` gives them up", "dim"))
    return lines


def unrecorded(left: LeftFiles, dataset: str | None) -> list[RenderableType]:
    found = lake_documents.unrecorded(left, dataset)
    if not found["files"]:
        return []
    lines: list[RenderableType] = [
        Text(f"{plural(found['files'], 'body', 'lies')} in the spool and could not be recorded", "bold")
    ]
    for f in found["first"]:
        lines += [Text(f"{f.dataset}  {f.name}"), Text(f"  {one_line(f.reason)}", "red")]
    if found["files"] > len(found["first"]):
        lines.append(Text(f"… and {found['files'] - len(found['first']):,} more", "dim"))
    lines.append(Text("a receiver retries by itself; `strandline spool discard --unrecorded` gives them up", "dim"))
    return lines


def cleared(name: str, gone: Cleared) -> RenderableType:
    if not gone.bodies:
        return nothing(f"The spool holds nothing for a dropped dataset {name}.")
    what = f"{plural(gone.bodies, 'body')}, {plural(gone.rows, 'row')}, {plural(gone.bytes, 'byte')}"
    return done(f"Given up, as {name} was dropped: {what}")
