"""follow, and its init."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.command import EVENT_LINES, Call, command, with_call
from strandline.cli.loops import Loop, begin_daemon, run_loops
from strandline.cli.render import lake as render_lake
from strandline.cli.render import replication as render_replication
from strandline.core.errors import FailedError
from strandline.status.documents import replication_documents as documents

if TYPE_CHECKING:
    from strandline.cli.daemon_log import DaemonLog
    from strandline.lake import Lake
    from strandline.ledger.replicate.sites import Site

app = typer.Typer(name="follow", invoke_without_command=True)


def follow(
    call: Call,
    context: typer.Context,
    once: bool = typer.Option(False, "--once", help="Apply what the leader has now, and end."),
) -> None:
    """Apply what the leader publishes, in the foreground, until SIGTERM or Ctrl-C. `strandline run` does it, too.

    Polls the leader every follow.poll_seconds, and starts no JVM before there is something new. Several of these
    processes may run over one ledger and share the work. Items of different shards are applied in parallel. If the site
    is promoted meanwhile, the process waits until the site follows again.
    """
    if context.invoked_subcommand is not None:
        return
    call.lake.replication.check_follows()
    if once:
        with call.spinner("Asking the leader") as lake:
            report = lake.replication.follow_once()
        call.show(documents.follow_pass(report), *render_replication.one_pass(report))
        call.exit(FailedError.exit_code if report.failed else 0)
        return
    journal = begin_daemon(call)
    run_loops(call, journal, [follow_loop(call.lake, journal)])


app.callback()(with_call(follow, json_help=EVENT_LINES))


def follow_loop(lake: Lake, journal: DaemonLog) -> Loop:
    """The loop that follows the leader. While the site leads, the loop waits."""
    replication = lake.replication

    def changed(site: Site) -> None:
        journal.write("follows" if site.follows else "leads", leader=site.leader, term=site.term)

    return Loop("follow", lambda control: replication.follow(control, journal.followed, changed))


@command(app)
def init(
    call: Call,
    leader: Annotated[str, typer.Argument(metavar="LEADER", help="The leader's URL, or its settings file.")],
    folder: Path | None = typer.Argument(None, metavar="DIR", help="The new site's folder.", show_default="here"),
    token: str | None = typer.Option(
        None, metavar="SOURCE", help="Where the token of `strandline follower add` is found: env:NAME or file:PATH."
    ),
    warehouse: str = typer.Option(
        "warehouse", metavar="URL", help="Where this site's tables live: a folder in DIR, or s3://bucket/prefix."
    ),
    ledger: str = typer.Option(
        "ledger.db", metavar="URL", help="This site's own state: a SQLite file in DIR, or postgresql://…"
    ),
) -> None:
    """Create a site that follows LEADER: the same lake, with a warehouse and a ledger of its own.

    Run it again to change the address of the same leader, or after the site's ledger was lost: the tables stay, and
    the new ledger learns from the leader what is in them.
    """
    from strandline.core.settings.lake_config import CONFIG_NAME
    from strandline.lake_admin import follow_lake

    home = folder or (Path() if call.config is None else call.config.parent)
    with follow_lake(home, leader, token=token, warehouse=warehouse, ledger=ledger) as lake:
        path = lake.config.home / CONFIG_NAME
        site = lake.replication.site
        document = documents.new_site(lake.id, path, lake.config.warehouse_url, site.leader)
        call.show(document, render_lake.follows(lake.id, path, site.leader or ""))
