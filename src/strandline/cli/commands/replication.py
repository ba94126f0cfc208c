"""replication status."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from strandline.cli.command import Call, command
from strandline.cli.render import replication as render_replication
from strandline.cli.watch import WatchOption, watch
from strandline.status.documents import replication_documents as documents

if TYPE_CHECKING:
    from rich.console import RenderableType

    from strandline.status.leadership import ArbiterStatus
    from strandline.status.replication import ReplicationStatus

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
    from strandline.status.leadership import ask_arbiter

    if watching:
        watch(call, lambda: _shown(call), once="strandline replication status")
        return
    found = _load(call, ask_arbiter(call.lake.replication))
    call.show(documents.replication(found), *render_replication.replication(found))


def _load(call: Call, arbiter: ArbiterStatus | None) -> ReplicationStatus:
    from strandline.status.replication import load_replication

    return load_replication(call.lake.config, call.lake.ledger, call.lake.id, arbiter)


def _shown(call: Call) -> RenderableType:
    from rich.console import Group

    from strandline.status.leadership import last_of_arbiter

    return Group(*render_replication.replication(_load(call, last_of_arbiter(call.lake.replication))))
