"""run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import typer

from strandline.cli.command import DELIVERY, EVENT_LINES, Call, command, host_option, port_option
from strandline.cli.commands.follow import follow_loop
from strandline.cli.commands.receive import receiver_loop
from strandline.cli.commands.serve import InsecureOption, api_loop
from strandline.cli.daemon_log import DaemonLog
from strandline.cli.loops import Loop, lease_loops, open_log, run_loops
from strandline.core.actor import Actor, Trigger, set_process_actor, system_user
from strandline.jobs.loop import LoopStates
from strandline.lake import Lake

app = typer.Typer()


@command(app, panel=DELIVERY, json_help=EVENT_LINES)
def run(
    call: Call,
    serve: bool = typer.Option(False, "--serve", help="Also serve the API and the dashboard, as `strandline serve`."),
    receive: bool = typer.Option(False, "--receive", help="Also take rows in over HTTP, as `strandline receive`."),
    host: str | None = host_option("serve"),
    port: int | None = port_option("serve"),
    insecure_http: InsecureOption = False,
) -> None:
    """Keep the lake going, in the foreground, until SIGTERM or Ctrl-C: deliver to all sinks, ingest what receivers took
    in, and run maintenance and the reconciler by their schedules. At a site that follows another one, keep up with it
    instead of delivering and taking rows in. When the site is promoted, or rejoins, it goes on as what it is then.

    Several of these may run over one ledger: they share the work. Writes a line for each sink that a tick did something
    for, for each batch and for each run, and nothing while all is quiet. Sinks and schedules that are added or changed
    meanwhile are noticed. Starts no JVM before there is something to do. When it is told to stop, work under way is
    called off at its next durable step, and Spark's jobs are cancelled; it ends within run.stop_seconds_max, and the
    next process goes on from there. --host, --port and --insecure-http are for --serve.
    """
    lake, journal, states = call.lake, open_log(call), LoopStates()
    set_process_actor(Actor(system_user(), Trigger.DAEMON))
    loops = list(site_loops(lake, journal, receive=receive))
    if serve:
        loops.append(api_loop(lake, journal, states, host=host, port=port, insecure_http=insecure_http))
    journal.serving([s.name for s in lake.delivery.list_sinks()])
    run_loops(call, journal, loops, states)


def site_loops(lake: Lake, journal: DaemonLog, *, receive: bool) -> Iterator[Loop]:
    """What a site does by itself, whether it leads or follows: each loop asks for that in every pass. A new loop is
    added here."""
    # The parts of the lake are made here, by one thread.
    delivery, maintenance, reconciler, receiver = lake.delivery, lake.maintenance, lake.reconciler, lake.receiver
    yield Loop("delivery", lambda control: delivery.run(control, journal.tick))
    # Both run always: a schedule may be applied at any time.
    scheduled = partial(journal.scheduled, lake)
    yield Loop("maintenance", lambda control: maintenance.run(control, journal.begun, journal.ended, scheduled))
    heard = (journal.sweeping, journal.swept, journal.sweep_scheduled, journal.sweep_busy)
    yield Loop("reconcile", lambda control: reconciler.run_on_schedule(control, *heard))
    yield from lease_loops(lake)
    yield follow_loop(lake, journal)
    if receive:
        yield receiver_loop(lake, journal)
    else:
        yield Loop("intake", receiver.intake(journal.batch).run)
