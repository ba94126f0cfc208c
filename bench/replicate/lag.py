"""How far a follower is behind while its leader ingests: from publishing a batch to its rows being readable there."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from statistics import median

import sqlalchemy as sa

from bench.measure import Bench, Measurement, seconds_of
from bench.replicate.sites import DATASET, Leader
from bench.results import Figure, Goal, Samples
from bench.serve.requests import served
from bench.shell import STRANDLINE
from strandline.core.settings.follow import FollowSettings
from strandline.core.types import Seq
from strandline.lake import Lake
from strandline.ledger.schema.core import block

BATCHES, ROWS = 20, 1000
SAMPLES = 5
_WAIT_SECONDS_MAX = 300
_PEER = "3 × the leader's own append of a batch, plus the poll interval"
SHARED = Figure("lag of 20 batches of 1,000 rows, 99th percentile, shared storage", "s", _PEER, Goal(1.0, "at most"))
HTTP = Figure("lag of 20 batches of 1,000 rows, 99th percentile, over HTTP", "s", _PEER, Goal(1.0, "at most"))


def measure(bench: Bench) -> dict[str, Samples]:
    leader = Leader.make(bench)
    rounds = _Rounds(leader)
    rounds.append_all()  # warm-up
    count = bench.sized(SAMPLES, 1)
    found = {}
    with served(leader.lake.config.home) as url:
        for figure, at in ((SHARED, str(leader.lake.config.home)), (HTTP, url)):
            with leader.followed(f"site-{len(found)}", at) as site, _following(site):
                rounds.run(site)  # until its JVM is warm
                samples = []
                for n in range(count):
                    bench.say(f"{figure.name}: sample {n + 1} of {count}")
                    samples.append(rounds.run(site))
            shape = {"batches": BATCHES, "rows": ROWS, "poll_seconds": FollowSettings().poll_seconds}
            found[figure.name] = Samples([lag for lag, _ in samples], [most for _, most in samples], shape)
    return found


class _Rounds:
    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._first = 0

    def append_all(self) -> list[float]:
        """How long each batch took to be published."""
        took = []
        for _ in range(BATCHES):
            took.append(seconds_of(lambda: self._leader.append(self._first, ROWS, files=1)))
            self._first += ROWS
        return took

    def run(self, site: Lake) -> tuple[float, float]:
        """The lag, and what it may be."""
        before = self._leader.lake.sealed(DATASET) or Seq(0)
        _wait_for(lambda: site_has(site, before))
        took = self.append_all()
        sealed = self._leader.lake.sealed(DATASET) or Seq(0)
        _wait_for(lambda: site_has(site, sealed))
        published, there = _published(self._leader.lake, before), _published(site, before)
        lags, readable = [], None
        for hi in sorted(published):  # rows are readable when all below them are there, too
            readable = there[hi] if readable is None else max(readable, there[hi])
            lags.append((readable - published[hi]).total_seconds())
        # Of twenty, the 99th percentile is the longest.
        return max(lags), 3 * median(took) + FollowSettings().poll_seconds


def site_has(site: Lake, number: Seq) -> bool:
    known = {d.name for d in site.datasets()}
    return f"default.{DATASET}" in known and (site.sealed(DATASET) or 0) >= number


def _published(lake: Lake, after: Seq) -> dict[int, datetime]:
    query = sa.select(block.c.hi, block.c.changed_at).where(block.c.lo > after, block.c.state == "published")
    with lake.ledger.read() as connection:
        return {r.hi: r.changed_at for r in connection.execute(query)}


def _wait_for(is_there: Callable[[], bool]) -> None:
    until = time.monotonic() + _WAIT_SECONDS_MAX
    while not is_there():
        if time.monotonic() > until:
            raise RuntimeError("the follower did not keep up")
        time.sleep(0.2)


@contextmanager
def _following(site: Lake) -> Iterator[None]:
    """`strandline follow`, in a process of its own."""
    command = [STRANDLINE, "follow", "--config", str(site.config.home), "--json"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=os.environ) as process:
        try:
            yield
        finally:
            process.terminate()


MEASUREMENT = Measurement((SHARED, HTTP), measure)
