"""The time until the API and `/metrics` have answered, with many clients at once, and that of `strandline status`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from bench.measure import Bench, Measurement, in_turn, seconds_of
from bench.results import Figure, Goal, Samples
from bench.serve import large_lake
from bench.shell import STRANDLINE, quietly
from strandline.core.settings.serve import ServeSettings

CLIENTS = 50
READINGS = 3  # of the lake that fall into each round: most answers are made from a reading that is there
STATUS = Figure(
    f"GET /api/v1/status with {CLIENTS} clients, 99th percentile", "s", None, Goal(0.05, "at most", of="ours")
)
PAGE = Figure("the overview of the dashboard, 200 sinks, 1,000 datasets", "s", None, Goal(0.2, "at most", of="ours"))
METRICS = Figure("GET /metrics, 200 sinks of 50 lanes, read anew", "s", None, Goal(0.2, "at most", of="ours"))
SHELL = Figure("`strandline status` from the shell, 1,000 datasets", "s", None, Goal(1.0, "at most", of="ours"))


def measure_status(bench: Bench) -> dict[str, Samples]:
    home = bench.work / "lake"
    size = {"datasets": bench.sized(1000, 20), "sinks": bench.sized(200, 5), "runs": bench.sized(10_000, 100)}
    bench.say("making a large lake")
    secret = large_lake.fill(home, tables=size["datasets"], sinks_count=size["sinks"], lanes=1, runs=size["runs"])
    with served(home) as url:
        asked, long = bench.sized(20, 3), bench.sized(READINGS, 1) * ServeSettings().refresh_seconds
        (found,) = in_turn(bench, 5, lambda n: _slowest(url, "/api/v1/status", secret, CLIENTS, asked, long))
        (page,) = in_turn(bench, 5, lambda n: _slowest(url, "/", secret, 1, asked, long))
    command = [STRANDLINE, "status", "--config", str(home)]
    (shown,) = in_turn(bench, 5, lambda n: seconds_of(lambda: quietly(command)))
    times = {STATUS.name: found, PAGE.name: page, SHELL.name: shown}
    return {name: Samples(seconds, None, size) for name, seconds in times.items()}


def measure_metrics(bench: Bench) -> dict[str, Samples]:
    home = bench.work / "lake"
    size = {"datasets": bench.sized(200, 5), "sinks": bench.sized(200, 5), "lanes": bench.sized(50, 5)}
    bench.say("making a lake with many lanes")
    secret = large_lake.fill(
        home, tables=size["datasets"], sinks_count=size["sinks"], lanes=size["lanes"], runs=size["datasets"]
    )
    with served(home) as url:
        _slowest(url, "/metrics", secret, 1, 1)
        (found,) = in_turn(bench, 5, lambda n: _after_a_pause(url, secret))
    return {METRICS.name: Samples(found, None, size)}


@contextmanager
def served(home: Path) -> Iterator[str]:
    """The address of a server over the lake, in a process of its own."""
    with serving(home) as (url, _):
        yield url


@contextmanager
def serving(home: Path) -> Iterator[tuple[str, int]]:
    """The same, and the id of the process."""
    command = [STRANDLINE, "serve", "--config", str(home), "--port", "0", "--json"]
    # All clients have one token: what is measured must not be turned away.
    environ = os.environ | {"STRANDLINE_SERVE__REQUESTS_PER_SECOND_MAX": "100000"}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environ) as process:
        try:
            for line in process.stdout or ():
                if url := json.loads(line).get("url"):
                    yield url, process.pid
                    break
            else:
                raise RuntimeError("the server did not start")
        finally:
            process.terminate()


def _after_a_pause(url: str, secret: str) -> float:
    """As a collector asks, which comes rarely: the lake is read for it alone."""
    time.sleep(5)
    return asyncio.run(answer_times(url, "/metrics", secret, 1))[0]


def _slowest(url: str, path: str, secret: str, clients: int, asked: int, seconds_min: float = 0.0) -> float:
    """The 99th percentile over all requests of the clients, each with a connection of its own. The clients go on for
    `seconds_min`, so that the server reads the lake anew while they ask."""
    return asyncio.run(_ask(url, path, secret, clients, asked, seconds_min))


async def _ask(url: str, path: str, secret: str, clients: int, asked: int, seconds_min: float) -> float:
    await answer_times(url, path, secret, 2)  # the first one reads the lake
    found = await asyncio.gather(*(answer_times(url, path, secret, asked, seconds_min) for _ in range(clients)))
    times = sorted(seconds for of_one in found for seconds in of_one)
    return times[min(len(times) - 1, int(len(times) * 0.99))]


async def answer_times(url: str, path: str, secret: str, asked: int, seconds_min: float = 0.0) -> list[float]:
    """Of at least so many requests over at least so long. As little as a client needs, so that its own time does not
    count: it takes what comes, and parses nothing."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 22)
    head = (
        f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {secret}\r\nAccept-Encoding: gzip\r\n\r\n"
    )
    times = list[float]()
    until = time.perf_counter() + seconds_min
    while len(times) < asked or time.perf_counter() < until:
        began = time.perf_counter()
        writer.write(head.encode())
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not answer.startswith(b"http/1.1 200"):
            raise RuntimeError(answer.decode("ascii", "replace"))
        length = int(answer.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        await reader.readexactly(length)
        times.append(time.perf_counter() - began)
    writer.close()
    return times


MEASUREMENTS = (Measurement((STATUS, PAGE, SHELL), measure_status), Measurement((METRICS,), measure_metrics))
