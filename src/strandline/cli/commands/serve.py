"""serve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.command import EVENT_LINES, Call, command, host_option, port_option
from strandline.cli.loops import Loop, begin_daemon, lease_loops, run_loops
from strandline.jobs.loop import LoopControl, LoopStates

if TYPE_CHECKING:
    from strandline.cli.daemon_log import DaemonLog
    from strandline.lake import Lake

app = typer.Typer()

InsecureOption = Annotated[
    bool,
    typer.Option(
        "--insecure-http",
        help="Listen without TLS although other machines may reach the address: tokens and cookies are then sent in "
        "plain text, unless a proxy in front encrypts.",
    ),
]


@command(app, json_help=EVENT_LINES)
def serve(
    call: Call,
    host: str | None = host_option("serve"),
    port: int | None = port_option("serve"),
    insecure_http: InsecureOption = False,
) -> None:
    """Serve the HTTP API and the dashboard of the lake, in the foreground, until SIGTERM or Ctrl-C. `strandline run
    --serve` does so beside delivery.

    Every request needs a token with a role: `strandline token create NAME --role read` (or `admin`). Listens on this
    machine only, by default; another address needs a certificate (serve.tls_certificate) or --insecure-http.
    Requests under way are answered before it ends, and long work is called off at its next durable step. Starts no JVM
    before a request needs one. The description of the API is at /api/v1/openapi.json.
    """
    serve_until_stopped(call, host=host, port=port, insecure_http=insecure_http)


def serve_until_stopped(call: Call, **options: Any) -> None:
    journal, states = begin_daemon(call), LoopStates()
    run_loops(call, journal, [api_loop(call.lake, journal, states, **options), *lease_loops(call.lake)], states)


def api_loop(lake: Lake, journal: DaemonLog, states: LoopStates, **options: Any) -> Loop:
    """`/readyz` shows the states of the loops."""

    def serving(control: LoopControl) -> None:
        from strandline.serve.server import serve_lake

        serve_lake(lake, control.stopping, on_listening=journal.listening, loops=states, **options)

    return Loop("api", serving)
