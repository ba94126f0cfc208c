"""promote."""

from __future__ import annotations

import typer
from rich.text import Text

from strandline.cli.command import CARE, Call, command
from strandline.cli.render import promotion as render_promotion
from strandline.cli.render.elements import done
from strandline.core.errors import RefusedError
from strandline.status.documents import promotion_documents as documents

app = typer.Typer()


@command(app, panel=CARE, asks=True)
def promote(
    call: Call,
    leader_is_stopped: bool = typer.Option(
        False,
        "--leader-is-stopped",
        help="Without an arbiter: you have stopped the leader, and it stays stopped until it has rejoined.",
    ),
    force: bool = typer.Option(
        False,
        "--force",
        help="Promote this site although it may lack rows that sinks or other sites have: they are given up for good. "
        "Only if the leader never comes back, and no other site can be promoted.",
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Only show whether this site can be promoted, and what it lacks."
    ),
) -> None:
    """Make this follower the leader of the lake.

    With an arbiter (replication.arbiter) the command waits until the leader's lease has expired, and only one of two
    sites that are promoted at the same time wins. Items that the old leader offered and whose rows never arrived are
    given up; the command names them. If it is killed, run it again: it continues, or says which site leads.

    --force promotes a site that is no member, or that has not recorded the last take-over. It says first what may be
    lost, as far as this site knows.
    """
    promotion = call.lake.replication.promotion
    if dry_run:
        found = promotion.forecast(leader_is_stopped=leader_is_stopped, force=force)
        lacks = render_promotion.lacks(found.state) if force else ()
        call.show(documents.forecast(found), *render_promotion.forecast(found), *map(Text, lacks))
        call.exit(RefusedError.exit_code if documents.is_refused(found) else 0)
        return
    _ask(call, leader_is_stopped=leader_is_stopped, force=force)
    with call.spinner("Asking which site leads") as lake:
        say = lake.on_start or (lambda words: None)
        promoted = lake.replication.promotion.run(leader_is_stopped=leader_is_stopped, force=force, on_step=say)
    said = f"This site {'already ' if promoted.already else ''}leads, in term {promoted.term}"
    call.show(documents.promoted(promoted), done(said), *render_promotion.what_it_left(promoted))


def _ask(call: Call, *, leader_is_stopped: bool, force: bool) -> None:
    if not call.lake.replication.site.follows:
        return
    if force:
        found = call.lake.replication.promotion.forecast(leader_is_stopped=leader_is_stopped, force=True)
        if not documents.is_refused(found):
            for line in render_promotion.lacks(found.state):
                call.note(line, "yellow")
            call.confirm(
                "Give up what this site lacks, and make it the leader of the lake?",
                refusal="this site still follows its leader",
            )
    else:
        call.confirm("Make this site the leader of the lake?", refusal="this site still follows its leader")
