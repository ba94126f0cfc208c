"""run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from strandline.cli.command import DELIVERY, EVENT_LINES, Call, command, host_option, port_option
from strandline.cli.commands.follow import follow_loop
from strandline.cli.commands.receive import receiver_loop
from strandline.cli.commands.serve import InsecureOption, api_loop
from strandline.cli.loops import Loop, begin_daemon, lease_loops, run_loops
from strandline.jobs.loop import LoopStates

if TYPE_CHECKING:
    from strandline.cli.daemon_log import DaemonLog
    from strandline.lake import Lake

app = typer.Typer()


@command(app, panel=DELIVERY, json_help=EVENT_LINES)
def run(
    call: Call,
    serve: bool = typer.Option(False, "--serve", help="Also serve the API and the dashboard, as `strandline serve`."),
    receive: bool = typer.Option(False, "--receive", help="Also receive rows over HTTP, as `strandline receive`."),
    host: str | None = host_option("serve"),
    port: int | None = port_option("serve"),
    insecure_http: InsecureOption = False,
) -> None:
    """Run the lake, in the foreground, until SIGTERM or Ctrl-C: deliver to all sinks, ingest received rows, and run
    maintenance and the reconciler by their schedules. A site that follows another one applies its leader's rows instead
    of delivering and ingesting. When the site is promoted or rejoins, the process changes its work, without a restart.

    Several of these processes may run over one ledger and share the work. Logs a line for each sink that a tick served,
    each batch and each run, and nothing while there is no work. Notices sinks and schedules that are added or changed
    meanwhile. Starts no JVM before there is something to do. On SIGTERM, work under way is called off at its next
    durable step, and Spark's jobs are cancelled. The process ends within run.stop_seconds_max, and the next one
    continues from there. --host, --port and --insecure-http are for --serve.
    """
    lake, journal, states = call.lake, begin_daemon(call), LoopStates()
    loops = list(site_loops(lake, journal, receive=receive))
    if serve:
        loops.append(api_loop(lake, journal, states, host=host, port=port, insecure_http=insecure_http))
    journal.serving([s.name for s in lake.delivery.list_sinks()])
    run_loops(call, journal, loops, states)


def site_loops(lake: Lake, journal: DaemonLog, *, receive: bool) -> Iterator[Loop]:
    """The loops of a site, whether it leads or follows: each loop checks that in every pass. A new loop is added
    here."""
    # The parts of the lake are made here, by one thread.
    delivery, maintenance, reconciler, receiver = lake.delivery, lake.maintenance, lake.reconciler, lake.receiver
    yield Loop("delivery", lambda control: delivery.run(control, journal.tick))
    # Both always run: a schedule may be applied at any time.
    yield Loop("maintenance", lambda control: maintenance.run(control, journal))
    yield Loop("reconcile", lambda control: reconciler.run_on_schedule(control, journal))
    yield from lease_loops(lake)
    yield follow_loop(lake, journal)
    if receive:
        yield receiver_loop(lake, journal)
    else:
        yield Loop("intake", receiver.intake(journal.batch).run)
