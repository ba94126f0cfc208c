"""init, demo, doctor."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import typer

from strandline.cli.command import START, Call, command
from strandline.cli.render import lake as render_lake
from strandline.core.errors import FailedError

app = typer.Typer()


@command(app, panel=START)
def init(
    call: Call,
    folder: Path | None = typer.Argument(None, metavar="DIR", help="The lake's folder.", show_default="here"),
    warehouse: str = typer.Option(
        "warehouse", metavar="URL", help="Where the tables live: a folder in DIR, or s3://bucket/prefix."
    ),
    ledger: str = typer.Option(
        "ledger.db", metavar="URL", help="Strandline's own state: a SQLite file in DIR, or postgresql://…"
    ),
) -> None:
    """Create a lake."""
    from strandline.core.settings.lake_config import CONFIG_NAME
    from strandline.lake_admin import init_lake

    home = folder or _home_of(call.config)
    with init_lake(home, warehouse=warehouse, ledger=ledger) as lake:
        path = lake.config.home / CONFIG_NAME
        document = {"lake": lake.id, "config": path, "warehouse": lake.config.warehouse_url}
        call.show(document, render_lake.initialised(lake.id, path))


def _home_of(config: Path | None) -> Path:
    from strandline.core.settings.lake_config import CONFIG_NAME

    if config is None:
        return Path()
    return config.parent if config.name == CONFIG_NAME else config


@command(app, panel=START, ignores_config="Ignored: the demo makes a lake of its own.")
def demo(
    call: Call,
    folder: Path | None = typer.Option(
        None, "--dir", metavar="DIR", help="An empty folder for the demo's lake.", show_default="a temporary one"
    ),
    keep: bool = typer.Option(False, "--keep", help="Do not delete the demo's lake."),
    serve: bool = typer.Option(False, "--serve", help="Serve the lake's dashboard at the end, until Ctrl-C."),
) -> None:
    """Show the whole job on a lake of its own: bad rows, repeats, a killed writer, and every row exactly once."""
    from strandline.cli.demo.ingest_and_read import run_demo

    held = run_demo(call, folder, keep=keep or folder is not None, serve=_serve if serve else None)
    call.exit(0 if held else FailedError.exit_code)


def _serve(home: Path) -> None:
    from strandline.cli.commands.serve import serve_until_stopped
    from strandline.core.settings.lake_config import CONFIG_NAME

    with closing(Call(home / CONFIG_NAME, as_json=False, yes=False)) as call:
        serve_until_stopped(call)


@command(app, panel=START)
def doctor(
    call: Call,
    prepare: bool = typer.Option(False, "--prepare", help="Download what is missing: the Iceberg runtime."),
) -> None:
    """Check the machine and the lake, and say what is missing. Works without a lake."""
    from strandline.cli.doctor import all_checks, is_s3

    if prepare:
        from strandline.iceberg.session.runtime import ensure_runtime

        with call.working("Downloading the Iceberg runtime") as say:
            ensure_runtime(s3=is_s3(call.config), progress=say)
    checks = all_checks(call.config)
    ok = all(c.ok for c in checks)
    call.show({"ok": ok, "checks": checks}, *render_lake.checks(checks))
    call.exit(0 if ok else FailedError.exit_code)
