"""A receiver under eight clients: how fast it is at most, and how long an answer takes a little below that."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from statistics import quantiles
from urllib.parse import urlsplit

from bench import frames, lakes
from bench.forward.receiver import Receiver, receiving
from bench.measure import Bench, Measurement, Stolen
from bench.results import Figure, Goal, Samples

CLIENTS = 8
BODY_ROWS = 1000
SAMPLES = 5
TRIES_MAX = 20
STEADY = 0.9
STOLEN_MAX = 0.05
"""A sample counts only if the highest rate after it is so much of the one before it, and no more of the processors was
taken away meanwhile, as long as tries are left."""
P99 = Figure(
    "99th percentile of an answer at 80 % of the highest rate, 8 clients", "ms", None, Goal(250, "at most", "ours")
)
RATE = Figure("rows taken in at the highest rate, 8 clients", "rows/s", None, None)
MEMORY = Figure(
    "memory of the receiver after ten times as many bodies",
    "MB",
    "the same after the first of them",
    Goal(1.2, "at most"),
)


def measure(bench: Bench) -> dict[str, Samples]:
    seconds = bench.sized(10, 1)
    with receiving(bench.work / "receiver") as to:
        body = _body(bench)
        clients = _Clients(to, body)
        clients.as_fast_as_possible(seconds)  # warm-up
        first, rates, slow, held = to.rss_mb, [], [], []
        rate = clients.as_fast_as_possible(seconds)
        for n in range(TRIES_MAX):
            bench.say(f"sample {len(slow) + 1} of {SAMPLES}, try {n + 1} of at most {TRIES_MAX}")
            taken_away = Stolen()
            took = clients.at_a_rate(0.8 * rate, seconds)
            lost = taken_away.share > STOLEN_MAX
            before, rate = rate, clients.as_fast_as_possible(seconds)
            if (lost or rate < STEADY * before) and TRIES_MAX - n > SAMPLES - len(slow):
                continue  # the machine lost speed meanwhile: it was more than 80 %
            rates.append(rate * BODY_ROWS)
            slow.append(took)
            held.append(to.rss_mb)
            if len(slow) == SAMPLES:
                break
        shape = {"body_rows": BODY_ROWS, "body_bytes": len(body), "clients": CLIENTS, "seconds": seconds}
    return {
        P99.name: Samples(slow, None, shape),
        RATE.name: Samples(rates, None, shape),
        MEMORY.name: Samples(held, [first] * SAMPLES, shape),
    }


def _body(bench: Bench) -> bytes:
    """Made in a process of its own: the JVM must not be there while clients are measured."""
    made = bench.work / "body"
    command = [sys.executable, "-m", "bench.forward.alone", str(bench.work / "rows"), str(made)]
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return made.read_bytes()


def make_body(work: str, target: str) -> None:
    from pathlib import Path

    import zstandard
    from pyspark.sql import functions as F

    lake = lakes.new_lake(Path(work))
    rows = frames.events(lake.spark, 0, BODY_ROWS, 1).withColumn("amount", F.col("amount").cast("string"))
    lines = [r[0] for r in rows.select(F.to_json(F.struct("*"))).collect()]
    Path(target).write_bytes(zstandard.ZstdCompressor(level=1).compress("\n".join(lines).encode()))


class _Clients:
    def __init__(self, to: Receiver, body: bytes) -> None:
        self._to, self._body = to, body

    def as_fast_as_possible(self, seconds: float) -> float:
        """Bodies per second, each client waiting for its answer before it sends the next."""
        until = time.perf_counter() + seconds
        answered = itertools.count()

        def client(post: Callable[[], None], _: int) -> None:
            while time.perf_counter() < until:
                post()
                next(answered)

        began = time.perf_counter()
        self._all(client)
        return next(answered) / (time.perf_counter() - began)

    def at_a_rate(self, rate: float, seconds: float) -> float:
        """Milliseconds, counted from when a body was due: a client that is held up does not hide what that costs."""
        began, took, lock = time.perf_counter() + 0.1, [], threading.Lock()
        dues = iter([began + n / rate for n in range(int(rate * seconds))])

        def client(post: Callable[[], None], _: int) -> None:
            while True:
                with lock:
                    due = next(dues, None)
                if due is None:
                    return
                time.sleep(max(0.0, due - time.perf_counter()))
                post()
                took.append((time.perf_counter() - due) * 1000)

        self._all(client)
        return quantiles(took, n=100)[98]

    def _all(self, client: Callable[[Callable[[], None], int], None]) -> None:
        """Clients as lean as can be: they share the machine's cores with what is measured."""
        at = urlsplit(self._to.url)
        headers = {
            "Authorization": f"Bearer {self._to.token}",
            "Content-Type": "application/x-ndjson",
            "Content-Encoding": "zstd",
        }

        def run(number: int) -> None:
            http = HTTPConnection(at.hostname or "", at.port, timeout=60)

            def post() -> None:
                http.request("POST", at.path, self._body, headers | {"Idempotency-Key": uuid.uuid4().hex})
                answer = http.getresponse()
                said = answer.read()
                if answer.status != 202:
                    raise RuntimeError(f"the receiver answered {answer.status}: {said.decode()}")

            client(post, number)
            http.close()

        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(run, range(CLIENTS)))


MEASUREMENT = Measurement((P99, RATE, MEMORY), measure)

if __name__ == "__main__":
    make_body(*sys.argv[1:])
