"""Sites of a lake with an arbiter and with sinks, of which one after another is promoted, and what must hold whatever
happened to them.

Each site reaches the arbiter through a link of its own, so that one can be cut off from it while the others are not.
`near` and, once it has been replaced, `leader` follow over HTTP through a relay; `far` over shared storage.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame

from strandline.core.errors import LeaseOver, StorageError
from strandline.lake import Lake, open_lake
from strandline.lake_admin import rejoin_lake
from strandline.ledger.ingest import sequence
from tests.e2e.following import WAIT_SECONDS_MAX, Settings, Sites
from tests.fork_server import Forked
from tests.spark.deliveries import Destination
from tests.spark.deliveries import outlive_lease as outlive_delivery
from tests.spark.followed import assert_same, restarted
from tests.spark.protocol import ledger_is_locked, outlive_lease

COLUMNS = [{"name": "n", "type": "long", "required": True}, {"name": "text", "type": "string"}]
KILLED = "killed at "
TRANSPORTS = {"leader": "http", "near": "http", "far": "shared"}
LEASE_SECONDS = 4

PROMOTING = ("promote.after_begin", "arbiter.before_put", "arbiter.after_put", "promote.after_claim",
             "promote.after_publish", "promote.after_put", "promote.after_cuts", "promote.before_witness",
             "promote.after_witness", "promote.after_commit")  # fmt: skip
"""Whoever was killed at one and goes on reaches those after it: the term is put, and then that it leads."""
REJOINING = ("rejoin.before_witness", "rejoin.after_witness", "rejoin.after_commit", "rejoin.after_bodies")
CUTTING = ("record.after_commit", "cut.after_epoch", "cut.after_files", "cut.after_record", "cut.after_branches",
           "cut.after_delete", "cut.before_settle", "cut.before_witness", "cut.after_witness",
           "cut.after_settle")  # fmt: skip

STANDING = ("follow.after_take", "cut.after_epoch")
"""Whoever stands still there goes on when another process has carried the cut out: nobody may get the epoch that it
raises (docs/adr/0089)."""
STOOD = "stood still at "
ATTEMPTS_MAX = 10


def settings_in(folder: Path) -> Callable[[str], Settings]:
    """The settings of a site of this folder. Makes its way to the arbiter."""

    def of(name: str) -> Settings:
        (folder / "arbiter").mkdir(exist_ok=True)
        (folder / name).mkdir(exist_ok=True)
        way = folder / name / "arbiter"
        way.symlink_to(folder / "arbiter")
        return {
            "ingest": {"lease_seconds": 60},  # outlived by moving its time, not by waiting
            "follow": {"items_at_once_max": 2, "offer_items_max": 6, "poll_seconds": 0.1},
            "deliver": {"lease_seconds": 60, "wait_for": "all"},
            "replication": {
                "arbiter": f"file:{way}", "lease_seconds": LEASE_SECONDS, "arbiter_seconds_max": 2, "name": name,
            },
        }  # fmt: skip

    return of


@dataclass(frozen=True)
class Batch:
    id: str
    first: int
    rows: int

    @property
    def ids(self) -> set[int]:
        return set(range(self.first, self.first + self.rows))


@dataclass
class TakeOvers:
    sites: Sites
    choose: random.Random
    lakes: dict[str, Lake]
    sinks: dict[str, Destination]
    rows: int = 0
    sent: list[Batch] = field(default_factory=list)  # what a client would send again: not everybody had it at once
    fired: Counter[str] = field(default_factory=Counter)

    @property
    def leader(self) -> Lake:
        return self.sites.leader

    @property
    def leads(self) -> str:
        return self.leader.config.home.name

    @property
    def followers(self) -> list[str]:
        return [name for name in self.lakes if name != self.leads]

    def close(self) -> None:
        for lake in self.lakes.values():
            lake.close()

    # --- what always goes on ---

    def frame(self, batch: Batch) -> DataFrame:
        df = self.leader.spark.range(batch.first, batch.first + batch.rows, 1, 2)
        return df.selectExpr("id AS n", "concat('row ', id) AS text")

    def new_batch(self, rows: int) -> Batch:
        """Whose fate nobody knows yet."""
        batch = Batch(f"batch {self.rows}", self.rows, rows)
        self.rows += rows
        self.sent.append(batch)
        return batch

    def append(self, rows: int) -> Batch:
        batch = self.new_batch(rows)
        self.send(batch)
        return batch

    def send(self, batch: Batch) -> None:
        """Until it is acknowledged: a machine that stalls for longer than the lease takes no rows meanwhile."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            try:
                self.leader.append("events", self.frame(batch), batch_id=batch.id)
                return
            except (LeaseOver, StorageError):
                assert time.monotonic() < deadline
                outlive_lease(self.leader)
                self.leader.recover()

    def follow(self, *names: str) -> None:
        """Until it has everything."""
        for name in names or self.followers:
            outlive_lease(self.lakes[name])
            report = restarted(self.lakes[name]).tick()
            assert not report.failed, report.failed

    def deliver(self) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while reasons := [s.reason for s in self.leader.tick().sinks if s.reason is not None]:
            assert time.monotonic() < deadline, reasons
            outlive_delivery(self.leader)

    def update_members(self) -> list[str]:
        """Those who may be promoted."""
        lease = self.leader.replication.lease
        assert lease is not None
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            try:
                numbers = lease.update_members()
                return [name for name in self.followers if self.lakes[name].replication.site.number in numbers]
            except StorageError:  # a call to the arbiter that took too long
                assert time.monotonic() < deadline

    def way(self, name: str) -> Path:
        """How the site reaches the arbiter."""
        return self.sites.folder / name / "arbiter"

    # --- a take-over ---

    def promoting(self, name: str, failpoint: str = "") -> Forked:
        command = ("strandline.cli.main", "promote", "--yes", "--json")
        return self.sites.command(self.lakes[name], *command, failpoint=failpoint)

    def promote(self, name: str, *killed_at: str) -> str:
        """It is killed at each of the points, and then goes on to the end."""
        for point in killed_at:
            self.killed(self.promoting(name, f"{point}=kill"), point)
        assert self.promoting(name).wait(WAIT_SECONDS_MAX) == 0, self.sites.told()
        return name

    def killed(self, process: Forked, point: str) -> None:
        code = process.wait(WAIT_SECONDS_MAX)
        assert code == -signal.SIGKILL, f"{point} was not reached: {self.sites.told()}"
        self.fired[KILLED + point] += 1

    def join(self, name: str, *killed_at: str, transport: str | None = None) -> None:
        """As `strandline rejoin`, which is killed at each of the points first."""
        address, token = self.sites.address(transport or TRANSPORTS[name]), self.sites.register(name)
        command = ("strandline.cli.main", "rejoin", address, "--token", token, "--yes")
        for point in killed_at:
            self.killed(self.sites.command(self.lakes[name], *command, failpoint=f"{point}=kill"), point)
        rejoin_lake(self.lakes[name].config, address, token=token)
        self.reopen(name)

    def kill_follower(self, name: str, *killed_at: str) -> None:
        """At each of the points, one after the other."""
        for point in killed_at:
            self.killed(self.sites.start(self.lakes[name], f"{point}=kill"), point)
            outlive_lease(self.lakes[name])

    def follow_killed(self, name: str, *killed_at: str) -> None:
        """It is killed at each of the points, and then goes on to the end."""
        self.kill_follower(name, *killed_at)
        self.follow(name)

    def stand_still_in_the_cut(self, name: str) -> list[Forked]:
        """Processes of a follower that has not carried out the cut yet: each takes it over from the one before."""
        standing = []
        for point in STANDING:
            standing.append(self._stand_still(name, point))
            self.fired[STOOD + point] += 1
        outlive_lease(self.lakes[name])
        return standing

    def _stand_still(self, name: str, point: str) -> Forked:
        """A process that stands still without a lock on the ledger: another of its threads may have one. SQLite lets
        nobody else write then, so that process is killed, and another one takes its place."""
        command = ("strandline.cli.main", "follow", "--once", "--json")
        for _ in range(ATTEMPTS_MAX):
            outlive_lease(self.lakes[name])
            process = self.sites.command(self.lakes[name], *command, failpoint=f"{point}=stop")
            process.wait_until_stopped(WAIT_SECONDS_MAX)
            if not ledger_is_locked(self.lakes[name]):
                return process
            process.kill()
            process.wait(WAIT_SECONDS_MAX)
        raise AssertionError(f"{point}: each process stood still with a lock on the ledger")

    def let_go_on(self, name: str, standing: Sequence[Forked]) -> None:
        """Processes that stood still; then rows of the leader come to this site as before."""
        for process in standing:
            process.send_signal(signal.SIGCONT)
            assert process.wait(WAIT_SECONDS_MAX) >= 0, self.sites.told()
        site = self.lakes[name]
        assert site.work.tables.view("default.events").epoch <= site.ledger.query(sequence.read).epoch
        self.append(1)
        self.follow(name)

    def reopen(self, name: str) -> Lake:
        """As what a process finds that starts now."""
        self.lakes[name].close()
        self.lakes[name] = open_lake(self.lakes[name].config.home)
        return self.lakes[name]

    # --- what must hold ---

    def check_sinks_within(self, rows: Sequence[tuple[int, int]]) -> None:
        """No sink has a row that the leader has not, or one twice."""
        for name, sink in self.sinks.items():
            found = sink.see().rows
            assert len(found) == len(set(found)), f"{name} has rows twice"
            assert set(found) <= set(rows), f"{name} has rows that the leader has not: {set(found) - set(rows)}"

    def check(self) -> None:
        """Each row that was ever sent is at the leader once, in each sink once, and the followers are equal to it."""
        for _ in range(2):
            self.follow()
            self.deliver()
        rows = rows_of(self.leader)
        assert sorted(n for _, n in rows) == list(range(self.rows))
        for name, sink in self.sinks.items():
            assert sink.see().rows == rows, name
        report = self.leader.delivery.verify()
        assert report.ok, [f for verdict in report.sinks for f in verdict.findings]
        for name in self.followers:
            assert_same(self.leader, self.lakes[name])
            assert [v.ok and not v.extra for v in self.lakes[name].replication.verify()] == [True], name


def rows_of(lake: Lake) -> list[tuple[int, int]]:
    found = lake.spark.sql("SELECT _ingest_seq, n FROM lake.default.events").toArrow()
    return sorted(zip(found["_ingest_seq"].to_pylist(), found["n"].to_pylist(), strict=True))
