"""A real HTTP server that answers as its script says: late, in pieces, wrongly, or not at all.

Left alone it is a decent server: it stores a body under its key, once. With `receiver=True` it also says that it is a
receiver of Strandline's and tells what it holds; for anything that a receiver really does, use the real one.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from strandline.core import forward_protocol
from tests import loopback


@dataclass(frozen=True)
class Act:
    """What becomes of one request, in place of what a decent server does."""

    status: int = 503
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    commit: bool = False
    """The body is stored first, whatever is answered then."""
    read: bool = True
    """The body is read; else the answer comes before it."""
    delay_seconds: float = 0
    trickle_seconds: float = 0
    """Between one byte of the answer and the next."""
    end: Literal["keep", "close", "silent", "reset", "cut"] = "keep"
    """`close` after the answer; or no answer, the connection closed (`silent`) or `reset`; or closed in its middle."""


@dataclass(frozen=True)
class Seen:
    connection: int
    """Counted from 1."""
    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    local: str
    """The address that the client connected to."""
    sni: str | None

    @property
    def key(self) -> str | None:
        return self.headers.get(forward_protocol.KEY.lower())


@dataclass
class Misbehaving:
    port: int = 0
    scheme: str = "http"
    receiver: bool = False
    seen: list[Seen] = field(default_factory=list)
    stored: dict[str, bytes] = field(default_factory=dict)
    """By key."""
    ranges: list[list[Any]] = field(default_factory=list)
    """What the stand-in for a receiver says it holds: `[lo, hi, rows, digest, size]`."""
    connections: int = 0
    _acts: list[tuple[str, Act]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def url(self, host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}/v1/datasets/shop.orders/rows"

    def will(self, *acts: Act, on: str = "/rows") -> None:
        """The next requests whose path ends so, one act each."""
        self._acts += [(on, act) for act in acts]

    def posts(self) -> list[Seen]:
        return [s for s in self.seen if s.method == "POST" and s.path.partition("?")[0].endswith("/rows")]

    def take(self, seen: Seen) -> Act | None:
        with self._lock:
            self.seen.append(seen)
            if seen.method == "HEAD":
                return None
            for n, (on, act) in enumerate(self._acts):
                if seen.path.partition("?")[0].endswith(on):
                    del self._acts[n]
                    return act
        return None

    def store(self, seen: Seen) -> bool:
        """Whether it is new."""
        with self._lock:
            if seen.key is None or seen.key in self.stored:
                return False
            self.stored[seen.key] = seen.body
            return True

    def decent(self, seen: Seen) -> Act:
        ours = ((forward_protocol.RECEIVER, forward_protocol.VERSION),) if self.receiver else ()
        if seen.method != "POST":
            return Act(405, ours)
        if seen.path.partition("?")[0].endswith("/rows"):
            new = self.store(seen)
            lines = {"outcome": "accepted", "rows": _rows_of(seen), "digest": _digest_of(seen.body), "repeat": not new}
            return Act(202, ours, json.dumps(lines).encode() if self.receiver else b"thanks")
        if not self.receiver:
            return Act(404)
        question = json.loads(seen.body)
        match seen.path.rpartition("/")[2]:
            case "claimed":
                return Act(200, ours, b'{"claim":null,"generation":1}')
            case "claim":
                claim = {name: question[name] for name in ("lake", "instance", "dataset", "table_uuid")}
                return Act(200, ours, json.dumps({"claim": claim, "generation": question["generation"]}).encode())
            case "held":
                lanes = [{"ranges": [r for r in self.ranges if r[1] > (q["after"] or 0)]} for q in question["lanes"]]
                return Act(200, ours, json.dumps({"lanes": lanes}).encode())
            case "inspect":
                inside = [r for r in self.ranges if question["lo"] <= r[0] and r[1] <= question["hi"]]
                found = [{"lo": r[0], "hi": r[1], "rows": r[2], "digest": r[3], "problem": None} for r in inside[:1000]]
                more = {"next": inside[1000][0]} if len(inside) > 1000 else {}
                return Act(200, ours, json.dumps({"ranges": found, **more}).encode())
        return Act(404, ours)


def _rows_of(seen: Seen) -> int:
    lo, _, hi = seen.headers[forward_protocol.RANGE.lower()].partition("-")
    return int(hi) - int(lo) + 1


def _digest_of(body: bytes) -> str:
    import hashlib

    return f"sha256:{hashlib.sha256(body).hexdigest()}"


_PORTS: set[int] = set()
"""Ports that servers of this process had; none has the same one twice."""


class _Server(loopback.Server):
    def __init__(self, host: str, script: Misbehaving, tls: ssl.SSLContext | None) -> None:
        super().__init__(_Handler, host)
        self.script = script
        self.tls = tls
        self.sni: dict[int, str | None] = {}
        if tls is not None:
            tls.sni_callback = lambda connection, name, _: self.sni.__setitem__(id(connection), name)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        if self.tls is None:
            return connection, address
        return self.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address


class _Handler(loopback.Handler):
    server: _Server
    protocol_version = "HTTP/1.1"
    number = 0

    def setup(self) -> None:
        super().setup()
        self.server.script.connections += 1
        self.number = self.server.script.connections

    def _serve(self) -> None:
        script = self.server.script
        length = int(self.headers.get("Content-Length") or 0)
        body = b""
        early = next((a for on, a in script._acts if self.path.endswith(on)), None)
        if early is None or early.read:
            body = self.rfile.read(length)
            if len(body) < length:
                self.close_connection = True
                return
        seen = Seen(
            self.number,
            self.command,
            self.path,
            {k.lower(): v for k, v in self.headers.items()},
            body,
            self.connection.getsockname()[0],
            self.server.sni.get(id(self.connection)),
        )
        act = script.take(seen) or script.decent(seen)
        if act.commit:
            script.store(seen)
        if act.delay_seconds:
            time.sleep(act.delay_seconds)
        self._do(act)

    do_GET = do_POST = do_HEAD = _serve

    def _do(self, act: Act) -> None:
        self.close_connection = act.end != "keep" or not act.read
        if act.end == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            return
        if act.end == "silent":
            return
        lines = [f"HTTP/1.1 {act.status} As told"]
        lines += [f"{name}: {value}" for name, value in act.headers]
        lines.append(f"Content-Length: {len(act.body) + (10 if act.end == 'cut' else 0)}")
        answer = "\r\n".join([*lines, "", ""]).encode() + (b"" if self.command == "HEAD" else act.body)
        try:
            if not act.trickle_seconds:
                self.wfile.write(answer)
                return
            for byte in answer:
                self.wfile.write(bytes([byte]))
                time.sleep(act.trickle_seconds)
        except OSError:
            self.close_connection = True  # the client has had enough

    def finish(self) -> None:
        try:
            super().finish()
        except OSError:
            pass


@contextmanager
def misbehaving(
    host: str = "127.0.0.1", *, receiver: bool = False, tls: ssl.SSLContext | None = None
) -> Iterator[Misbehaving]:
    script = Misbehaving(receiver=receiver, scheme="http" if tls is None else "https")
    server = _Server(host, script, tls)
    while server.server_address[1] in _PORTS:  # a shared ledger may know a sink that delivered there
        server.server_close()
        server = _Server(host, script, tls)
    script.port = server.server_address[1]
    _PORTS.add(script.port)
    with loopback.serving(server):
        yield script
