"""rejoin."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from strandline.cli.command import Call, command
from strandline.cli.render import rejoined as render
from strandline.core import failpoints
from strandline.status.documents import replication_documents as documents

app = typer.Typer()


@command(app, asks=True)
def rejoin(
    call: Call,
    leader: Annotated[str, typer.Argument(metavar="LEADER", help="The new leader's URL, or its settings file.")],
    token: str | None = typer.Option(
        None, metavar="SOURCE", help="Where the token of `strandline follower add` is found: env:NAME or file:PATH."
    ),
) -> None:
    """Make this site follow LEADER, which leads the lake in a later term.

    For a leader that was replaced, and for its other followers. A former leader accepts no more rows. The next
    `strandline follow` writes the rows that LEADER lacks to files, with their batch ids, and removes them from the
    tables. Bodies that the receiver acknowledged and never ingested are copied to files at once. If the command is
    killed, run it again.
    """
    from strandline.core.settings.lake_config import find_config, load_config
    from strandline.lake_admin import rejoin_lake

    failpoints.arm_from(os.environ)
    config = load_config(find_config(call.config, os.environ, Path.cwd()))

    def confirm(led_in_term: int, term: int) -> None:
        call.confirm(
            f"This site leads in term {led_in_term}, {leader} in term {term}. Follow it? Rows that it lacks are "
            "written to files and removed from the tables here.",
            refusal="this site stays as it is",
        )

    found = rejoin_lake(config, leader, token=token, confirm=confirm)
    call.show(documents.rejoined(found), *render.lines(found))
