"""Receivers in processes of their own, killed before and after each durable step: what was answered 202 is in the table
once, and what was not can be sent again.

The steps of ingest, each of which would cost the start of a JVM, are in tests/spark/test_intake.py.
"""

from __future__ import annotations

import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import strandline
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.lake import Lake
from tests.campaign import scaled
from tests.conftest import MakeHome
from tests.e2e.receiver import Receiver, post, receiving
from tests.spark.bodies import outlive_lease
from tests.spark.lakes import in_main

pytestmark = pytest.mark.timeout(900)

POINTS = ["receive.before_spool", "receive.after_spool", "receive.before_commit", "receive.after_commit"]
BATCH_POINTS = ["receive.after_batch", "receive.after_append", "receive.after_settle", "receive.after_removal"]
LIVES = scaled(3, 8)
BODIES = scaled(80, 300)
"""Of each client."""
LEASE_SECONDS = 2
"""Who comes after one that was killed at random waits for its end."""


def make(home: Path, make_home: MakeHome, **receive: Any) -> Lake:
    make_home(home, {"receive": {"batch_wait_seconds_max": 0.2, **receive}, "ingest": {"lease_seconds": LEASE_SECONDS}})
    lake = strandline.init_lake(home)
    lake.create_dataset("events", parse_columns([{"name": "id", "type": "long"}, {"name": "text", "type": "string"}]))
    return lake


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome, spark_started: object) -> Iterator[Lake]:
    with make(tmp_path_factory.mktemp("receiver"), make_home) as made:
        yield made


@pytest.fixture(scope="module")
def secret(lake: Lake) -> str:
    return lake.receiver.create_token("client")[1]


def rows(lo: int, hi: int) -> list[dict[str, Any]]:
    return [{"id": n, "text": f"row {n}"} for n in range(lo, hi + 1)]


def in_table(lake: Lake) -> list[int]:
    return sorted(r[0] for r in lake.spark.sql("SELECT id FROM lake.default.events").collect())


def in_body_order(lake: Lake, ids: list[int]) -> list[int]:
    return [n for _, n in in_main(lake, "events", "id") if n in set(ids)]


@pytest.mark.parametrize("point", POINTS)
def test_a_receiver_that_is_killed_at_any_step_of_taking_a_body_in_keeps_it_once(
    lake: Lake, secret: str, point: str, tmp_path: Path
) -> None:
    home, start = lake.config.home, 1000 * (1 + POINTS.index(point))
    first, second = rows(start, start + 9), rows(start + 10, start + 12)
    with receiving(home, tmp_path / "killed", "--no-ingest", failpoint=f"{point}=kill@2") as receiver:
        assert post(receiver.url, secret, f"{point}-1", first).status_code == 202
        with pytest.raises(httpx.TransportError):
            post(receiver.url, secret, f"{point}-2", second)
        assert receiver.killed()
    with receiving(home, tmp_path / "next", "--no-ingest") as receiver:
        again = post(receiver.url, secret, f"{point}-1", first)
        assert (again.status_code, again.json()["repeat"]) == (202, True)
        retried = post(receiver.url, secret, f"{point}-2", second)
        assert retried.status_code == 202
        assert retried.json()["repeat"] is (point != "receive.before_spool"), "what was spooled is found and recorded"
        assert receiver.end() == 0
    time.sleep(0.3)
    [report] = lake.receiver.intake().step()
    assert (report.did, report.rows, report.bodies) == ("ingested", 13, 2)
    ids = list(range(start, start + 13))
    assert in_body_order(lake, ids) == ids


@pytest.mark.parametrize("point", BATCH_POINTS)
def test_a_receiver_that_is_killed_at_any_step_of_ingesting_a_batch_has_it_ingested_once(
    lake: Lake, secret: str, point: str, tmp_path: Path
) -> None:
    start = 10_000 + 1000 * BATCH_POINTS.index(point)
    with receiving(lake.config.home, tmp_path / "killed", failpoint=f"{point}=kill") as receiver:
        assert post(receiver.url, secret, point, rows(start, start + 9)).status_code == 202
        assert receiver.killed()
    outlive_lease(lake)
    intake = lake.receiver.intake()
    intake.step()
    ids = list(range(start, start + 10))
    assert in_body_order(lake, ids) == ids
    assert intake.step() == [], "nothing is left to do"


def wait_until_closed(url: str) -> None:
    """Until it takes no connection any more."""
    host, port = url.removeprefix("http://").split(":")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, int(port)), timeout=20).close()
        except OSError:
            return
        time.sleep(0.05)


def test_a_receiver_that_is_told_to_end_answers_what_is_under_way_and_leaves_nothing_half_done(
    lake: Lake, secret: str, tmp_path: Path
) -> None:
    body = b"".join(b'{"id": %d}\n' % n for n in range(9000, 9010))
    with receiving(lake.config.home, tmp_path / "log", "--no-ingest") as receiver:
        url = receiver.url
        half, rest = threading.Event(), threading.Event()
        answers: list[httpx.Response] = []

        def slowly() -> Iterator[bytes]:
            yield body[:50]
            half.set()
            rest.wait(30)
            yield body[50:]

        def send() -> None:
            headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/x-ndjson"}
            headers["Idempotency-Key"] = "slow"
            answers.append(httpx.post(f"{url}/v1/datasets/events/rows", content=slowly(), headers=headers, timeout=60))

        sending = threading.Thread(target=send)
        sending.start()
        assert half.wait(30)
        for _ in range(2):  # it has read what came before
            httpx.get(f"{url}/v1/health", timeout=60)
        receiver.process.send_signal(signal.SIGTERM)
        receiver.wait_for("stopping")
        wait_until_closed(url)
        with pytest.raises(httpx.TransportError):
            post(url, secret, "too-late", rows(1, 1))
        rest.set()
        sending.join()
        assert [a.status_code for a in answers] == [202]
        assert receiver.process.wait(60) == 0
        assert [e["event"] for e in receiver.told()] == ["listening", "stopping", "stopped"]
    time.sleep(0.3)
    assert [r.rows for r in lake.receiver.intake().step()] == [10]


class Client(threading.Thread):
    """Posts keyed bodies, and each again until it is answered 202; notes what was."""

    def __init__(self, secret: str, number: int, address: list[str], bodies: int) -> None:
        super().__init__(daemon=True)
        self.secret, self.number, self.address, self.bodies = secret, number, address, bodies
        self.taken: list[int] = []
        self.repeats = 0

    def run(self) -> None:
        for n in range(self.bodies):
            lo = self.number * 10**6 + n * 50
            while True:
                try:
                    answer = post(self.address[-1], self.secret, f"client-{self.number}-{n}", rows(lo, lo + 49))
                except (httpx.TransportError, IndexError):
                    time.sleep(0.05)
                    continue
                if answer.status_code == 202:
                    self.repeats += answer.json()["repeat"]
                    break
                assert answer.status_code in (409, 429, 503), answer.text
                time.sleep(0.05)
            self.taken += range(lo, lo + 50)
            time.sleep(0.01)


def test_everything_that_was_answered_is_in_the_table_once_however_often_the_receiver_is_killed(
    tmp_path: Path, make_home: MakeHome
) -> None:
    chance = random.Random(11)
    home = tmp_path / "lake"
    with make(home, make_home, batch_rows_max=2000) as lake:
        secret = lake.receiver.create_token("client")[1]
        address: list[str] = []
        clients = [Client(secret, n, address, bodies=BODIES) for n in range(2)]
        started = False
        for life in range(LIVES):
            last = life == LIVES - 1
            receiver = Receiver(home, tmp_path / f"log-{life}", "--port", "0")
            try:
                address.append(receiver.url)
                if not started:
                    started = True
                    for client in clients:
                        client.start()
                if not last:
                    receiver.wait_for("ingested")  # its JVM is up: now it may be killed at anything
                    time.sleep(chance.uniform(0, 1.5))
                    continue
                for client in clients:
                    client.join(400)
                assert not any(client.is_alive() for client in clients)
                deadline = time.monotonic() + 200
                while lake.status().receive:
                    assert time.monotonic() < deadline, (lake.status().receive, receiver.told()[-5:])
                    time.sleep(0.2)
                assert receiver.end() == 0
            finally:
                receiver.kill()
        expected = sorted(n for client in clients for n in client.taken)
        assert len(expected) == 2 * BODIES * 50
        assert in_table(lake) == expected
