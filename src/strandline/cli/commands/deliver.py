"""tick."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from strandline.cli.command import DELIVERY, Call, command
from strandline.cli.render import deliver
from strandline.cli.render.progress import DeliverBars, showing
from strandline.core.errors import StrandlineError
from strandline.status.documents import lake_documents

if TYPE_CHECKING:
    from strandline.core.delivery_types import SinkRecord
    from strandline.deliver.plan.preview import SinkPreview
    from strandline.lake import Lake

app = typer.Typer()


@command(app, panel=DELIVERY)
def tick(
    call: Call,
    sink: str | None = typer.Option(None, metavar="NAME", help="Only this one.", show_default="all sinks"),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Show what would be sent to which sink; send and store nothing."
    ),
) -> None:
    """Deliver once: every settled row that a sink does not have yet. Safe beside the daemon and beside itself.

    Ends with 0 if every sink has what was settled when it began; with 1 if one failed and is tried again later, or has
    rows to get and another deliverer holds it; with 3 if one is stopped and needs a person.
    """
    began = time.monotonic()
    if dry_run:
        _preview(call, sink)
        return
    lake = call.lake
    with showing(call, DeliverBars) as progress:
        lake.on_start = progress.on_start
        lake.delivery.recovery.catch_up()
        report = lake.delivery.tick(sink, progress=progress.on_rows)
    seconds = time.monotonic() - began
    call.show(lake_documents.tick(report, seconds), *deliver.tick(report, seconds))
    call.exit(deliver.exit_code(report))


def _preview(call: Call, only: str | None) -> None:
    chosen = call.lake.delivery.list_sinks() if only is None else [call.lake.delivery.get(only)]
    with call.spinner("Starting Spark") as lake:
        found = [_preview_one(lake, record) for record in chosen]
    call.show(lake_documents.tick_preview(found), *deliver.preview(found))
    call.exit(max((s.error.exit_code for s in found if s.error is not None), default=0))


def _preview_one(lake: Lake, record: SinkRecord) -> SinkPreview:
    """A sink that does not answer does not keep the others from being shown."""
    from strandline.deliver.plan.preview import SinkPreview
    from strandline.status.whole_sinks import state_of

    try:
        return SinkPreview(record.name, state_of(record), lake.delivery.preview(record.name), None)
    except StrandlineError as e:
        return SinkPreview(record.name, state_of(record), (), e)
