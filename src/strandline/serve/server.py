"""Serves a lake until it gets a signal to stop."""

from __future__ import annotations

import ipaddress
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from strandline.core.errors import RefusedError
from strandline.http.limits import HttpLimits
from strandline.http.server import Server, address, listen, tls_files

if TYPE_CHECKING:
    from strandline.jobs.loop import LoopStates
    from strandline.lake import Lake

# One thread answers all requests. While another one computes (reads the status of a large lake), Python lets it wait
# for 5 ms whenever it has sent or received something; with many clients that adds up.
_SWITCH_SECONDS = 0.0005


def serve_lake(
    lake: Lake,
    stopping: threading.Event,
    *,
    host: str | None = None,
    port: int | None = None,
    insecure_http: bool = False,
    on_listening: Callable[[str], None] = lambda url: None,
    loops: LoopStates | None = None,
) -> None:
    """Answers requests until `stopping` is set, then finishes those under way and calls long work off. `on_listening`
    gets the address; `/readyz` also shows `loops`. Raises RefusedError for an address that other machines reach without
    TLS, unless `insecure_http` says that this is meant."""
    from strandline.serve.app import create_app

    sys.setswitchinterval(_SWITCH_SECONDS)
    settings = lake.config.settings.serve
    where = settings.host if host is None else host
    tls = tls_files(lake.config, settings.tls_certificate, settings.tls_key, section="serve")
    if tls is None and not insecure_http:
        check_loopback(where)
    listening = listen(where, settings.port if port is None else port, section="serve")
    url = address(listening, tls=tls is not None)
    try:
        app = create_app(lake, tls=tls is not None, loops=loops)
    except BaseException:
        listening.close()
        raise
    last_seconds_max = lake.config.settings.run.part_seconds_max
    limits = HttpLimits(settings.connections_max, settings.head_seconds_max, last_seconds_max)
    server = Server(app, listening, tls, limits)
    try:
        server.start()
        on_listening(url)
        server.wait(stopping)
    finally:
        app.state.context.end()
        server.stop()


def check_loopback(host: str) -> None:
    """Raises RefusedError for an address that other machines may reach."""
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = host.lower() == "localhost"
    if not is_loopback:
        raise RefusedError(
            f"other machines may reach {host}, and tokens would be sent to it in plain text",
            hint="Set serve.tls_certificate and serve.tls_key, or pass --insecure-http if a proxy encrypts.",
        )
