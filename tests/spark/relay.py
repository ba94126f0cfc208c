"""What stands between two lakes: a real HTTP relay that passes requests on, and does to some of them what gateways and
networks do."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.json as pj

from strandline.core import forward_protocol
from tests import loopback


@dataclass(frozen=True)
class Answered:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    passed: list[Answered] = field(default_factory=list)
    """What the receiver answered; empty where the request never got there."""

    @property
    def has_rows(self) -> bool:
        return self.method == "POST" and self.path.endswith("/rows")

    @property
    def range(self) -> str:
        return self.headers[forward_protocol.RANGE]

    @property
    def numbers(self) -> list[int]:
        """Of its rows, at the sender."""
        with pa.input_stream(pa.py_buffer(self.body), compression=self.headers["Content-Encoding"]) as stream:
            arrow = self.headers["Content-Type"] == forward_protocol.ARROW
            table = pa.ipc.open_stream(stream.read()).read_all() if arrow else pj.read_json(stream)
        return list(table["_ingest_seq"].to_pylist())

    @property
    def name(self) -> tuple[str, str, bytes]:
        """Id, digest and bytes: what must be the same when it is sent again."""
        return self.headers[forward_protocol.KEY], self.headers[forward_protocol.DIGEST], self.body


# What may become of a request.


@dataclass(frozen=True)
class Instead:
    """An answer of the relay's own; the request never gets there."""

    status: int
    body: bytes = b"a gateway says so"


@dataclass(frozen=True)
class Afterwards:
    """It gets there, and what the receiver answers is lost: another answer, or none and the connection is closed."""

    status: int | None


@dataclass(frozen=True)
class Keep:
    """The connection is closed at once, and the request is still under way: it gets there when the test says so."""


@dataclass(frozen=True)
class Twice:
    """It gets there two times."""


@dataclass(frozen=True)
class Damaged:
    """One bit of the answer's body arrives as another one; of the request's body, if it says so."""

    at: float = 0.5  # where: a share of the body
    request: bool = False


@dataclass(frozen=True)
class CutShort:
    """The connection ends within the answer's body."""

    at: float = 0.5


@dataclass(frozen=True)
class Late:
    """The answer takes its time."""

    seconds: float


@dataclass(frozen=True)
class Swapped:
    """The client gets the answer to another request."""

    answer: Answered


Fate = Instead | Afterwards | Keep | Twice | Damaged | CutShort | Late | Swapped | None


def damaged(body: bytes, at: float) -> bytes:
    place = min(int(at * len(body)), len(body) - 1)
    return body[:place] + bytes([body[place] ^ 4]) + body[place + 1 :] if body else body


@dataclass
class Relay:
    upstream: int
    port: int = 0
    seen: list[Request] = field(default_factory=list)
    kept: list[Request] = field(default_factory=list)
    rule: Callable[[Request], Fate] = lambda request: None
    """For what the relay is about; called outside of any lock, so that it may wait, or stop the receiver."""
    concerns: Callable[[Request], bool] = lambda request: request.has_rows
    _next: list[Fate] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def url(self, dataset: str) -> str:
        return f"http://127.0.0.1:{self.port}/v1/datasets/{dataset}/rows"

    def will(self, *fates: Fate) -> None:
        """The next bodies, one each; those after them fare as `rule` says."""
        self._next += fates

    def will_only(self, *fates: Fate) -> None:
        self._next[:] = fates

    def is_done(self) -> bool:
        """Whether all fates have found their request."""
        return not self._next

    def bodies(self) -> list[Request]:
        with self._lock:
            return [r for r in self.seen if r.has_rows]

    def landed(self) -> list[str]:
        """Ranges that the receiver took, each time that it said so."""
        return [r.range for r in self.bodies() for a in r.passed if a.status == 202]

    def forget(self) -> None:
        with self._lock:
            self.seen.clear()

    def release(self) -> list[Answered]:
        """What was kept gets there now."""
        with self._lock:
            late, self.kept = self.kept, []
        return [self.passes(request) for request in late]

    def fate_of(self, request: Request) -> Fate:
        with self._lock:
            self.seen.append(request)
            if self.concerns(request) and self._next:
                return self._next.pop(0)
        return self.rule(request) if self.concerns(request) else None

    def passes(self, request: Request) -> Answered:
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
        try:
            connection.putrequest(request.method, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name.lower() != "connection":
                    connection.putheader(name, value)
            connection.putheader("Connection", "close")
            connection.endheaders(request.body)
            answer = connection.getresponse()
            headers = [(n, v) for n, v in answer.getheaders() if n.lower() not in _OF_ONE_CONNECTION]
            found = Answered(answer.status, tuple(headers), answer.read())
        except OSError:
            return Answered(502, (), b"the receiver is away")
        finally:
            connection.close()
        request.passed.append(found)
        return found


_OF_ONE_CONNECTION = ("connection", "content-length", "transfer-encoding")


def _handler(relay: Relay) -> type[loopback.Handler]:
    class Handler(loopback.Handler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            request = Request(self.command, self.path, dict(self.headers.items()), self.read_body())
            match relay.fate_of(request):
                case Instead(status, text):
                    return self._answer(Answered(status, (), text))
                case Afterwards(None):
                    relay.passes(request)
                    return self.cut()
                case Afterwards(status) if status is not None:
                    relay.passes(request)
                    return self._answer(Answered(status, (), b"an answer was lost"))
                case Keep():
                    with relay._lock:
                        relay.kept.append(request)
                    return self.cut()
                case Twice():
                    relay.passes(request)
                case Damaged(at, True):
                    request = replace(request, body=damaged(request.body, at))
                case Damaged(at):
                    found = relay.passes(request)
                    return self._answer(replace(found, body=damaged(found.body, at)))
                case CutShort(at):
                    found = relay.passes(request)
                    self._answer(found, found.body[: int(at * len(found.body))])
                    return self.cut()
                case Late(seconds):
                    time.sleep(seconds)
                case Swapped(other):
                    return self._answer(other)
            return self._answer(relay.passes(request))

        do_GET = do_POST = do_HEAD = _serve

        def _answer(self, answer: Answered, sent: bytes | None = None) -> None:
            body = answer.body if sent is None else sent
            self.answer(answer.status, body, answer.headers, length=len(answer.body))

    return Handler


@contextmanager
def relaying(upstream: int) -> Iterator[Relay]:
    relay = Relay(upstream)
    with loopback.serving(_handler(relay)) as relay.port:
        yield relay
