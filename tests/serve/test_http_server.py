"""How the HTTP server ends: with every request answered, and no later than that; and whom it does not wait for."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.http.connections import HEAD_BYTES_MAX
from strandline.http.limits import HttpLimits
from strandline.http.server import Server, listen
from tests.tls import certificate

LAST_SECONDS_MAX = 30
SOON_SECONDS = LAST_SECONDS_MAX * 0.8
_LIMITS = {"connections_max": 1024, "head_seconds_max": 20.0, "last_seconds_max": LAST_SECONDS_MAX}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls") / "own")


class Served:
    """An application that answers /slow only when it is let."""

    def __init__(self, files: tuple[Path, Path] | None, **settings: Any) -> None:
        self._files = files
        listening = listen("127.0.0.1", 0, section="receive")
        self._port = listening.getsockname()[1]
        self.let = threading.Event()
        self.asked = threading.Event()
        self.server = Server(self, listening, files, HttpLimits(**(_LIMITS | settings)))
        self.server.start()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/slow":
            self.asked.set()
            while not self.let.is_set():
                await asyncio.sleep(0.02)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    def connect_plainly(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), timeout=SOON_SECONDS)

    def connect(self) -> socket.socket:
        made = self.connect_plainly()
        if self._files is None:
            return made
        return ssl.create_default_context(cafile=str(self._files[0])).wrap_socket(made, server_hostname="127.0.0.1")

    def stop(self) -> float:
        began = time.monotonic()
        self.server.stop()
        return time.monotonic() - began


def ask(connection: socket.socket, path: str) -> None:
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


def answer(connection: socket.socket) -> bytes:
    return connection.recv(65_536).partition(b"\r\n")[0]


@pytest.fixture(params=["http", "https"])
def served(request: pytest.FixtureRequest, files: tuple[Path, Path]) -> Iterator[Served]:
    made = Served(files if request.param == "https" else None)
    yield made
    made.let.set()
    made.server.stop()


def test_a_client_that_keeps_its_connection_does_not_hold_up_the_end(served: Served) -> None:
    with served.connect() as kept, served.connect():
        ask(kept, "/")
        assert b" 200 " in answer(kept)
        assert served.stop() < SOON_SECONDS


def test_what_is_under_way_is_answered_though_others_are_silent(served: Served) -> None:
    with served.connect() as silent, served.connect() as slow:
        ask(silent, "/")
        assert b" 200 " in answer(silent)
        ask(slow, "/slow")
        assert served.asked.wait(SOON_SECONDS)
        ending = threading.Thread(target=served.stop)
        ending.start()
        time.sleep(2.5)  # longer than what is silent is waited for
        assert ending.is_alive(), "it ended before it had answered"
        served.let.set()
        assert b" 200 " in answer(slow)
        ending.join(SOON_SECONDS)
        assert not ending.is_alive()


def closed(connection: socket.socket) -> bool:
    """Waits for the end, past what is left of an answer: its body may come after its head was read."""
    try:
        while connection.recv(65_536):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.fixture
def impatient() -> Iterator[Served]:
    made = Served(None, head_seconds_max=0.5, connections_max=3)
    yield made
    made.let.set()
    made.server.stop()


def test_a_connection_that_sends_no_whole_head_is_closed(impatient: Served) -> None:
    with impatient.connect() as silent, impatient.connect() as half, impatient.connect() as second:
        half.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        ask(second, "/")
        assert b" 200 " in answer(second)
        second.sendall(b"GET / HTTP/1.1\r\nHo")  # one that was good once is no better
        assert closed(silent) and closed(half) and closed(second)


def test_a_body_that_was_answered_before_it_was_read_is_not_waited_for(impatient: Served) -> None:
    with impatient.connect() as early:
        early.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        assert b" 200 " in answer(early)
        early.sendall(b"x")
        assert closed(early)


def test_a_head_without_end_is_cut_off(impatient: Served) -> None:
    with impatient.connect() as endless:
        endless.sendall(b"GET / HTTP/1.1\r\n")
        with pytest.raises(OSError):
            for n in range(100 * HEAD_BYTES_MAX // 1000):
                endless.sendall(b"X-%d: %s\r\n" % (n, b"x" * 1000))
            assert closed(endless)
            raise ConnectionResetError


def test_a_client_that_does_not_finish_its_tls_handshake_is_closed_in_the_time_of_a_head(
    files: tuple[Path, Path],
) -> None:
    served = Served(files, head_seconds_max=0.5)
    try:
        with served.connect_plainly() as silent, served.connect_plainly() as half, served.connect() as good:
            half.sendall(bytes.fromhex("160301020001"))  # the beginning of a hello
            ask(good, "/")
            assert b" 200 " in answer(good)
            assert closed(silent) and closed(half)
    finally:
        served.server.stop()


def test_connections_in_the_tls_handshake_count_and_the_oldest_gives_way(files: tuple[Path, Path]) -> None:
    served = Served(files, head_seconds_max=600, connections_max=2)
    try:
        with served.connect() as slow, served.connect_plainly() as first:
            ask(slow, "/slow")
            assert served.asked.wait(SOON_SECONDS)
            with served.connect_plainly() as second:
                assert closed(first)
                with served.connect() as good:
                    assert closed(second)
                    ask(good, "/")
                    assert b" 200 " in answer(good)
                    served.let.set()
                    assert b" 200 " in answer(slow), "a request under way is never closed"
            with served.connect_plainly():
                assert served.stop() < SOON_SECONDS
    finally:
        served.let.set()
        served.server.stop()


@pytest.fixture
def crowded() -> Iterator[Served]:
    made = Served(None, head_seconds_max=600, connections_max=3)
    yield made
    made.let.set()
    made.server.stop()


def test_a_request_under_way_is_never_closed_to_make_room_and_the_longest_idle_is(crowded: Served) -> None:
    with crowded.connect() as slow, crowded.connect() as idle, crowded.connect() as other:
        ask(slow, "/slow")
        for one in (idle, other):
            ask(one, "/")
            assert b" 200 " in answer(one)
        assert crowded.asked.wait(SOON_SECONDS)
        with crowded.connect() as fourth:
            ask(fourth, "/")
            assert b" 200 " in answer(fourth)
            assert closed(idle)
            crowded.let.set()
            assert b" 200 " in answer(slow)
