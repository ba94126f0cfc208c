"""ledger rebuild, backup, open, void."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from strandline.cli.options import ConfigOption, JsonOption, YesOption, confirm, opened, opened_with_spark
from strandline.cli.output import Output
from strandline.cli.render import common
from strandline.core.errors import RefusedError, StorageError
from strandline.core.settings import find_config, load_config
from strandline.lake_admin import rebuild_ledger
from strandline.status import documents

app = typer.Typer(help="Look after the ledger: the lake's own state.")


@app.command()
def rebuild(
    force: Annotated[
        bool, typer.Option("--force", help="Also where the ledger can be read; it is kept aside.")
    ] = False,
    lost_witness: Annotated[
        bool, typer.Option("--lost-witness", help="The witness is gone, the ledger is whole: make the witness again.")
    ] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Make a lost or damaged ledger again, from the tables and the witness."""
    out = Output(as_json=json)
    settings = load_config(find_config(config, os.environ, Path.cwd()))
    with out.working("Starting Spark") as say:
        done = rebuild_ledger(settings, force=force, lost_witness=lost_witness, on_start=say)
    out.show(documents.resynced(done), common.resynced(done, "The ledger is made again"))


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="Where the copy goes.", show_default=False)],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """A consistent copy of a SQLite ledger, whoever writes to it meanwhile."""
    if target.exists():
        raise RefusedError(f"there is something at {target} already", hint="Name a new file; a backup replaces none.")
    if not target.absolute().parent.is_dir():
        raise StorageError(f"there is no folder {target.absolute().parent}")
    with opened(config) as lake:
        lake.ledger.backup(target)
    size = target.stat().st_size
    Output(as_json=json).show(
        {"backup": target, "bytes": size}, common.done(f"The ledger is copied to {target} ({size:,} bytes)")
    )


@app.command()
def resync(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Bring a restored ledger up to the witness, and settle what is open. Ingest does the same when it must."""
    out = Output(as_json=json)
    with opened_with_spark(config, out, "Resyncing the ledger") as lake:
        done = lake.resync_ledger()
        settled = lake.recover()
    out.show(
        {"resynced": None if done is None else documents.resynced(done)} | documents.recovered(settled),
        common.done("Ledger and witness agree") if done is None else common.resynced(done, "The ledger is resynced"),
        common.recovered(settled),
    )


@app.command()
def void(
    lo: Annotated[int, typer.Argument(metavar="LO", help="The block's first number.", min=1, show_default=False)],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it is kept in the audit.", show_default=False)],
    yes: YesOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Give up a committed block that cannot be published. Its rows are lost to the lake; this is audited."""
    out = Output(as_json=json)
    with opened(config) as lake:
        confirm(
            out,
            yes=yes,
            question=f"Give up the block that begins at {lo}, with all its rows?",
            refusal=f"the block at {lo} is not given up",
        )
        with out.working("Starting Spark") as say:
            lake.on_start = say
            lake.void_block(lo, reason)
    out.show({"voided": lo, "reason": reason}, common.done(f"The block at {lo} is given up: {reason}"))
