"""replication status."""

from __future__ import annotations

import typer
from rich.console import Group, RenderableType

from strandline.cli.command import Call, command
from strandline.cli.render import replication as render_replication
from strandline.cli.watch import WatchOption, watch
from strandline.status import replication_documents as documents
from strandline.status.leadership import ArbiterStatus, ask_arbiter, last_of_arbiter
from strandline.status.replication import ReplicationStatus, load_replication

app = typer.Typer(name="replication", help="The leader and the followers of this site, and their progress.")


@app.callback()
def _group() -> None:
    """Keeps `status` a command of its own, though it is the only one."""


@command(app)
def status(call: Call, watching: WatchOption = False) -> None:
    """The progress of replication in each shard, and what to do if something fails. Starts no JVM.

    At a leader: its followers, as they last reported. At a follower: its leader, when it last answered, and for each
    shard what is applied, what is recorded, and the lag. An unknown figure is ? here and null in JSON. With an arbiter:
    which site leads, as its record says.
    """
    if watching:
        watch(call, lambda: _shown(call), once="strandline replication status")
        return
    found = _load(call, ask_arbiter(call.lake.replication))
    call.show(documents.replication(found), *render_replication.replication(found))


def _load(call: Call, arbiter: ArbiterStatus | None) -> ReplicationStatus:
    return load_replication(call.lake.config, call.lake.ledger, call.lake.id, arbiter)


def _shown(call: Call) -> RenderableType:
    return Group(*render_replication.replication(_load(call, last_of_arbiter(call.lake.replication))))
