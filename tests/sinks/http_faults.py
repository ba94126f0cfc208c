"""A proxy that understands HTTP: it answers instead of the store, or loses the store's answer."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests import loopback


@dataclass(frozen=True)
class Answer:
    """Instead of the store's; the request never gets there, or what the store answers is lost."""

    status: int
    code: str
    headers: tuple[tuple[str, str], ...] = ()
    after: bool = False


@dataclass(frozen=True)
class Cut:
    """The connection is closed, before the store has seen the request or after it has done what was asked."""

    after: bool


@dataclass(frozen=True)
class Twice:
    """The store gets the request two times, as from a gateway that repeats it, and its second answer is given."""


Fault = Answer | Cut | Twice


@dataclass
class FaultyStore:
    port: int
    _faults: list[tuple[Callable[[str, str], bool], Fault]] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    """Every request, as `METHOD path`."""
    fired: int = 0
    before: Callable[[str, str], None] | None = None
    """Called with each request before it is passed on."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fail(self, fault: Fault, method: str, part: str = "", *, times: int = 1, after: int = 0) -> None:
        """The next requests with this method whose path has this part in it, or those that follow after so many."""
        left = [after]

        def matches(found: str, path: str) -> bool:
            if found != method or part not in path:
                return False
            left[0] -= 1
            return left[0] < 0

        self._faults += [(matches, fault)] * times

    def take(self, method: str, path: str) -> Fault | None:
        self.seen.append(f"{method} {path}")
        for n, (matches, fault) in enumerate(self._faults):
            if matches(method, path):
                del self._faults[n]
                self.fired += 1
                return fault
        return None

    def heal(self) -> None:
        self._faults.clear()
        self.seen.clear()
        self.before = None
        self.fired = 0


_OF_ONE_CONNECTION = ("connection", "content-length", "transfer-encoding")


class _Server(loopback.Server):
    def __init__(self, store: FaultyStore, upstream_port: int) -> None:
        super().__init__(_Handler)
        self.store = store
        self.upstream_port = upstream_port


class _Handler(loopback.Handler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def _pass(self) -> None:
        store = self.server.store
        body = self.read_body()
        fault = store.take(self.command, self.path)
        if fault == Cut(after=False):
            return self.cut()
        if isinstance(fault, Answer) and not fault.after:
            return self._answer(fault)
        if store.before is not None:
            store.before(self.command, self.path)
        if fault == Twice():
            self._ask(body)
        answer, payload = self._ask(body)
        if fault == Cut(after=True):
            return self.cut()
        if isinstance(fault, Answer):
            return self._answer(fault)
        headers = [(n, v) for n, v in answer.getheaders() if n.lower() not in _OF_ONE_CONNECTION]
        length = int(answer.getheader("Content-Length") or "0") if self.command == "HEAD" else len(payload)
        return self.answer(answer.status, payload, headers, length=length)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass

    def _ask(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.upstream_port, timeout=60)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("expect", "connection"):
                    upstream.putheader(name, value)
            upstream.endheaders(body)
            answer = upstream.getresponse()
            return answer, answer.read()
        finally:
            upstream.close()

    def _answer(self, answer: Answer) -> None:
        text = f"<?xml version='1.0'?><Error><Code>{answer.code}</Code><Message>no</Message></Error>".encode()
        self.answer(answer.status, text, [*answer.headers, ("Content-Type", "application/xml")])


@contextmanager
def faulty_store(upstream_port: int) -> Iterator[FaultyStore]:
    store = FaultyStore(0)
    server = _Server(store, upstream_port)
    store.port = server.server_address[1]
    with loopback.serving(server):
        yield store
