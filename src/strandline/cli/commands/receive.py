"""receive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from strandline.cli.command import DELIVERY, EVENT_LINES, Call, command, host_option, port_option
from strandline.cli.loops import Loop, begin_daemon, lease_loops, run_loops

if TYPE_CHECKING:
    from strandline.cli.daemon_log import DaemonLog
    from strandline.lake import Lake

app = typer.Typer()


@command(app, panel=DELIVERY, json_help=EVENT_LINES)
def receive(
    call: Call,
    host: str | None = host_option("receive"),
    port: int | None = port_option("receive"),
    ingest: bool = typer.Option(
        True,
        "--ingest/--no-ingest",
        help="Ingest received rows, or leave that to another receiver or to `strandline run`: then no JVM starts.",
    ),
) -> None:
    """Receive rows over HTTP, in the foreground, until SIGTERM or Ctrl-C. It ends when requests under way are answered.

    Takes bodies of `forward` sinks, and of any HTTP client that has a token (`strandline token create`). A body that is
    answered with 202 is durable, and is ingested soon after, by time or size. Several receivers of one lake may run at
    the same time. If one of them dies, another one or `strandline run` ingests what it left. Starts no JVM before there
    are rows to ingest.
    """
    journal = begin_daemon(call)
    receiving = receiver_loop(call.lake, journal, host=host, port=port, ingest=ingest)
    run_loops(call, journal, [receiving, *lease_loops(call.lake)])


def receiver_loop(
    lake: Lake, journal: DaemonLog, *, host: str | None = None, port: int | None = None, ingest: bool = True
) -> Loop:
    receiver = lake.receiver
    return Loop("intake", lambda control: receiver.serve(control, journal, host=host, port=port, ingest=ingest))
