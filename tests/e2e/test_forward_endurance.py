"""Rows from lake to lake over HTTP while sender and receiver, processes of their own, are killed again and again."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
import sqlalchemy as sa

import strandline
from strandline.cli.main import run
from strandline.deliver.digests import bare
from strandline.delivery import Chunk, ChunkState
from strandline.lake import Lake
from strandline.ledger import intents, quarantine, received
from strandline.ledger import lanes as lane_records
from strandline.ledger.schema_receive import received as bodies_table
from strandline.tables.schema_file import parse_columns
from strandline.types import Seq, SeqRange
from tests.conftest import MakeHome
from tests.e2e.receiver import Receiver
from tests.e2e.recording import recording
from tests.servers import free_port
from tests.spark.deliveries import LEASE_SECONDS, Delivered, make_lake

pytestmark = pytest.mark.timeout(900)

ROWS = 100_000
BATCH_ROWS = 750
JOB_BATCHES = 8
"""Many jobs for few rows cost most of the time here; few, and nobody is killed between two of them."""
FIRST_ROWS, MEANWHILE_ROWS, MORE_ROWS = 16_000, 10_000, 12_000
"""What is there at the start; what comes while somebody is dead; what comes while all are at work."""
SINK = "collector"
TOKEN = "TEST_FORWARD_TOKEN"
WAIT_SECONDS_MAX = 180
ORPHANS_SECONDS_MAX = 60


@dataclass
class Route:
    """A lake whose `events` are forwarded to the `events` of another, and the two processes that do it."""

    delivered: Delivered
    collector: Lake
    port: int
    logs: Path
    receiver: Receiver | None = None
    sender: subprocess.Popen[bytes] | None = None
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

    def start_sender(self, *arguments: str, failpoint: str = "") -> subprocess.Popen[bytes]:
        with self._log("sender").open("wb") as out:
            self.sender = subprocess.Popen(
                [sys.executable, "-m", "strandline.cli.main", *arguments],
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
            table_uuid = lake.dataset("events").table_uuid
            [lane] = lane_records.every(connection, record, lake=lake.id, table_uuid=table_uuid)
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
def route(folder: Path, make_home: MakeHome, *, n: str = "long") -> Iterator[Route]:
    """`n` is the type of the column at the receiver."""
    sending = {
        "deliver": {"poll_seconds": 0.1, "retry_seconds_max": 1, "job_rows_max": JOB_BATCHES * BATCH_ROWS},
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


def rows_of(lake: Lake) -> pa.Table:
    """All that stand in the table, in order."""
    return lake.spark.sql("SELECT n, k FROM lake.default.events").toArrow().sort_by("n")


def assert_each_row_is_there_once(made: Route) -> None:
    ingested, there = rows_of(made.delivered.lake), rows_of(made.collector)
    assert ingested["n"].to_pylist() == list(range(1, made.delivered.rows + 1))
    assert there.num_rows == ingested.num_rows and there.equals(ingested)


# --- endurance ---


def killed_at_work(made: Route, victim: str, choose: random.Random, *, ingests: bool) -> int:
    """Kill it when it has had a part in some bodies, and while more are on their way. How many bodies were recorded
    then."""
    before = made.bodies()
    made.start()
    with ThreadPoolExecutor(1) as pool:
        if ingests:  # its JVM is up: it may die of the kill in the middle of a batch, too
            assert made.receiver is not None
            made.receiver.wait_for("ingested")
            before = made.bodies()
            feeding = pool.submit(made.delivered.ingest, MORE_ROWS)
        few = choose.randint(1, JOB_BATCHES - 1)
        made.wait(
            lambda: made.bodies() >= before + few and len(made.under_way()) > JOB_BATCHES, "it is never in the middle"
        )
        time.sleep(choose.uniform(0, 0.05))
        if victim == "sender":
            made.kill_sender()
        else:
            made.kill_receiver()
        left, recorded = made.under_way(), made.bodies()
        if ingests:
            feeding.result()
    assert left, f"the {victim} had nothing to do when it was killed"
    return recorded


def test_a_hundred_thousand_rows_arrive_once_though_sender_and_receiver_are_killed_three_times_each(
    tmp_path: Path, make_home: MakeHome, spark_started: object, capsys: pytest.CaptureFixture[str]
) -> None:
    choose = random.Random(20261117)
    victims = ["sender", "receiver"] * 3
    choose.shuffle(victims)
    ingests = iter((True, False, True))
    waiting = 0
    with route(tmp_path, make_home) as made:
        made.start_receiver()
        made.add_sink(made.port, chunk_rows_max=str(BATCH_ROWS))
        made.delivered.ingest(FIRST_ROWS)
        recorded = 0
        for victim in victims:
            at_death = killed_at_work(made, victim, choose, ingests=victim == "receiver" and next(ingests))
            assert at_death > recorded, "who came next went on"
            recorded = at_death
            waiting += sum(w.rows for w in made.collector.status().receive)
            made.delivered.ingest(MEANWHILE_ROWS)  # before whoever comes next can go on
        made.start()
        made.wait(lambda: made.delivered.is_done and not made.collector.status().receive, "it does not get done")
        assert made.bodies() > recorded
        assert waiting > 0, "no kill left rows that were answered for and not ingested"
        assert made.delivered.rows == ROWS
        assert_each_row_is_there_once(made)
        assert_verified(made, capsys)
        assert made.sender is not None and made.receiver is not None
        made.sender.send_signal(signal.SIGTERM)
        assert made.sender.wait(WAIT_SECONDS_MAX) == 0 and made.receiver.end() == 0
        with made.collector.ledger.read() as connection:
            assert received.waiting_bytes(connection) == 0, "files whose rows are published are left"


def assert_verified(made: Route, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("STRANDLINE_DELIVER__JOB_ROWS_MAX", str(ROWS))  # it builds everything again: in one job
        code = run(["verify", SINK, "--json", "--config", str(made.home)])
    said = capsys.readouterr().out
    assert code == 0, said
    [verdict] = json.loads(said)["sinks"]
    assert verdict["ok"] and (verdict["rows"], verdict["watermark"], verdict["quarantined"]) == (ROWS, ROWS, 0)
    lake = made.delivered.lake
    with lake.ledger.read() as connection:
        assert quarantine.every(connection, lake.delivery.get(SINK)) == []


# --- the retry ---


def test_rows_that_arrive_before_the_retry_do_not_change_it_though_both_ends_are_killed(
    tmp_path: Path, make_home: MakeHome, spark_started: object
) -> None:
    """The receiver dies when it has committed and not answered; the sender, when the answer to its retry has come."""
    with route(tmp_path, make_home) as made, recording(made.port) as (port, posted):
        made.start_receiver("--no-ingest", failpoint="receive.after_commit=kill")
        made.add_sink(port)
        made.delivered.ingest(40)
        made.start_sender("tick", "--sink", SINK, "--json", failpoint="forward.after_post=kill")
        made.receiver_died()
        made.delivered.ingest(60)
        first, digest = (1, 40), made.digests()[1, 40]
        assert [p.answer for p in posted] == [None] and made.digests().keys() == {first}
        made.start_receiver("--no-ingest")
        made.sender_died()
        assert [c.rows for c in made.under_way()] == [SeqRange(Seq(1), Seq(40))], "it did not get to note the answer"
        made.delivered.ingest(60)
        time.sleep(LEASE_SECONDS + 0.1)
        [report] = made.delivered.lake.tick(SINK).sinks
        assert (report.did, report.rows) == ("delivered", 160), report

        lost, repeated, *others = posted
        assert lost.request == repeated.request
        assert repeated.answer["repeat"] and (repeated.answer["rows"], repeated.answer["digest"]) == (40, digest)
        keys = [lost.key, *(p.key for p in others)]
        assert len(keys) == len(set(keys)), "what landed was sent again"
        kept = {p.key: f"sha256:{hashlib.sha256(p.content).hexdigest()}" for p in posted}
        assert sorted(made.digests().values()) == sorted(kept.values()) and kept[lost.key] == digest
        assert {(c.rows.lo, c.rows.hi): bare(c.digest or "") for c in made.chunks()} == made.digests()
        time.sleep(0.3)  # so long a body waits for others
        assert sum(r.rows for r in made.collector.receiver.intake().step()) == 160
        assert_each_row_is_there_once(made)
