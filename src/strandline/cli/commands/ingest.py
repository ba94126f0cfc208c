"""ingest: files into a dataset."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from strandline.cli.command import ROWS, Call, NameArgument, command
from strandline.cli.render import ingest as render_ingest
from strandline.cli.render.progress import IngestBars, showing
from strandline.status.documents import lake_documents

app = typer.Typer()


@command(app, panel=ROWS)
def ingest(
    call: Call,
    dataset: NameArgument,
    files: list[Path] = typer.Argument(metavar="FILE", help="JSON lines, CSV (both also .gz, .zst) or Parquet."),
    batch_id: str | None = typer.Option(
        None, metavar="ID", help="All files are one batch.", show_default="each file is one, known by its bytes"
    ),
    strict: bool = typer.Option(False, "--strict", help="Refuse a file with a row that does not fit."),
    again: bool = typer.Option(False, "--again", help="Also what was ingested before: its rows come twice."),
    format: str | None = typer.Option(None, metavar="jsonl|csv|parquet", help="Where a file's name does not say it."),
    rejects: Path | None = typer.Option(
        None, metavar="DIR", help="Where rows that do not fit are kept.", show_default="rejects/ beside the settings"
    ),
) -> None:
    """Bring files in: every row once, however often the same file is offered.

    Rows that do not fit the schema are kept in a file of their own, each with its line and the reason.
    """
    began, lake = time.monotonic(), call.lake
    count = len(files) if batch_id is None else 1
    with showing(call, lambda progress: IngestBars(progress, count)) as progress:
        lake.on_start = progress.on_start
        outcomes = lake.ingest(
            dataset,
            files,
            batch_id=batch_id,
            strict=strict,
            again=again,
            format=format,
            rejects_folder=rejects,
            progress=progress.on_step,
            on_done=progress.on_done,
            on_bytes=progress.on_bytes if call.is_live else None,
        )
    name = lake.dataset(dataset).name
    seconds = time.monotonic() - began
    call.show(lake_documents.ingest(name, outcomes, seconds), *render_ingest.outcomes(outcomes, seconds))
    call.exit(max((o.error.exit_code for o in outcomes if o.error is not None), default=0))
