"""Two machines over one PostgreSQL ledger, each with a daemon, a receiver, a writer and clients. One dies: each row is
in the lake once, and in the sink once."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

import strandline
from strandline.core.settings.lake_config import CONFIG_NAME
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.lake import Lake
from tests.campaign import report_fired, scaled, seed
from tests.conftest import MakeHome
from tests.e2e.receiver import Receiver, post
from tests.fork_server import Forked
from tests.processes import start
from tests.spark.lakes import in_main

pytestmark = pytest.mark.timeout(1500)

WAIT_SECONDS_MAX = 300
LEASE = {"lease_seconds": 4}
NAMES = ("first", "second")
BODIES = scaled(30, 400)
"""Of each client."""
BODY_ROWS = 10
BATCHES = scaled(4, 40)
"""Which both writers offer."""
BATCH_ROWS = 10  # of tests.e2e.writer
KILLS = scaled(1, 8)
SEED = 31


@dataclass
class Machine:
    """Settings of its own for the lake, and the processes that a service manager would keep."""

    name: str
    home: Path
    lives: int = 0
    daemon: Forked | None = None
    receiver: Receiver | None = None
    address: str = ""

    def start(self) -> None:
        self.lives += 1
        log = self.home / f"daemon-{self.lives}.log"
        with log.open("w") as out:
            self.daemon = Forked(
                ["strandline.cli.main", "run", "--json"], cwd=self.home, env=os.environ, stdout=out, stderr=out
            )
        self.receiver = Receiver(self.home, self.home / f"receiver-{self.lives}.log", "--port", "0")
        self.address = self.receiver.url

    def kill(self) -> None:
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.wait()
        if self.receiver is not None:
            self.receiver.kill()

    def end(self) -> None:
        assert self.daemon is not None and self.receiver is not None
        self.daemon.send_signal(signal.SIGTERM)
        assert (self.daemon.wait(WAIT_SECONDS_MAX), self.receiver.end()) == (0, 0)

    def did(self, event: str) -> int:
        lines = (line for log in self.home.glob("*.log") for line in log.read_text("utf-8").splitlines())
        return sum(f'"event": "{event}"' in line for line in lines)


@dataclass
class Client(threading.Thread):
    """Posts each of its bodies until one of the receivers has taken it: the next attempt goes to the other one."""

    machines: list[Machine]
    secret: str
    number: int
    taken: list[int] = field(default_factory=list)
    moved: int = 0

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def run(self) -> None:
        for n in range(BODIES):
            first = (self.number + 1) * 10**6 + n * BODY_ROWS
            rows = [{"id": i, "text": f"row {i}"} for i in range(first, first + BODY_ROWS)]
            self._send(f"client-{self.number}-{n}", rows)
            self.taken += [row["id"] for row in rows]

    def _send(self, key: str, rows: list[dict[str, Any]]) -> None:
        at = self.number
        while True:
            try:
                answer = post(self.machines[at % 2].address, self.secret, key, rows)
            except httpx.TransportError:
                at, self.moved = at + 1, self.moved + 1
                time.sleep(0.02)
                continue
            if answer.status_code == 202:
                return
            assert answer.status_code in (409, 429, 503), answer.text
            time.sleep(0.02)

    def __hash__(self) -> int:
        return id(self)


@dataclass
class Site:
    lake: Lake
    machines: list[Machine]

    def wait_until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not holds():
            assert time.monotonic() < deadline, self.lake.status()
            time.sleep(0.05)

    def has(self, rows: int) -> bool:
        """Whether all that was received is in the table, and all of the table in the sink."""
        status = self.lake.status()
        [out] = status.sinks
        return not status.receive and out.exported == rows

    def delivered(self) -> list[int]:
        objects = (self.lake.config.home / "out").rglob("*.jsonl")
        return sorted(json.loads(line)["id"] for path in objects for line in path.open())


@pytest.fixture
def site(tmp_path: Path, make_home: MakeHome, postgres_database: str, spark_started: object) -> Iterator[Site]:
    homes = [tmp_path / name for name in NAMES]
    settings: dict[str, dict[str, Any]] = {
        "ledger": {"url": postgres_database},
        "warehouse": {"url": str(tmp_path / "warehouse")},
        "catalog": {"path": str(tmp_path / "catalog.db")},
        "ingest": LEASE,
        "deliver": LEASE | {"poll_seconds": 0.2},
        "receive": {"batch_wait_seconds_max": 0.2},
    }
    make_home(homes[0], settings)
    with strandline.init_lake(homes[0]) as lake:
        columns = [{"name": "id", "type": "long"}, {"name": "text", "type": "string"}]
        lake.create_dataset("events", parse_columns(columns))
        lake.delivery.add("out", "events", "files", {"path": str(homes[0] / "out"), "format": "jsonl"})
        homes[1].mkdir()
        shutil.copy(homes[0] / CONFIG_NAME, homes[1])
        made = Site(lake, [Machine(name, home) for name, home in zip(NAMES, homes, strict=True)])
        with running(made):
            yield made


@contextmanager
def running(site: Site) -> Iterator[None]:
    try:
        for machine in site.machines:
            machine.start()
        yield
    finally:
        for machine in site.machines:
            machine.kill()


def write(machine: Machine) -> Any:
    command = ["tests.e2e.writer", str(machine.home), "append-many", "0", str(BATCHES)]
    with (machine.home / "writer").open("w") as out:
        return start(command, cwd=machine.home, env=os.environ, stdout=out, stderr=out)


def test_rows_are_once_in_lake_and_sink_when_one_of_two_machines_dies(
    site: Site, record_property: Callable[[str, object], None]
) -> None:
    choose = random.Random(seed(SEED))
    secret = site.lake.receiver.create_token("client")[1]
    clients = [Client(site.machines, secret, number) for number in range(2)]
    writers = [write(machine) for machine in site.machines]
    for client in clients:
        client.start()
    for kill in range(KILLS):
        taken = (kill + 1) * BODIES * BODY_ROWS // (KILLS + 1)  # by each of the clients
        site.wait_until(lambda taken=taken: all(len(client.taken) >= taken for client in clients))
        dead = site.machines[choose.randrange(2)]
        assert any(client.is_alive() for client in clients)
        dead.kill()
        if KILLS > 1:
            dead.start()
    for client in clients:
        client.join(WAIT_SECONDS_MAX)
        assert not client.is_alive()
    for writer, machine in zip(writers, site.machines, strict=True):
        assert writer.wait(WAIT_SECONDS_MAX) == 0, (machine.home / "writer").read_text("utf-8")
    expected = sorted([*range(BATCHES * BATCH_ROWS), *(n for client in clients for n in client.taken)])
    assert len(expected) == BATCHES * BATCH_ROWS + 2 * BODIES * BODY_ROWS
    site.wait_until(lambda: site.has(len(expected)))
    assert sum(client.moved for client in clients) > 0, "a client went from a dead receiver to the other one"
    for machine in site.machines:
        if machine is not dead or KILLS > 1:
            machine.end()
    assert sorted(n for _, n in in_main(site.lake, "events", "id")) == expected
    assert site.delivered() == expected and site.lake.delivery.verify().ok
    did = {
        f"{event} by {machine.name}": machine.did(event)
        for machine in site.machines
        for event in ("delivered", "ingested")
    }
    report_fired(record_property, did | {"machines killed": KILLS}, SEED)
