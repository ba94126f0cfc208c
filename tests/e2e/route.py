"""From lake to lake over HTTP: a sender and a receiver, processes of their own that can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

import strandline
from strandline.core.delivery_types import Chunk, ChunkState
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.lake import Lake
from strandline.ledger.deliver import intents
from strandline.ledger.deliver import lanes as lane_records
from strandline.ledger.schema.receive import received as bodies_table
from tests.conftest import MakeHome
from tests.e2e.receiver import Receiver
from tests.fork_server import Forked
from tests.servers import free_port
from tests.spark.deliveries import Delivered, make_lake

SINK = "collector"
TOKEN = "TEST_FORWARD_TOKEN"
WAIT_SECONDS_MAX = 180
ORPHANS_SECONDS_MAX = 240


@dataclass
class Route:
    """A lake whose `events` are forwarded to the `events` of another, and the two processes that do it."""

    delivered: Delivered
    collector: Lake
    port: int
    logs: Path
    receiver: Receiver | None = None
    sender: Forked | None = None
    offspring: list[psutil.Process] = field(default_factory=list)
    """JVMs and workers of those that were killed: they end by themselves, but not at once."""

    @property
    def home(self) -> Path:
        return self.delivered.lake.config.home

    def add_sink(self, port: int, **options: str) -> None:
        """A receiver must be there: it is asked whether the place is free."""
        url = f"http://127.0.0.1:{port}/v1/datasets/events/rows"
        given = {"url": url, "token": f"env:{TOKEN}", **options}
        self.delivered.lake.delivery.add(SINK, "events", "forward", given)

    def start(self) -> None:
        """Whichever of the two is not there."""
        if self.receiver is None:
            self.receiver = self.start_receiver()
        if self.sender is None:
            self.sender = self.start_sender("run", "--json")

    def start_receiver(self, *arguments: str, failpoint: str = "") -> Receiver:
        self.receiver = Receiver(
            self.collector.config.home, self._log("receiver"), "--port", str(self.port), *arguments, failpoint=failpoint
        )
        assert self.receiver.url.endswith(f":{self.port}")
        return self.receiver

    def start_sender(self, *arguments: str, failpoint: str = "") -> Forked:
        with self._log("sender").open("wb") as out:
            self.sender = Forked(
                ["strandline.cli.main", *arguments],
                cwd=self.home, stdout=out, stderr=subprocess.STDOUT,
                env={**os.environ, "STRANDLINE_FAILPOINT": failpoint},
            )  # fmt: skip
        return self.sender

    def _log(self, name: str) -> Path:
        return self.logs / f"{name}-{len(list(self.logs.glob(f'{name}-*')))}"

    def kill_sender(self) -> None:
        if self.sender is not None:
            self._remember(self.sender.pid)
            self.sender.kill()
            self.sender.wait()
            self.sender = None

    def kill_receiver(self) -> None:
        if self.receiver is not None:
            self._remember(self.receiver.process.pid)
            self.receiver.kill()
            self.receiver = None

    def receiver_died(self) -> None:
        """Wait until its crash point has killed it, while the sender waits for its answer."""
        assert self.receiver is not None and self.sender is not None
        assert self.receiver.killed()
        self.receiver = None
        self._remember(self.sender.pid)
        assert self.sender.poll() is None, self.told()

    def sender_died(self) -> None:
        assert self.sender is not None
        assert self.sender.wait(WAIT_SECONDS_MAX) == -signal.SIGKILL, self.told()
        self.sender = None

    def _remember(self, pid: int) -> None:
        try:
            self.offspring += psutil.Process(pid).children(recursive=True)
        except psutil.NoSuchProcess:
            pass

    def end(self) -> list[psutil.Process]:
        """Nobody is left; whom it had to help along."""
        self.kill_sender()
        self.kill_receiver()
        _, left = psutil.wait_procs(self.offspring, ORPHANS_SECONDS_MAX)
        for each in left:
            each.kill()
        return left

    # --- what the two ledgers say ---

    def bodies(self) -> int:
        with self.collector.ledger.read() as connection:
            return int(connection.execute(sa.select(sa.func.count()).select_from(bodies_table)).scalar_one())

    def digests(self) -> dict[tuple[int, int], str]:
        with self.collector.ledger.read() as connection:
            found = connection.execute(sa.select(bodies_table.c.lo, bodies_table.c.hi, bodies_table.c.digest)).all()
        assert len({lo for lo, _, _ in found}) == len(found)
        return {(lo, hi): digest for lo, hi, digest in found}

    def under_way(self) -> list[Chunk]:
        """Chunks that are promised and of which the sender does not know that they landed."""
        with self.delivered.lake.ledger.read() as connection:
            stored = intents.open_of(connection, self.delivered.lake.delivery.get(SINK))
        return [c for i in stored for c in i.chunks if c.state is ChunkState.PLANNED]

    def chunks(self) -> list[Chunk]:
        lake = self.delivered.lake
        with lake.ledger.read() as connection:
            record = lake.delivery.get(SINK)
            events = lake.dataset("events").uuid
            [lane] = lane_records.list_lanes(connection, record, lake=lake.id, dataset=events)
            return [c for i in intents.history(connection, lane.id) for c in i.chunks]

    def wait(self, until: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not until():
            assert self.sender is None or self.sender.poll() is None, f"{what}: the sender ended\n{self.told()}"
            assert self.receiver is None or self.receiver.process.poll() is None, f"{what}: the receiver ended"
            assert time.monotonic() < deadline, f"{what}\n{self.told()}"
            time.sleep(0.01)

    def told(self) -> str:
        return "\n".join(f"{log.name}:\n{log.read_text('utf-8')[-1500:]}" for log in sorted(self.logs.iterdir()))


@contextmanager
def route(folder: Path, make_home: MakeHome, *, n: str = "long", job_rows_max: int = 6000) -> Iterator[Route]:
    """`n` is the type of the column at the receiver."""
    sending = {
        "deliver": {
            "lease_seconds": 1,  # who comes after one that was killed waits for its end
            "poll_seconds": 0.1,
            "retry_seconds_max": 1,
            "job_rows_max": job_rows_max,
        },
        "forward": {"allow": ["127.0.0.1"], "answer_seconds_max": WAIT_SECONDS_MAX},
    }
    receiving = {"receive": {"batch_wait_seconds_max": 0.2}, "ingest": {"lease_seconds": 2}}
    make_home(folder / "collector", receiving)
    logs = folder / "logs"
    logs.mkdir()
    with (
        make_lake(folder / "lake", make_home, sending) as lake,
        strandline.init_lake(folder / "collector") as collector,
        pytest.MonkeyPatch.context() as environ,
    ):
        columns = [{"name": "n", "type": n}, {"name": "k", "type": "string"}]
        collector.create_dataset("events", parse_columns(columns))
        environ.setenv(TOKEN, collector.receiver.create_token("lake")[1])
        made = Route(Delivered(lake), collector, free_port(), logs)
        try:
            yield made
        finally:
            left = made.end()
        assert not left, f"they outlived their parents by {ORPHANS_SECONDS_MAX} s: {left}"
