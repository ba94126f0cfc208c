"""replication status."""

from __future__ import annotations

import time
from contextlib import suppress

import typer
from rich.console import Group, RenderableType

from strandline.cli.command import Call, command
from strandline.cli.render import replication as render_replication
from strandline.core.errors import UsageError
from strandline.status import replication_documents as documents
from strandline.status.leadership import ArbiterStatus, ask_arbiter, last_of_arbiter
from strandline.status.replication import ReplicationStatus, load_replication

WATCH_SECONDS = 2.0

app = typer.Typer(name="replication", help="The leader and the followers of this site, and their progress.")


@app.callback()
def _group() -> None:
    """Keeps `status` a command of its own, though it is the only one."""


@command(app)
def status(
    call: Call,
    watch: bool = typer.Option(False, "--watch", help="Show it again every two seconds, until Ctrl-C."),
) -> None:
    """The progress of replication in each shard, and what to do if something fails. Starts no JVM.

    At a leader: its followers, as they last reported. At a follower: its leader, when it last answered, and for each
    shard what is applied, what is recorded, and the lag. An unknown figure is ? here and null in JSON. With an arbiter:
    which site leads, as its record says.
    """
    if watch and (call.as_json or not call.out.is_terminal):
        raise UsageError("--watch is for a terminal", hint="In a script, call `strandline replication status --json`.")
    if not watch:
        found = _load(call, ask_arbiter(call.lake.replication))
        call.show(documents.replication(found), *render_replication.replication(found))
        return
    from rich.live import Live

    with suppress(KeyboardInterrupt), Live(_shown(call), console=call.out, auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_SECONDS)
            live.update(_shown(call), refresh=True)


def _load(call: Call, arbiter: ArbiterStatus | None) -> ReplicationStatus:
    return load_replication(call.lake.config, call.lake.ledger, call.lake.id, arbiter)


def _shown(call: Call) -> RenderableType:
    return Group(*render_replication.replication(_load(call, last_of_arbiter(call.lake.replication))))
