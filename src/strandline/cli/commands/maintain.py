"""compact, retain, expire, purge; maintenance runs, show."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from strandline.cli.command import CARE, Call, NameArgument, command
from strandline.cli.render import maintain
from strandline.core.errors import FailedError
from strandline.core.records.maintenance_records import MaintenanceKind
from strandline.core.text import duration
from strandline.status.documents import lake_documents

if TYPE_CHECKING:
    from strandline.ledger.maintain.runs import MaintenanceRun
    from strandline.maintain.runs import RunResult

app = typer.Typer()
history = typer.Typer(help="Runs of maintenance, by hand and by schedule: list, show and cancel them.")
app.add_typer(history, name="maintenance", rich_help_panel=CARE)

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]
_duration = partial(typer.Option, None, parser=duration.parse)


@command(app, panel=CARE)
def compact(call: Call, dataset: NameArgument, dry_run: DryRunOption = False) -> None:
    """Rewrite small data files as large ones, with rows in the order of their sequence numbers.

    Readers, ingest and delivery continue meanwhile. It rewrites files only where that gains something, and reports
    what it left alone, and why. `[maintain.compact]` sets what is small.
    """
    _run(call, partial(call.lake.maintenance.compact, dataset, dry_run=dry_run))


@command(app, panel=CARE)
def retain(
    call: Call,
    dataset: NameArgument,
    older_than: timedelta | None = _duration(
        metavar="30d", help="Delete rows that are older.", show_default="the dataset's rule"
    ),
    column: str | None = typer.Option(
        None,
        metavar="NAME",
        help="A date or timestamp that says how old a row is.",
        show_default="the dataset's rule, or when it was ingested",
    ),
    on_lag: Literal["hold", "drop"] | None = typer.Option(
        None, help="Rows that a sink does not have yet: keep them (hold), or delete them after --drop-after (drop)."
    ),
    drop_after: timedelta | None = _duration(metavar="7d", help="With --on-lag drop: how long they are held first."),
    paused_sinks: Literal["count", "ignore"] | None = typer.Option(
        None, help="Whether rows wait for paused sinks (count) or not (ignore)."
    ),
    accept_clock: bool = typer.Option(False, "--accept-clock", help="Run although the clock seems to have jumped."),
    dry_run: DryRunOption = False,
) -> None:
    """Delete rows that are old enough, once every sink has them.

    `[maintain.retain.<dataset>]` sets what is not given here. Rows that are due and that a sink does not have yet are
    held: they are counted here and in `status`.
    """
    retention = partial(
        call.lake.maintenance.retain,
        dataset,
        older_than=older_than,
        column=column,
        on_lag=on_lag,
        drop_after=drop_after,
        paused_sinks=paused_sinks,
        accept_clock=accept_clock,
    )
    _run(call, partial(retention, dry_run=dry_run))


@command(app, panel=CARE)
def expire(
    call: Call,
    dataset: NameArgument,
    older_than: timedelta | None = _duration(
        metavar="5d", help="Remove snapshots that are older.", show_default="settings"
    ),
    keep_min: int | None = typer.Option(
        None, metavar="N", min=1, help="Keep at least N snapshots.", show_default="settings"
    ),
    dry_run: DryRunOption = False,
) -> None:
    """Remove old snapshots of a table, and the files that only they had. Branches and tags are kept.

    Batches that are committed and not visible yet are published first. `[maintain.expire]` sets what is not given here.
    """
    expiry = partial(call.lake.maintenance.expire, dataset, older_than=older_than, keep_min=keep_min)
    _run(call, partial(expiry, dry_run=dry_run))


@command(app, panel=CARE, asks=True)
def purge(
    call: Call,
    dataset: NameArgument,
    where: str = typer.Option(metavar="CONDITION", help="Which rows, in Spark SQL: \"who = 'ada'\"."),
    keep_snapshots: bool = typer.Option(
        False, "--keep-snapshots", help="Leave old snapshots, from which the rows can still be read."
    ),
    dry_run: DryRunOption = False,
) -> None:
    """Delete rows wherever the lake has them: table, spool, reject files, quarantine, and old snapshots.

    For a person who asks to be forgotten. Sinks keep the rows that they got; the command names those that may hold
    such rows. Rows that a sink did not have yet will not reach it, and are counted. If something is left to do, the
    command says so and ends with 1: run it again then.
    """
    target = call.lake.dataset(dataset).name
    if not dry_run:
        question = f"Delete every row of {target} that meets the condition? It cannot be undone."
        call.confirm(question, refusal=f"nothing of {target} is purged")
    deletion = partial(call.lake.maintenance.purge, dataset, where, keep_snapshots=keep_snapshots)
    run = _run(call, partial(deletion, dry_run=dry_run))
    call.exit(FailedError.exit_code if run.result is not None and run.result["left"] else 0)


def _run(call: Call, work: Callable[..., RunResult[Any]]) -> MaintenanceRun:
    with call.bar() as bar:
        run = work(progress=bar.step).run
    call.show(lake_documents.maintenance_run(run), *maintain.render_run(run))
    return run


@command(history)
def runs(
    call: Call,
    dataset: str | None = typer.Argument(
        None, metavar="DATASET", help="Only of this dataset.", show_default="all datasets"
    ),
    kind: MaintenanceKind | None = typer.Option(None, help="Only of this kind.", show_default="all"),
    limit: int = typer.Option(20, metavar="N", min=1, help="Show at most N runs."),
) -> None:
    """The latest runs, newest first: when, begun by whom, and with which outcome."""
    found = call.lake.maintenance.runs(dataset, kind, runs_max=limit)
    call.show({"runs": [lake_documents.maintenance_run(r) for r in found]}, maintain.runs(found))


MaintenanceRunArgument = Annotated[int, typer.Argument(metavar="RUN", help="Its number, from `maintenance runs`.")]


@command(history)
def show(call: Call, run: MaintenanceRunArgument) -> None:
    """One run, with all that it recorded."""
    found = call.lake.maintenance.get(run)
    call.show(lake_documents.maintenance_run(found), *maintain.shown(found))


@command(history)
def cancel(call: Call, run: MaintenanceRunArgument) -> None:
    """Call a run off, whichever process does it. It ends before its next durable step; what it has committed stays."""
    found = call.lake.maintenance.cancel(run)
    call.show(lake_documents.maintenance_run(found), *maintain.shown(found))
