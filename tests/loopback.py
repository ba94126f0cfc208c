"""HTTP servers that tests write themselves: handlers on 127.0.0.1, on a free port, each request in a thread."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Logs nothing, and answers with a length. Without `protocol_version`, each connection has one request."""

    def read_body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(
        self, status: int, body: bytes = b"", headers: Iterable[tuple[str, str]] = (), *, length: int | None = None
    ) -> None:
        """`length` is what the head says, if that is not the length of the body."""
        self.send_response_only(status)
        for name, value in (*headers, ("Content-Length", str(len(body) if length is None else length))):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def cut(self) -> None:
        """Close the connection, without an answer or in the middle of it."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    def __init__(self, handler: type[BaseHTTPRequestHandler], host: str = "127.0.0.1") -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no error of the server."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


@contextmanager
def serving(server: Server | type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """Its port."""
    running = server if isinstance(server, Server) else Server(server)
    threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield running.server_port
    finally:
        running.shutdown()
        running.server_close()
