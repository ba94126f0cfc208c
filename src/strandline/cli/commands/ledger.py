"""ledger rebuild, backup, resync, void."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from strandline.cli.command import Call, command
from strandline.cli.render import lake as render_lake
from strandline.cli.render.elements import done
from strandline.core.errors import RefusedError, StorageError
from strandline.status.documents import lake_documents

app = typer.Typer(name="ledger", help="Look after the ledger: the lake's own state.")


@command(app)
def rebuild(
    call: Call,
    force: bool = typer.Option(
        False, "--force", help="Rebuild even if the present ledger can be read; the old file is renamed."
    ),
    lost_witness: bool = typer.Option(
        False, "--lost-witness", help="The ledger is intact and only the witness is lost: write the witness again."
    ),
) -> None:
    """Create a lost or damaged ledger again, from the tables and the witness."""
    from strandline.core.settings.lake_config import find_config, load_config
    from strandline.lake_admin import rebuild_ledger

    settings = load_config(find_config(call.config, os.environ, Path.cwd()))
    with call.working("Starting Spark") as say:
        made = rebuild_ledger(settings, force=force, lost_witness=lost_witness, on_start=say)
    call.show(lake_documents.resynced(made), render_lake.resynced(made, "The ledger is rebuilt"))


@command(app)
def backup(call: Call, target: Path = typer.Argument(metavar="FILE", help="The file to create.")) -> None:
    """Copy a SQLite ledger. The copy is consistent, also while other processes write."""
    if target.exists():
        raise RefusedError(f"{target} exists already", hint="Name a new file; a backup replaces none.")
    if not target.absolute().parent.is_dir():
        raise StorageError(f"there is no folder {target.absolute().parent}")
    call.lake.ledger.backup(target)
    size = target.stat().st_size
    call.show({"backup": target, "bytes": size}, done(f"The ledger is copied to {target} ({size:,} bytes)"))


@command(app)
def resync(call: Call) -> None:
    """Bring a restored ledger up to the witness, and settle open blocks. Ingest does the same when it needs to."""
    with call.spark("Resyncing the ledger") as lake:
        found = lake.ingestion.resync_ledger(rebuild=False)
        settled = lake.recover()
    call.show(
        {"resynced": None if found is None else lake_documents.resynced(found)} | lake_documents.recovered(settled),
        done("Ledger and witness agree") if found is None else render_lake.resynced(found, "The ledger is resynced"),
        render_lake.recovered(settled),
    )


@command(app, asks=True)
def void(
    call: Call,
    lo: int = typer.Argument(metavar="LO", help="The block's first sequence number.", min=1),
    reason: str = typer.Option(metavar="TEXT", help="Why; it is recorded in the audit log."),
) -> None:
    """Give up a committed block that cannot be published. Its rows never enter the lake; the audit log records it."""
    lake = call.lake
    question = f"Give up the block that begins at {lo}, with all its rows?"
    call.confirm(question, refusal=f"the block at {lo} is not given up")
    with call.spinner("Starting Spark"):
        lake.ingestion.void_block(lo, reason)
    call.show({"voided": lo, "reason": reason}, done(f"The block at {lo} is given up: {reason}"))
