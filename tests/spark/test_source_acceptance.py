"""The streaming source where Iceberg's own read dies: a query that fails, is killed and is started again, while rows
arrive and the table is compacted, retained and expired, also between the planning of a batch and its read. An
idempotent target has each row once. Iceberg's own streaming read goes beside it."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import psutil
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

import strandline
from strandline.lake import Lake
from strandline.ledger.read import consumers
from tests.campaign import scaled, seed
from tests.conftest import MakeHome
from tests.spark.lakes import create, new_lake, numbers
from tests.spark.test_acceptance import example
from tests.spark.test_source import SLOW, read
from tests.spark.upkeep import compact_as_anyone, expire_as_anyone

__all__ = ["example"]

TRIES_MAX = 30
"""How often a query is started again until it has come through a round, at most."""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Iterator[Lake]:
    with new_lake(tmp_path_factory.mktemp("accepted"), make_home) as lake:
        strandline.register(lake.spark)
        yield lake


class Died(Exception):
    pass


class Target:
    """One file for each batch; the batch that is repeated replaces its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def write(self, df: DataFrame, epoch: int) -> None:
        values = sorted(r.n for r in df.collect())
        temporary = self.folder / f".{epoch}"
        temporary.write_text(json.dumps(values), "utf-8")
        known = self.folder / f"{epoch}.json"
        if known.exists():
            assert json.loads(known.read_text("utf-8")) == values, "a batch that is repeated has the same rows"
        temporary.replace(known)

    @property
    def values(self) -> list[int]:
        return sorted(n for f in self.folder.glob("*.json") for n in json.loads(f.read_text("utf-8")))


class Query:
    def __init__(self, lake: Lake, target: Target, checkpoint: Path) -> None:
        self.lake, self.target, self.checkpoint = lake, target, checkpoint
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self.failures: Counter[str] = Counter()

    def run(self) -> None:
        """Until it has everything, started again whenever it fails. What goes wrong goes wrong once."""
        tries = 0
        while tries < TRIES_MAX:
            options = {"lake": str(self.lake.config.home), "consumer": "report", "max_rows_per_trigger": "7"}
            frame = self.lake.spark.readStream.format("strandline").options(**options).load("events")
            writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self.checkpoint))
            query = writer.start()
            try:
                query.processAllAvailable()
                return
            except StreamingQueryException as e:
                tries += SLOW not in str(e)
                self.failures[self._why(str(e))] += 1
            finally:
                query.stop()
        raise AssertionError(f"the query does not come through: {self.failures}")

    def _take(self, df: DataFrame, epoch: int) -> None:
        before, self.before = self.before, lambda: None
        before()
        self.target.write(df, epoch)
        after, self.after = self.after, lambda: None
        after()

    @staticmethod
    def _why(text: str) -> str:
        return next((w for w in ("Died", SLOW) if w in text), "killed" if "exception:  SQLSTATE" in text else text)


def die() -> None:
    raise Died


def kill_readers() -> None:
    """The processes in which Spark keeps the readers of streams, as a machine that runs out of memory does it."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "python_streaming_source_runner" in " ".join(process.cmdline()):
                os.kill(process.pid, signal.SIGKILL)


def test_each_row_is_in_an_idempotent_target_once_whatever_happens(
    lake: Lake, example: ModuleType, tmp_path: Path
) -> None:
    create(lake, "events", {"n": "long"})
    dice = random.Random(seed(18))
    target = Target(tmp_path / "target")
    query = Query(lake, target, tmp_path / "checkpoint")
    peer = example.StreamingRead(lake, tmp_path / "peer")

    def retain() -> None:
        lake.maintenance.retain("events", older_than=timedelta(0))

    care: list[Callable[[], object]] = [
        lambda: compact_as_anyone(lake, "events"),
        lambda: lake.maintenance.compact("events"),
        retain,
        lambda: expire_as_anyone(lake, "events"),
    ]

    def maintain() -> None:
        for step in dice.sample(care, 2):
            step()

    rows = 0
    moments = [(m, when) for m in (die, kill_readers, maintain) for when in ("before", "after")]
    for n in range(scaled(len(moments), 3 * len(moments))):
        count = dice.randrange(5, 15)
        lake.append("events", numbers(lake, rows + 1, rows + count))
        rows += count
        mishap, when = moments[n % len(moments)]
        setattr(query, when, mishap)
        query.run()
        maintain()
        if n == 0:
            assert peer.run() is None
    retain()
    expire_as_anyone(lake, "events")
    assert peer.run() is not None, "Iceberg's own read cannot go on"
    assert target.values == list(range(1, rows + 1))
    assert query.failures["Died"] >= 2 and query.failures["killed"] >= 1, query.failures
    reached = lake.ledger.query(consumers.get, lake.dataset("events"), "report").watermark
    left = sorted(r.n for r in read(lake, "events").collect())
    assert reached is not None and left == list(range(rows - len(left) + 1, rows + 1))
    assert len(left) < rows, "and retention deleted what the consumer had"
