"""Rows go through a sink of each kind while the daemon is killed again and again, and a consumer watches."""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from strandline.ledger.deliver import sinks
from tests.campaign import scaled
from tests.conftest import MakeHome
from tests.fork_server import Forked
from tests.servers import S3, Postgres
from tests.spark.deliveries import (
    Delivered,
    Destination,
    Objects,
    Table,
    in_bucket,
    in_folder,
    in_table,
    keys_of,
    make_lake,
)

pytestmark = pytest.mark.timeout(900)

ROWS = scaled(24_000, 100_000)
KILLS = scaled(2, 5)
KILLS_MAX = 12  # some come too late on a machine that delivers faster than the test looks
BATCH_ROWS = 750
WAIT_SECONDS_MAX = 420


@dataclass
class Watch:
    """A consumer that reads what lies at or below the mark, while it is delivered."""

    sink: Destination
    read: dict[str, tuple[int, int]] = field(default_factory=dict)
    numbers: set[int] = field(default_factory=set)

    def look(self) -> None:
        if isinstance(self.sink, Table):
            for found, distinct in self.sink.ask("SELECT count(*), count(DISTINCT _ingest_seq) FROM events"):
                assert found == distinct, f"{found - distinct} rows stand there twice"
        elif isinstance(self.sink, Objects):
            self._look_at(self.sink)

    def _look_at(self, sink: Objects) -> None:
        mark = sink.mark()
        objects = [o for lane in sink.lanes().values() for o in lane]
        for a, b in itertools.pairwise(objects):
            assert a.hi < b.lo, f"{a.path} and {b.path} overlap"
        below = [o for o in objects if o.hi <= mark]
        covered = sum(o.hi - o.lo + 1 for o in below)
        assert covered == mark, f"{covered} numbers lie at or below the mark {mark}"
        for o in below:
            there = o.path.stat()
            state = (there.st_ino, there.st_mtime_ns)
            if o.path.name in self.read:
                assert self.read[o.path.name] == state, f"{o.path} is another one than it was"
                continue
            found = o.read()["_ingest_seq"].to_pylist()
            assert sorted(found) == list(range(o.lo, o.hi + 1)) and self.numbers.isdisjoint(found)
            self.numbers.update(found)
            self.read[o.path.name] = state


@contextmanager
def watched(delivered: Delivered) -> Iterator[list[Watch]]:
    watches = [Watch(sink) for sink in delivered.sinks.values()]
    done = threading.Event()
    troubles: list[BaseException] = []

    def watch() -> None:
        try:
            while not done.wait(0.5):
                for each in watches:
                    each.look()
        except BaseException as e:
            troubles.append(e)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield watches
    finally:
        done.set()
        thread.join()
    for trouble in troubles:
        raise trouble
    for each in watches:
        each.look()


@pytest.fixture
def delivered(
    tmp_path: Path,
    make_home: MakeHome,
    s3: S3,
    postgres_server: Postgres,
    spark_started: object,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Delivered]:
    for name, value in keys_of(s3).items():
        monkeypatch.setenv(name, value)
    # Who comes after one that was killed waits for the end of its lease.
    quick = {"deliver": {"lease_seconds": 1, "poll_seconds": 0.1, "job_rows_max": 20 * BATCH_ROWS}}
    with make_lake(tmp_path / "lake", make_home, quick) as lake:
        made = Delivered(lake)
        for destination in (
            in_folder(tmp_path / "parquet"),
            in_folder(tmp_path / "lines", format="jsonl", compression="zst"),
            in_bucket(s3),
            in_table(postgres_server.create_database()),
        ):
            made.add(destination, chunk_rows_max=str(BATCH_ROWS))
        yield made


@contextmanager
def daemon(delivered: Delivered) -> Iterator[Forked]:
    process = Forked(["strandline.cli.main", "run", "--json"], cwd=delivered.lake.config.home)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for_something_new(delivered: Delivered, process: Forked) -> None:
    before = things(delivered)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while things(delivered) == before:
        assert process.poll() is None and time.monotonic() < deadline, "it delivers nothing"
        time.sleep(0.05)


def things(delivered: Delivered) -> int:
    return sum(len(lane) for s in delivered.sinks.values() if isinstance(s, Objects) for lane in s.lanes().values())


def interrupted(delivered: Delivered) -> int:
    with delivered.lake.ledger.read() as connection:
        return sum(w.open_intents for w in sinks.due(connection))


def test_every_row_reaches_every_sink_once_though_the_daemon_is_killed_again_and_again(
    delivered: Delivered,
) -> None:
    choose = random.Random(20261115)
    kills = cut_off = 0
    with watched(delivered) as watches:
        delivered.ingest(ROWS // (KILLS + 1))
        while kills < KILLS or (cut_off == 0 and kills < KILLS_MAX):
            with daemon(delivered) as process:
                wait_for_something_new(delivered, process)
                time.sleep(choose.uniform(0, 1))
            kills += 1
            cut_off += interrupted(delivered)
            delivered.ingest(ROWS // (KILLS + 1))  # before whoever comes next can go on
        with daemon(delivered) as process:
            deadline = time.monotonic() + WAIT_SECONDS_MAX
            while not delivered.is_done:
                assert process.poll() is None and time.monotonic() < deadline, "it does not get done"
                time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(180) == 0
    assert cut_off > 0, "no kill came in the middle of anything"
    assert delivered.rows == ROWS // (KILLS + 1) * (kills + 1)
    for name, sink in delivered.sinks.items():
        assert sink.see().rows == delivered.expected, name
    assert all(len(w.numbers) == delivered.rows for w in watches if isinstance(w.sink, Objects))
