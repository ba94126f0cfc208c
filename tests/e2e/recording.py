"""A proxy in front of a receiver that keeps what passes."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from strandline.core import forward_protocol
from tests import loopback

WAIT_SECONDS_MAX = 300
GONE_SECONDS_MAX = 30


@dataclass(frozen=True)
class Posted:
    """A body of rows, and the answer to it; None where whoever was to answer died."""

    key: str
    digest: str
    content: bytes
    answer: Any

    @property
    def request(self) -> tuple[str, str, bytes]:
        return self.key, self.digest, self.content


@contextmanager
def recording(upstream_port: int) -> Iterator[tuple[int, list[Posted]]]:
    """Its port, and what was posted. It waits for a receiver that is not there, and ends the client's connection where
    the receiver dies before it answers."""
    posted: list[Posted] = []

    class Handler(loopback.Handler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            content = self.read_body()
            answer = _ask(upstream_port, self.command, self.path, content, dict(self.headers))
            if self.command == "POST" and self.path.endswith("/rows"):
                said = None if answer is None else json.loads(answer[1])
                posted.append(
                    Posted(self.headers[forward_protocol.KEY], self.headers[forward_protocol.DIGEST], content, said)
                )
            if answer is None:
                _wait_until_gone(upstream_port)  # or the client's retry reaches a process that dies
                self.close_connection = True
                return
            response, payload = answer
            names = ("Content-Type", "Retry-After", forward_protocol.RECEIVER)
            self.answer(response.status, payload, [(n, value) for n in names if (value := response.headers[n])])

        do_HEAD = do_POST = _pass

    with loopback.serving(Handler) as port:
        yield port, posted


def _wait_until_gone(port: int) -> None:
    """The socket of a process that was killed listens for a moment longer than its connections live."""
    deadline = time.monotonic() + GONE_SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionRefusedError:
            return
        except OSError:
            pass
        time.sleep(0.01)


def _ask(
    port: int, method: str, path: str, content: bytes, headers: dict[str, str]
) -> tuple[http.client.HTTPResponse, bytes] | None:
    upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS_MAX)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        try:
            upstream.connect()
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.05)
    try:
        upstream.request(method, path, content or None, headers)
        response = upstream.getresponse()
        return response, response.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        upstream.close()
