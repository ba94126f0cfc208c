"""migrate: a ledger to this version of the program, or a lake to another place."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import typer

from strandline.cli.command import CARE, Call, command
from strandline.cli.render import lake as render_lake
from strandline.cli.render.progress import one_bar
from strandline.core.errors import RefusedError, UsageError
from strandline.status.documents import lake_documents

app = typer.Typer()


@command(app, panel=CARE, asks=True)
def migrate(
    call: Call,
    to: Path | None = typer.Option(
        None,
        "--to",
        metavar="FILE",
        help="Move the lake to the ledger, catalog and warehouse that this settings file names. It is in the folder of "
        "the present one, and replaces it at the end.",
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="With --to: show what would move, and what hinders it."),
    accept_settings: bool = typer.Option(
        False,
        "--accept-settings",
        help="With --to: also change `replication.arbiter` and `deliver.wait_for`, which other sites may rely on.",
    ),
    abort: bool = typer.Option(
        False,
        "--abort",
        help="Call an interrupted move off: the lake stays where it was. Not possible after the commit point.",
    ),
) -> None:
    """Migrate an older ledger to this version of the program, and keep a copy. Every command does so when it opens an
    older ledger. With --to: move the lake to another place. Nobody can write meanwhile. To continue an interrupted
    move, run the command again."""
    from strandline.core.settings.lake_config import find_config

    settings = find_config(call.config, os.environ, Path.cwd())
    if abort and (to is not None or dry_run or accept_settings):
        raise UsageError("--abort goes with no other option", hint="It needs neither --to nor --dry-run.")
    if (dry_run or accept_settings) and to is None:
        given = "--dry-run" if dry_run else "--accept-settings"
        raise UsageError(f"{given} needs --to", hint="Name the settings file of the new place.")
    if abort:
        _abort(call, settings)
    elif to is not None:
        _move(call, settings, to, dry_run=dry_run, accept_settings=accept_settings)
    else:
        _upgrade(call, settings)


def _upgrade(call: Call, settings: Path) -> None:
    from strandline.core.settings.lake_config import load_config
    from strandline.ledger.engine import Ledger

    with closing(Ledger(load_config(settings))) as ledger:
        migrated = ledger.open()
        version = ledger.revision()
    call.show(lake_documents.migrated(migrated, version), render_lake.migrated(migrated, version))


def _move(call: Call, settings: Path, to: Path, *, dry_run: bool, accept_settings: bool) -> None:
    from strandline.cli.render.moved_lake import moved
    from strandline.migrate.run import Migration
    from strandline.status.documents.moved_lake import move_report

    migration = Migration(settings, to, accept_settings)
    if not dry_run and not migration.is_done:
        question = f"Move the lake of {settings} to the places in {to}? Nobody can write to it until it has moved."
        if migration.changed_settings:
            question += f" These settings change as well: {', '.join(migration.changed_settings)}."
        call.confirm(question, refusal="the lake does not move")
    with one_bar(call, "looking at the lake") as bar:
        migration.on_progress = bar.step
        report = migration.run(dry_run=dry_run)
    call.show(move_report(report), *moved(report))
    call.exit(RefusedError.exit_code if report.obstacles else 0)


def _abort(call: Call, settings: Path) -> None:
    from strandline.cli.render.moved_lake import called_off
    from strandline.migrate.run import call_off

    tables = call_off(settings)
    call.show({"called_off": True, "tables": tables}, called_off(tables))
