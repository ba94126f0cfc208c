"""A site that begins empty and catches up, against a plain copy of the same table in the same JVM."""

from __future__ import annotations

from bench import lakes
from bench.measure import Bench, Measurement, in_turn, seconds_of, settle_disk
from bench.replicate.sites import DATASET, SHARDS, Leader
from bench.results import Figure, Goal, Samples
from bench.serve.requests import served
from strandline.lake import Lake

BATCHES = 20
_PEER = "INSERT … SELECT of the same rows into another table"
SHARED = Figure("catch-up of 4 million rows from shared storage", "rows/s", _PEER, Goal(0.8, "at least"))
HTTP = Figure("catch-up of 4 million rows over HTTP", "rows/s", _PEER, Goal(0.5, "at least"))


def measure(bench: Bench) -> dict[str, Samples]:
    rows = bench.sized(4_000_000, 40_000)
    leader = Leader.make(bench)
    for n in range(BATCHES):
        bench.say(f"filling the leader: batch {n + 1} of {BATCHES}")
        leader.append(n * (rows // BATCHES), rows // BATCHES, files=2)

    def catch_up(name: str, at: str) -> float:
        with leader.followed(name, at) as site:
            settle_disk()
            took = seconds_of(lambda: _follow(site))
            if site.sealed(DATASET) != leader.lake.sealed(DATASET):
                raise RuntimeError("the follower did not catch up")
        return rows / took

    def copy(n: int) -> float:
        """With all columns, the sequence number too: the same rows as a follower's."""
        spark = leader.lake.spark
        table = lakes.plain_table(leader.lake, f"copy_{n}", leader.lake.dataset(DATASET), numbered=True)
        settle_disk()
        took = seconds_of(lambda: spark.sql(f"INSERT INTO {table} SELECT * FROM lake.default.{DATASET}"))
        lakes.remove(leader.lake, table)
        return rows / took

    with served(leader.lake.config.home) as url:
        sides = (
            lambda n: catch_up(f"shared-{n}", str(leader.lake.config.home)),
            copy,
            lambda n: catch_up(f"http-{n}", url),
        )
        bench.say("warming up")
        for side in sides:
            side(99)
        shared, copied, http = in_turn(bench, 5, *sides)
    shape = {"rows": rows, "batches": BATCHES, "shards": SHARDS}
    return {SHARED.name: Samples(shared, copied, shape), HTTP.name: Samples(http, copied, shape)}


def _follow(site: Lake) -> None:
    report = site.replication.follow_once()
    if report.failed:
        raise report.failed[0]


MEASUREMENT = Measurement((SHARED, HTTP), measure)
