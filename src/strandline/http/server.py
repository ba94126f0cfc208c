"""An HTTP server in a thread: it listens, and finishes its requests before it stops."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from strandline.core.errors import ConfigError, FailedError
from strandline.core.retry import RetryPolicy
from strandline.core.settings.lake_config import LakeConfig
from strandline.http.connections import close_longest_idle, guard
from strandline.http.limits import HttpLimits
from strandline.http.tls_handshakes import Handshakes, TlsListener

if TYPE_CHECKING:
    import uvicorn

_BACKLOG = 512
_KEEP_ALIVE_SECONDS = 75  # longer than senders pause between two chunks, so that they seldom have to reconnect
_FAREWELL_SECONDS = 1.0  # how long an idle client may take to answer the TLS close
_START_SECONDS_MAX = 30.0
_CHECK_SECONDS = 0.1

TlsFiles = tuple[Path, Path]  # certificate and key


def listen(host: str, port: int, *, section: str) -> socket.socket:
    """Binds before anything else starts, so that an address in use is reported at once. `section` of the settings has
    the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(_BACKLOG)
    except OSError as e:
        made.close()
        if e.errno == errno.EADDRINUSE:
            raise FailedError(
                f"{host}:{port} is in use", hint="It may run already; --port gives this one another port."
            ) from e
        raise ConfigError(
            f"{host}:{port} cannot be listened on: {e}", hint=f"See {section}.host and {section}.port."
        ) from e
    return made


def address(listening: socket.socket, *, tls: bool) -> str:
    host, port = listening.getsockname()[:2]
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def tls_files(config: LakeConfig, certificate: str | None, key: str | None, *, section: str) -> TlsFiles | None:
    """The files that two settings of a section name; None without HTTPS. Raises ConfigError."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError(f"{section}.tls_certificate and {section}.tls_key belong together, and only one is set")
    found = config.path(certificate), config.path(key)
    for path in found:
        if not path.is_file():
            raise ConfigError(f"there is no file {path}", hint=f"See {section}.tls_certificate and {section}.tls_key.")
    return found


class Server:
    """Answers requests in a thread of its own, from `start` to `stop`."""

    def __init__(self, app: Any, listening: socket.socket, tls: TlsFiles | None, limits: HttpLimits) -> None:
        self._app = app
        self._limits = limits
        self._socket = listening
        self._tls = tls
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.failure: BaseException | None = None  # why it ended by itself

    def start(self) -> None:
        """Returns when the server answers requests. Raises ConfigError or FailedError."""
        import uvicorn

        handshakes = Handshakes()
        server = _our_server(handshakes, self._limits)(
            uvicorn.Config(
                self._app,
                log_config=None,
                access_log=False,
                ws="none",
                server_header=False,
                proxy_headers=False,  # a client on this machine could claim another address with each request
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=self._limits.last_seconds_max,
                ssl_certfile=None if self._tls is None else str(self._tls[0]),
                ssl_keyfile=None if self._tls is None else str(self._tls[1]),
            )
        )
        try:
            server.config.load()
        except OSError as e:  # ssl.SSLError, for a bad certificate, is an OSError
            raise ConfigError(
                f"the certificate or its key cannot be used: {e}", hint="Both must be PEM files that belong together."
            ) from e
        guard(server.config, handshakes, self._limits)
        self._server = server
        self._thread = threading.Thread(target=self._serve, args=(server,), name="strandline-http", daemon=True)
        self._thread.start()
        for _ in RetryPolicy(0.02, 0.02, seconds_max=_START_SECONDS_MAX).attempts():
            if server.started or not self._thread.is_alive():
                break
        if not server.started:
            raise FailedError(
                f"the HTTP server did not start: {self.failure or 'no answer'}", hint="The log has more; try again."
            )

    def _serve(self, server: uvicorn.Server) -> None:
        try:
            with closing(self._socket):
                server.run(sockets=[self._socket])
        except BaseException as e:
            self.failure = e

    def wait(self, stopping: threading.Event) -> None:
        """Returns when `stopping` is set. Raises FailedError if the server ends before."""
        while not stopping.wait(_CHECK_SECONDS):
            if self._thread is None or not self._thread.is_alive():
                raise FailedError(f"the HTTP server has ended by itself: {self.failure}", hint="Start it again.")

    def stop(self) -> None:
        """Accepts no more connections, and answers the requests under way."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join()


def _our_server(handshakes: Handshakes, limits: HttpLimits) -> type[uvicorn.Server]:
    """A server that stops when every request is answered, and that counts TLS handshakes under way.

    uvicorn's own server waits for every connection to close. A TLS connection closes only when its client answers the
    close, and senders that keep one open for their next chunk do not: stopping would take as long as the timeout."""
    import uvicorn

    class OurServer(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            context = self.config.ssl
            if context is None:
                await super().startup(sockets)
                return
            await super().startup([])
            for listening in sockets or ():
                listener = TlsListener(
                    listening,
                    context,
                    self._new_protocol,
                    handshakes,
                    make_room=self._make_room,
                    seconds_max=limits.head_seconds_max,
                )
                listener.start()
                self.servers.append(cast("Any", listener))

        def _new_protocol(self, handshake: asyncio.Task[None]) -> asyncio.Protocol:
            made: Any = self.config.http_protocol_class
            protocol = made(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
            protocol.handshake = handshake
            return cast("asyncio.Protocol", protocol)

        def _make_room(self, new: asyncio.Task[None]) -> None:
            connections = self.server_state.connections
            if len(connections) + len(handshakes) > limits.connections_max:
                close_longest_idle(connections, handshakes, new, new.cancel)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            cutting = asyncio.create_task(self._cut_off_the_silent())
            try:
                await super().shutdown(sockets)
            finally:
                cutting.cancel()

        async def _cut_off_the_silent(self) -> None:
            while True:
                await asyncio.sleep(_FAREWELL_SECONDS)
                if not self.server_state.tasks:
                    for connection in list(self.server_state.connections):
                        transport: Any = getattr(connection, "transport", None)
                        if transport is not None and not transport.get_write_buffer_size():
                            transport.abort()

    return OurServer
