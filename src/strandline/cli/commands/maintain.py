"""compact, retain, expire, purge; maintenance runs, show."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.options import CARE, ConfigOption, JsonOption, NameArgument, YesOption, confirm, opened
from strandline.cli.output import Output
from strandline.cli.render import maintain
from strandline.cli.render.bars import one_bar
from strandline.core import duration
from strandline.core.errors import FailedError
from strandline.ledger.maintain.runs import Kind
from strandline.status import documents

if TYPE_CHECKING:
    from datetime import timedelta

    from strandline.lake import Lake
    from strandline.ledger.maintain.runs import Run
    from strandline.maintain.context import Progress
    from strandline.maintain.runs import RunResult

app = typer.Typer(help="What maintenance did, by hand and by schedule.")


def add_to(root: typer.Typer) -> None:
    for command in (compact, retain, expire, purge):
        root.command(rich_help_panel=CARE)(command)
    root.add_typer(app, name="maintenance", rich_help_panel=CARE)


class OnLag(StrEnum):
    HOLD = "hold"
    DROP = "drop"


class PausedSinks(StrEnum):
    COUNT = "count"
    IGNORE = "ignore"


def _length(text: str) -> timedelta:
    return duration.parse(text)


DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")]


def compact(
    dataset: NameArgument, dry_run: DryRunOption = False, config: ConfigOption = None, json: JsonOption = False
) -> None:
    """Write small data files anew as large ones, with rows in the order of their numbers.

    Readers, ingest and delivery go on. Only where there is something to gain; says what it left alone, and why.
    `[maintain.compact]` says what is small.
    """
    _do(config, json, lambda lake, progress: lake.maintenance.compact(dataset, dry_run=dry_run, progress=progress))


def retain(
    dataset: NameArgument,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="30d", help="Delete rows that are older.", show_default="the dataset's rule"
        ),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(
            "--column",
            metavar="NAME",
            help="A date or timestamp that says how old a row is.",
            show_default="the dataset's rule, or when it was ingested",
        ),
    ] = None,
    on_lag: Annotated[
        OnLag | None,
        typer.Option("--on-lag", help="Rows that a sink does not have yet: kept, or deleted after --drop-after."),
    ] = None,
    drop_after: Annotated[
        str | None, typer.Option("--drop-after", metavar="7d", help="With --on-lag drop: how long they are held first.")
    ] = None,
    paused_sinks: Annotated[
        PausedSinks | None, typer.Option("--paused-sinks", help="Whether rows wait for sinks that are paused.")
    ] = None,
    accept_clock: Annotated[
        bool, typer.Option("--accept-clock", help="The clock is right, although it seems to have jumped.")
    ] = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Delete rows that are old enough, once every sink has them.

    What is left out is as `[maintain.retain.<dataset>]` says it. Rows that are due and wait for a sink are held: they
    are counted here and in `status`.
    """
    _do(
        config,
        json,
        lambda lake, progress: lake.maintenance.retain(
            dataset,
            older_than=None if older_than is None else _length(older_than),
            column=column,
            on_lag=None if on_lag is None else on_lag.value,
            drop_after=None if drop_after is None else _length(drop_after),
            paused_sinks=None if paused_sinks is None else paused_sinks.value,
            accept_clock=accept_clock,
            dry_run=dry_run,
            progress=progress,
        ),
    )


def expire(
    dataset: NameArgument,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="5d", help="Remove snapshots that are older.", show_default="settings"),
    ] = None,
    keep_min: Annotated[
        int | None,
        typer.Option("--keep-min", metavar="N", min=1, help="Keep so many in any case.", show_default="settings"),
    ] = None,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Remove old snapshots of a table, and the files that only they had. Branches and tags are kept.

    Batches that are committed and not visible yet are published first. What is left out is as `[maintain.expire]` says
    it.
    """
    _do(
        config,
        json,
        lambda lake, progress: lake.maintenance.expire(
            dataset,
            older_than=None if older_than is None else _length(older_than),
            keep_min=keep_min,
            dry_run=dry_run,
            progress=progress,
        ),
    )


def purge(
    dataset: NameArgument,
    where: Annotated[
        str, typer.Option("--where", metavar="CONDITION", help="Which rows, in Spark SQL: \"who = 'ada'\".")
    ],
    keep_snapshots: Annotated[
        bool,
        typer.Option("--keep-snapshots", help="Leave old snapshots, from which the rows can still be read."),
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Delete rows wherever the lake has them: table, spool, reject files, quarantine, and old snapshots.

    For a person who asks to be forgotten. Sinks keep what they were given; those that may hold such rows are named.
    Rows that a sink did not have yet will not reach it, and are counted. Where something is left to do it says so, and
    ends with 1: run it again then.
    """

    def work(lake: Lake, progress: Progress) -> RunResult[Any]:
        return lake.maintenance.purge(dataset, where, keep_snapshots=keep_snapshots, dry_run=dry_run, progress=progress)

    def agreed(lake: Lake, out: Output) -> None:
        target = lake.dataset(dataset).name
        confirm(
            out,
            yes=yes or dry_run,
            question=f"Delete every row of {target} that fits? It cannot be undone.",
            refusal=f"nothing of {target} is purged",
        )

    run = _do(config, json, work, agreed)
    if run.result is not None and run.result["left"]:
        raise typer.Exit(FailedError.exit_code)


def _do(
    config: Path | None,
    json: bool,
    work: Callable[[Lake, Progress], RunResult[Any]],
    agreed: Callable[[Lake, Output], None] = lambda lake, out: None,
) -> Run:
    out = Output(as_json=json)
    with opened(config) as lake:
        agreed(lake, out)
        with one_bar(out, "starting Spark") as bar:
            lake.on_start = bar.say
            run = work(lake, bar.step).run
    out.show(documents.maintenance_run(run), *maintain.render_run(run))
    return run


@app.command()
def runs(
    dataset: Annotated[
        str | None, typer.Argument(metavar="DATASET", help="Only this one.", show_default="all datasets")
    ] = None,
    kind: Annotated[Kind | None, typer.Option("--kind", help="Only this kind.", show_default="all")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many.")] = 20,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """The latest runs, the newest first: when, how it was begun, what became of it."""
    with opened(config) as lake:
        found = lake.maintenance.runs(dataset, None if kind is None else kind.value, runs_max=limit)
    Output(as_json=json).show({"runs": [documents.maintenance_run(r) for r in found]}, maintain.runs(found))


@app.command()
def show(
    run: Annotated[int, typer.Argument(metavar="RUN", help="Its number, from `maintenance runs`.", show_default=False)],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """One run, with everything that it stored."""
    with opened(config) as lake:
        found = lake.maintenance.get(run)
    Output(as_json=json).show(documents.maintenance_run(found), *maintain.shown(found))
