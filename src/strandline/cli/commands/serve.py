"""serve."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import typer

from strandline.cli.daemon import EventLog, stopped_by_signals, wait_for
from strandline.cli.options import CARE, ConfigOption, opened


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=CARE)(serve)


def serve(
    host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="The address to listen on.", show_default="serve.host of the settings"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            metavar="PORT",
            help="The port to listen on; 0 is any that is free.",
            show_default="serve.port of the settings",
        ),
    ] = None,
    insecure_http: Annotated[
        bool,
        typer.Option(
            "--insecure-http",
            help="Listen without TLS although other machines may reach the address: tokens and cookies are then sent "
            "in plain text, unless a proxy in front encrypts.",
        ),
    ] = False,
    config: ConfigOption = None,
    json: Annotated[
        bool,
        typer.Option("--json", help="One JSON document per line on standard output, as in a pipe; one for each event."),
    ] = False,
) -> None:
    """Serve the HTTP API of the lake, in the foreground, until SIGTERM or Ctrl-C.

    Every request needs a token with a role: `strandline token create NAME --role read` (or `admin`). Listens on this
    machine only, unless told otherwise; elsewhere only with a certificate (serve.tls_certificate) or --insecure-http.
    Requests under way are answered before it ends, and long work is called off at its next durable step. Starts no JVM
    before a request needs one. The description of the API is at /api/v1/openapi.json.
    """
    with opened(config) as lake:
        journal = EventLog(as_json=json or not sys.stdout.isatty())
        stopping = threading.Event()
        lake.on_start = lambda words: journal.write("starting", what=words)

        def work() -> None:
            from strandline.serve.server import serve_lake

            serve_lake(
                lake,
                stopping,
                host=host,
                port=port,
                insecure_http=insecure_http,
                on_listening=lambda url: journal.write("listening", url=url),
            )

        with stopped_by_signals(stopping, journal), ThreadPoolExecutor(1, "strandline-serve") as pool:
            # Not in the main thread, where PySpark would replace our handler for Ctrl-C by its own.
            wait_for(stopping, pool.submit(work))
        journal.write("stopped")
