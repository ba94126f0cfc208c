"""What open dashboards cost delivery: the same rows delivered with them and without, in turn, in one process that also
serves, as `strandline run --serve` does. Browsers are elsewhere, so here they are another process."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from urllib.parse import urlsplit

from bench import frames, lakes
from bench.measure import Bench, Measurement, in_turn, seconds_of
from bench.read.new_rows import Table
from bench.results import Figure, Goal, Samples
from bench.serve.requests import answer_times
from strandline.core.roles import Role
from strandline.lake import Lake
from strandline.serve.server import serve_lake

DASHBOARDS = 5
ROUNDS = 8  # of two samples each
COST = Figure(f"delivery while {DASHBOARDS} dashboards are open", "s", "the same with none open", Goal(1.02, "at most"))


def measure(bench: Bench) -> dict[str, Samples]:
    lake = lakes.new_lake(bench.work / "lake")
    rows = bench.sized(500_000, 5_000)
    table = Table(lake, "readings", rows)
    table.fill(bench)
    lake.delivery.add("out", "readings", "files", {"path": str(bench.work / "out")}, from_now=True)
    secret = lake.receiver.create_token("looks", role=Role.READ)[1]
    first = 0

    def deliver() -> float:
        nonlocal first
        lake.append("readings", frames.readings(lake.spark, first, rows, 2))
        first += rows
        return seconds_of(lambda: lake.tick("out"))

    def deliver_watched(url: str) -> float:
        with open_dashboards(url, secret):
            return deliver()

    with served_here(lake) as url:
        for _ in range(2):  # warm-up
            deliver()
            deliver_watched(url)
        # Each is first as often as it is second: whatever the first one leaves behind cancels out.
        sides = (lambda n: deliver_watched(url), lambda n: deliver())
        watched, alone, alone_first, watched_second = in_turn(bench, ROUNDS, *sides, *reversed(sides))
    samples = Samples(watched + watched_second, alone + alone_first, {"new_rows": rows, "dashboards": DASHBOARDS})
    return {COST.name: samples}


@contextmanager
def served_here(lake: Lake) -> Iterator[str]:
    stopping, listening, at = threading.Event(), threading.Event(), list[str]()

    def told(url: str) -> None:
        at.append(url)
        listening.set()

    thread = threading.Thread(target=lambda: serve_lake(lake, stopping, port=0, on_listening=told))
    thread.start()
    try:
        if not listening.wait(60):
            raise RuntimeError("the server did not start")
        yield at[0]
    finally:
        stopping.set()
        thread.join()


@contextmanager
def open_dashboards(url: str, secret: str) -> Iterator[None]:
    spawn = multiprocessing.get_context("spawn")
    opened = spawn.Barrier(2)
    process = spawn.Process(target=_look, args=(url, secret, opened))
    process.start()
    try:
        opened.wait(60)
        yield
        if not process.is_alive():
            raise RuntimeError("the dashboards were closed meanwhile")
    finally:
        process.terminate()
        process.join()


def _look(url: str, secret: str, opened: Barrier) -> None:
    asyncio.run(_look_at_once(url, secret, opened))


async def _look_at_once(url: str, secret: str, opened: Barrier) -> None:
    streams = [await _open(url, secret) for _ in range(DASHBOARDS)]
    await asyncio.to_thread(opened.wait)
    await asyncio.gather(*(_follow(url, secret, stream) for stream, _ in streams))


async def _open(url: str, secret: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The writer has to be kept: a connection whose writer is forgotten is closed."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    reader, writer = await asyncio.open_connection(host, port)
    head = f"GET /live HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {secret}\r\n\r\n"
    writer.write(head.encode())
    answer = await reader.readuntil(b"\r\n\r\n")
    if not answer.lower().startswith(b"http/1.1 200"):
        raise RuntimeError(answer.decode("ascii", "replace"))
    return reader, writer


async def _follow(url: str, secret: str, stream: asyncio.StreamReader) -> None:
    """As the script of a page does: whenever something has changed, it asks for the page again."""
    while line := await stream.readline():
        if line.startswith(b"event: changed"):
            await answer_times(url, "/", secret, 1)


MEASUREMENT = Measurement((COST,), measure)
