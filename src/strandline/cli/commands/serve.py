"""serve."""

from __future__ import annotations

import sys
from functools import partial

import typer

from strandline.cli.command import EVENT_LINES, Call, command
from strandline.cli.daemon import EventLog, run_loops

app = typer.Typer()


@command(app, json_help=EVENT_LINES)
def serve(
    call: Call,
    host: str | None = typer.Option(
        None, metavar="ADDRESS", help="The address to listen on.", show_default="serve.host of the settings"
    ),
    port: int | None = typer.Option(
        None,
        min=0,
        max=65_535,
        metavar="PORT",
        help="The port to listen on; 0 is any that is free.",
        show_default="serve.port of the settings",
    ),
    insecure_http: bool = typer.Option(
        False,
        "--insecure-http",
        help="Listen without TLS although other machines may reach the address: tokens and cookies are then sent in "
        "plain text, unless a proxy in front encrypts.",
    ),
) -> None:
    """Serve the HTTP API of the lake, in the foreground, until SIGTERM or Ctrl-C.

    Every request needs a token with a role: `strandline token create NAME --role read` (or `admin`). Listens on this
    machine only, unless told otherwise; elsewhere only with a certificate (serve.tls_certificate) or --insecure-http.
    Requests under way are answered before it ends, and long work is called off at its next durable step. Starts no JVM
    before a request needs one. The description of the API is at /api/v1/openapi.json.
    """
    from strandline.serve.server import serve_lake

    journal = EventLog(as_json=call.as_json or not sys.stdout.isatty())

    def listening(url: str) -> None:
        journal.write("listening", url=url)

    serving = partial(serve_lake, host=host, port=port, insecure_http=insecure_http, on_listening=listening)
    run_loops(call.lake, journal, lambda stopping: [partial(serving, call.lake, stopping)])
