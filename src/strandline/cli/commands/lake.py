"""init, doctor, status, recover, migrate, demo."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated

import typer

from strandline.cli.options import CARE, START, ConfigOption, JsonOption, opened, opened_with_spark
from strandline.cli.output import Output
from strandline.cli.render import common
from strandline.cli.render import status as render_status
from strandline.core.errors import FailedError, UsageError
from strandline.core.settings import CONFIG_NAME, find_config, load_config
from strandline.lake_admin import init_lake
from strandline.ledger.engine import Ledger
from strandline.status import documents

WATCH_SECONDS = 2.0


def add_to(app: typer.Typer, group: str) -> None:
    commands: dict[str, tuple[Callable[..., None], ...]] = {
        START: (init, demo, doctor),
        CARE: (status, recover, migrate),
    }
    for command in commands[group]:
        app.command(rich_help_panel=group)(command)


def init(
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The lake's folder.", show_default="here")
    ] = None,
    warehouse: Annotated[
        str, typer.Option(metavar="URL", help="Where the tables live: a folder in DIR, or s3://bucket/prefix.")
    ] = "warehouse",
    ledger: Annotated[
        str, typer.Option(metavar="URL", help="Strandline's own state: a SQLite file in DIR, or postgresql://…")
    ] = "ledger.db",
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Make a new lake."""
    home = folder or _home_of(config)
    with init_lake(home, warehouse=warehouse, ledger=ledger) as lake:
        path = lake.config.home / CONFIG_NAME
        document = {"lake": lake.id, "config": path, "warehouse": lake.config.warehouse_url}
        Output(as_json=json).show(document, common.initialised(lake.id, path))


def _home_of(config: Path | None) -> Path:
    if config is None:
        return Path()
    return config.parent if config.name == CONFIG_NAME else config


def demo(
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="An empty folder to work in.", show_default="a temporary one"),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the lake there to look at.")] = False,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Ignored: no lake but the demo's own is touched.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """The whole job on a lake of its own, whatever --config says: bad rows, repeats, a killed writer, and every row
    exactly once."""
    from strandline.cli.demo.ingest_and_read import run_demo

    out = Output(as_json=json)
    if not run_demo(out, folder, keep=keep or folder is not None):
        raise typer.Exit(FailedError.exit_code)


def doctor(
    prepare: Annotated[bool, typer.Option("--prepare", help="Get what is missing: the Iceberg runtime.")] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Check what Strandline needs, and say what to do about what is missing. Works without a lake."""
    from strandline.cli.doctor import all_checks, is_s3

    out = Output(as_json=json)
    if prepare:
        from strandline.iceberg.session.runtime import ensure_runtime

        with out.working("Getting the Iceberg runtime") as say:
            ensure_runtime(s3=is_s3(config), progress=say)
    checks = all_checks(config)
    ok = all(c.ok for c in checks)
    out.show({"ok": ok, "checks": checks}, *common.checks(checks))
    if not ok:
        raise typer.Exit(FailedError.exit_code)


def status(
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds, until Ctrl-C.")] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Datasets and how far each is settled, sinks and how far each is behind, what needs attention. Starts no JVM."""
    out = Output(as_json=json)
    if watch and (json or not out.out.is_terminal):
        raise UsageError("--watch is for a terminal", hint="In a script, call `strandline status --json` again.")
    with opened(config) as lake:
        if not watch:
            found = lake.status()
            out.show(documents.lake_status(found), render_status.status(found))
            return
        from rich.live import Live

        with (
            suppress(KeyboardInterrupt),  # Ctrl-C ends the watch
            Live(render_status.status(lake.status()), console=out.out, auto_refresh=False) as live,
        ):
            while True:
                time.sleep(WATCH_SECONDS)
                live.update(render_status.status(lake.status()), refresh=True)


def recover(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Settle what dead writers left: publish what was committed, abandon what was not."""
    out = Output(as_json=json)
    with opened_with_spark(config, out, "Settling open blocks") as lake:
        found = lake.recover()
    out.show(documents.recovered(found), common.recovered(found))


def migrate(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Bring an older ledger to this program's version, and keep a copy. Every command that opens it does so too."""
    settings = load_config(find_config(config, os.environ, Path.cwd()))
    with closing(Ledger(settings)) as ledger:
        done = ledger.open()
        version = ledger.revision()
    Output(as_json=json).show(documents.migrated(done, version), common.migrated(done, version))
