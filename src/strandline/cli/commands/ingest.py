"""ingest: files into a dataset."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from strandline.cli.options import ROWS, ConfigOption, JsonOption, NameArgument, opened
from strandline.cli.output import Output
from strandline.cli.render import ingest as render_ingest
from strandline.cli.render.ingest_progress import watching
from strandline.status import documents


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=ROWS)(ingest)


def ingest(
    dataset: NameArgument,
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="JSON lines, CSV (both also .gz, .zst) or Parquet.", show_default=False),
    ],
    batch_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="All files are one batch.", show_default="each file is one, known by its bytes"
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse a file with a row that does not fit.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Also what was ingested before: its rows come twice.")] = False,
    format: Annotated[
        str | None, typer.Option(metavar="jsonl|csv|parquet", help="Where a file's name does not say it.")
    ] = None,
    rejects: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where rows that do not fit are kept. [default: rejects/ beside the settings]"
        ),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Bring files in: every row once, however often the same file is offered.

    Rows that do not fit the schema are kept in a file of their own, each with its line and the reason.
    """
    out = Output(as_json=json)
    began = time.monotonic()
    with opened(config) as lake:
        with watching(out, len(files) if batch_id is None else 1) as progress:
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
                on_bytes=progress.on_bytes if out.is_live else None,
            )
        name = lake.dataset(dataset).name
    seconds = time.monotonic() - began
    out.show(documents.ingest(name, outcomes, seconds), *render_ingest.outcomes(outcomes, seconds))
    worst = max((o.error.exit_code for o in outcomes if o.error is not None), default=0)
    if worst:
        raise typer.Exit(worst)
