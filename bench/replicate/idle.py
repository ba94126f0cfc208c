"""A follower that has everything: what its polls cost the leader, over shared storage and over HTTP."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import sqlalchemy as sa

from bench import lakes
from bench.measure import Bench, Measurement, in_turn, seconds_of
from bench.replicate.sites import TOKEN
from bench.results import Figure, Goal, Samples
from bench.serve.large_lake import make_datasets
from bench.serve.requests import serving
from strandline.core.types import BlockKind, DatasetUuid, Seq
from strandline.iceberg.session.spark_internals import running_context
from strandline.lake import Lake, open_lake
from strandline.lake_admin import follow_lake
from strandline.ledger.ingest import restored_blocks, sequence

if TYPE_CHECKING:
    from pyiceberg.table import Table

SAMPLES = 7
SHARED = Figure(
    "idle poll of 50 datasets from shared storage, at the leader's ledger", "ms", None, Goal(5.0, "at most", "ours")
)
HTTP = Figure(
    "idle poll of 50 datasets over HTTP, processor time of the leader", "ms", None, Goal(5.0, "at most", "ours")
)
REQUESTS = Figure("reads of the leader's ledger in an idle pass", "reads", None, Goal(1, "exactly", "ours"))
TABLES = Figure("tables read in an idle pass, at either site", "tables", None, Goal(0, "exactly", "ours"))
SPARK = Figure("JVMs that an idle pass starts", "JVMs", None, Goal(0, "exactly", "ours"))


def measure(bench: Bench) -> dict[str, Samples]:
    count, polls = bench.sized(50, 3), bench.sized(100, 5)
    leader, follower = bench.work / "leader", bench.work / "follower"
    bench.say("making a leader with many datasets, and a follower that has them")
    _make_leader(leader, count)
    _catch_up(follower, leader)
    counted: list[tuple[int, int, bool]] = []

    def shared(n: int) -> float:
        with open_lake(follower) as site, _counting(site) as counts:
            source = site.replication.follower.context.source
            site.replication.follow_once()  # the first one says how far the site is
            counts.clear()
            site.replication.follow_once()
            counted.append((counts.reads, counts.tables, running_context() is not None))
            after = _bounds(site)
            took = seconds_of(lambda: [source.poll(after, items_max=1000) for _ in range(polls)])
        return took / polls * 1000

    (of_ledger,) = in_turn(bench, SAMPLES, shared)
    with serving(leader) as (url, pid):
        follow_lake(follower, url, token=f"env:{TOKEN}").close()
        with open_lake(follower) as site:
            passes(site, polls)  # warm-up
            (of_server,) = in_turn(bench, SAMPLES, lambda n: _cpu_ms(pid, lambda: passes(site, polls)) / polls)
    shape = {"datasets": count, "polls": polls}
    return {
        SHARED.name: Samples(of_ledger, None, shape),
        HTTP.name: Samples(of_server, None, shape),
        REQUESTS.name: Samples([reads for reads, _, _ in counted], None, shape),
        TABLES.name: Samples([tables for _, tables, _ in counted], None, shape),
        SPARK.name: Samples([int(started) for _, _, started in counted], None, shape),
    }


def passes(site: Lake, count: int) -> None:
    for _ in range(count):
        report = site.replication.follow_once()
        if report.recorded or report.failed:
            raise RuntimeError("the pass was not idle")


def _make_leader(home: Path, count: int) -> None:
    """Each dataset has a block, and no rows."""
    with lakes.new_lake(home) as lake:
        for n, made in enumerate(make_datasets(lake, count)):
            with lake.ledger.write() as connection:
                rows, _ = sequence.take(connection, lake.witness, 10, step="reserve")
                restored_blocks.insert_published(
                    connection, made.id, rows, kind=BlockKind.RECOVERED, batch_id=f"rows-{n}"
                )
        _, os.environ[TOKEN] = lake.followers.add("bench")


def _catch_up(home: Path, leader: Path) -> None:
    """Stops Spark afterwards: what is measured must not start it again."""
    from strandline.iceberg.session.lake_session import stop_spark

    with follow_lake(home, str(leader), token=f"env:{TOKEN}") as site:
        while (report := site.replication.follow_once()).recorded or report.made:
            if report.failed:
                raise report.failed[0]
    stop_spark()


def _bounds(site: Lake) -> dict[DatasetUuid, Seq]:
    from strandline.ledger.replicate import following

    return {f.dataset.uuid: f.bound for f in site.ledger.query(following.list_followed)}


@dataclass
class _Counts:
    reads: int = 0  # transactions at the leader's ledger
    tables: int = 0

    def clear(self) -> None:
        self.reads = self.tables = 0


@contextmanager
def _counting(site: Lake) -> Iterator[_Counts]:
    from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog

    counts, load = _Counts(), PyIcebergCatalog.load

    def began(connection: sa.Connection) -> None:
        counts.reads += connection.engine is not site.ledger.engine

    def counted_load(catalog: PyIcebergCatalog, name: str) -> Table:
        counts.tables += 1
        return load(catalog, name)

    sa.event.listen(sa.Engine, "begin", began)
    PyIcebergCatalog.load = counted_load  # type: ignore[method-assign]
    try:
        yield counts
    finally:
        PyIcebergCatalog.load = load  # type: ignore[method-assign]
        sa.event.remove(sa.Engine, "begin", began)


def _cpu_ms(pid: int, work: Callable[[], None]) -> float:
    """Time of the process's own, which other work on the machine does not lengthen much."""
    process = psutil.Process(pid)
    before = process.cpu_times()
    work()
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) * 1000


MEASUREMENT = Measurement((SHARED, HTTP, REQUESTS, TABLES, SPARK), measure)
