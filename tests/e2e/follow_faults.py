"""What happens to a leader and its followers in the campaign of tests/e2e/test_follow_campaign.py.

Each fault is a function of the campaign. `FAULTS` is the deck that a seed deals from: whoever has a new one adds it.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pyarrow as pa

from strandline.core import failpoints
from strandline.core.errors import FailedError, NoSuchDataset, Skipped
from strandline.core.settings.maintain import RetainSettings
from strandline.iceberg.schema.alteration import AddColumn
from strandline.iceberg.schema.columns import Primitive
from strandline.lake import Lake
from strandline.maintain.retain import retain
from strandline.replicate.facade import CHECKPOINT_NAME
from tests.e2e.following import WAIT_SECONDS_MAX, Sites
from tests.fork_server import Forked
from tests.spark.followed import restarted
from tests.spark.protocol import copy_ledger, expire_everything, outlive_lease, restore_ledger
from tests.spark.relay import Afterwards, CutShort, Damaged, Fate, Instead, Late, Request, Swapped, Twice

APPLYING = ("record", "follow", "stage", "publish", "settle")
BETWEEN = ("follow.after_take", "stage.before_commit", "stage.after_commit", "stage.after_mark",
           "publish.before_commit", "settle.before_mark", "follow.before_checkpoint",
           "follow.before_acknowledge")  # fmt: skip
WRITING = ("reserve.after_witness", "reserve.after_commit", "stage.after_commit", "stage.after_mark",
           "publish.before_commit", "publish.after_commit", "settle.before_mark")  # fmt: skip


@dataclass
class Campaign:
    """`near` follows over HTTP and meets the faults; `far` follows over shared storage, and only now and then."""

    sites: Sites
    near: Lake
    far: Lake
    choose: random.Random
    live: list[Forked] = field(default_factory=list)
    stopped: list[Forked] = field(default_factory=list)
    copies: list[Path] = field(default_factory=list)
    leaders_copies: list[Path] = field(default_factory=list)
    rows: int = 0  # acknowledged by the leader: their ids are 0, 1, …
    batches: int = 0
    columns: int = 0
    purged: set[int] = field(default_factory=set)

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *failure: object) -> None:
        for follower in (self.near, self.far):
            follower.close()

    @property
    def leader(self) -> Lake:
        return self.sites.leader

    # --- what always goes on ---

    def append(self, rows: int) -> None:
        """Acknowledged in the end, however often its writer dies."""
        df = self.leader.spark.range(self.rows, self.rows + rows, 1, 2)
        df = df.selectExpr("id", "concat('row ', id) AS text", "CAST('2026-01-01' AS TIMESTAMP) AS at")
        self.leader.append("events", df, batch_id=f"batch {self.batches}")
        self.rows += rows
        self.batches += 1

    def is_followed(self) -> bool:
        return any(process.poll() is None for process in self.live)

    def start(self, failpoint: str = "") -> Forked:
        process = self.sites.start(self.near, failpoint)
        self.live.append(process)
        return process

    def take_copies(self) -> None:
        name = f"copy-{len(self.leaders_copies)}.db"
        self.copies.append(copy_ledger(self.near, name))
        self.leaders_copies.append(copy_ledger(self.leader, name))

    def wake(self) -> None:
        """Whoever was taken for dead goes on."""
        for process in self.stopped:
            process.send_signal(signal.SIGCONT)
        self.live += self.stopped
        self.stopped = []

    def end_processes(self) -> None:
        self.wake()
        for process in self.live:
            process.kill()
            process.wait(WAIT_SECONDS_MAX)
        self.live = []
        outlive_lease(self.near)

    def heal(self) -> None:
        self.sites.relay.rule = lambda request: None

    # --- faults ---

    def killed_at_random(self) -> None:
        time.sleep(self.choose.uniform(0, 1.5))
        self.end_processes()
        self.start()

    def killed_at_a_step(self) -> None:
        self.end_processes()
        point = self.choose.choice([p for p in failpoints.POINTS if p.partition(".")[0] in APPLYING])
        self.start(f"{point}=kill@{self.choose.randint(1, 3)}")

    def stopped_and_taken_for_dead(self) -> None:
        """Outside of a transaction: within one it would hold the ledger, and nobody could take its work over."""
        self.end_processes()
        process = self.start(f"{self.choose.choice(BETWEEN)}=stop@{self.choose.randint(1, 2)}")
        deadline = time.monotonic() + self.choose.uniform(1, 4)
        while time.monotonic() < deadline and process.poll() is None:
            if psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
                self.live.remove(process)
                self.stopped.append(process)
                outlive_lease(self.near)
                self.start()
                return
            time.sleep(0.05)

    def several_appliers(self) -> None:
        self.start()
        self.start()

    def rough_network(self) -> None:
        self.sites.relay.rule = self._roughly

    def _roughly(self, request: Request) -> Fate:
        if self.choose.random() > 0.4:
            return None
        kind = request.path.partition("?")[0]
        earlier = [a for r in self.sites.relay.seen if r.path.partition("?")[0] == kind for a in r.passed]
        fates: list[Fate] = [
            Instead(503), Afterwards(None), CutShort(self.choose.random()), Damaged(self.choose.random()), Twice(),
            Damaged(self.choose.random(), request=True), Late(self.choose.uniform(0, 0.3)),
            *([Swapped(self.choose.choice(earlier))] if earlier else []),
        ]  # fmt: skip
        return self.choose.choice(fates)

    def cut_network(self) -> None:
        self.sites.relay.rule = lambda request: Instead(502)

    def server_killed(self) -> None:
        self.sites.kill_server()
        self.sites.serve()

    def ledger_of_the_past(self) -> None:
        self.end_processes()
        if self.copies:
            restore_ledger(self.near, self.choose.choice(self.copies))
        self.start()

    def ledger_lost(self) -> None:
        """Its tables and its witness are there. `follow init` asks the leader, so the network is well meanwhile."""
        self.end_processes()
        self.heal()
        assert self.near.ledger.path is not None
        self.near.close()
        self.near.ledger.path.unlink()
        self.near = self.sites.init("near", "http")
        self.copies.clear()
        self.start()

    def checkpoint_damaged(self) -> None:
        path = self.near.config.home / CHECKPOINT_NAME
        path.write_bytes(self.choose.choice([b"", b"{", b'{"0": 1}', b'{"0": 999999, "1": 7}']))

    def leaders_ledger_of_the_past(self) -> None:
        self.sites.kill_server()
        restore_ledger(self.leader, self.choose.choice(self.leaders_copies))
        self.leader.recover()
        self.sites.serve()

    def writer_dies(self) -> None:
        """Whatever it left is recovered, and its batch is sent again."""
        failpoints.arm(f"{self.choose.choice(WRITING)}=fail")
        try:
            self.append(50)
        except failpoints.FailpointError:
            failpoints.arm("")
            outlive_lease(self.leader)
            self.leader.recover()
            self.append(50)
        finally:
            failpoints.arm("")

    def leader_compacts(self) -> None:
        self.leader.maintenance.compact("events")

    def leader_expires(self) -> None:
        expire_everything(self.leader)

    def leader_retains(self) -> None:
        """Everything is due, and followers hold what they do not have."""
        rule = RetainSettings(older_than=timedelta(days=30))
        later = datetime.now(UTC) + timedelta(days=31)
        dataset = self.leader.dataset("events")
        retain(self.leader.maintenance.context, dataset, rule, now=later, accept_clock=True)

    def leader_purges(self) -> None:
        """Of rows that retention has deleted, a purge finds nothing: followers keep them."""
        some = ", ".join(str(self.choose.randrange(self.rows)) for _ in range(3))
        found = self.leader.spark.sql(f"SELECT id FROM lake.default.events WHERE id IN ({some})").collect()
        self.leader.maintenance.purge("events", f"id IN ({some})")
        self.purged |= {r["id"] for r in found}

    def leader_changes_columns(self) -> None:
        self.columns += 1
        self.leader.alter_dataset("events", [AddColumn(f"c{self.columns}", Primitive("long"))])

    def follower_compacts(self) -> None:
        with suppress(FailedError, Skipped, NoSuchDataset):  # others write meanwhile, or nobody has made it yet
            self.near.maintenance.compact("events")

    def far_one_follows(self) -> None:
        restarted(self.far).tick()

    # --- what must hold ---

    def settle(self) -> None:
        """All is well again: both catch up, in this process."""
        self.heal()
        self.end_processes()
        for follower in (self.near, self.far):
            for _ in range(5):
                report = restarted(follower).tick()
                if not report.failed and not report.recorded:
                    break
            assert not report.failed, report.failed

    def check(self) -> None:
        """Each acknowledged row that was not purged is at each follower once, with the leader's number, up to its seal,
        which is the leader's."""
        wanted = set(range(self.rows)) - self.purged
        theirs = _rows(self.leader)
        for follower in (self.near, self.far):
            ours = _rows(follower)
            ids = ours["id"].to_pylist()
            assert len(ids) == len(set(ids)), f"{follower.config.home.name} has rows twice"
            assert set(ids) == wanted, _difference(set(ids), wanted)
            by_number = {row["_ingest_seq"]: row for row in ours.to_pylist()}
            assert len(by_number) == len(ids)
            different = [row for row in theirs.to_pylist() if by_number.get(row["_ingest_seq"]) != row]
            assert not different, f"{len(different)} rows are other ones than the leader's: {different[:5]}"
            assert follower.sealed("events") == self.leader.sealed("events")


def _rows(lake: Lake) -> pa.Table:
    return lake.spark.sql("SELECT _ingest_seq, id, text, at FROM lake.default.events").toArrow()


def _difference(found: set[int], wanted: set[int]) -> str:
    lacking, more = sorted(wanted - found), sorted(found - wanted)
    return f"{len(lacking)} are lacking ({lacking[:5]}), {len(more)} should not be there ({more[:5]})"


FAULTS: dict[str, Callable[[Campaign], None]] = {
    "killed at random": Campaign.killed_at_random,
    "killed at a step": Campaign.killed_at_a_step,
    "stopped and taken for dead": Campaign.stopped_and_taken_for_dead,
    "several appliers": Campaign.several_appliers,
    "rough network": Campaign.rough_network,
    "cut network": Campaign.cut_network,
    "server killed": Campaign.server_killed,
    "ledger of the past": Campaign.ledger_of_the_past,
    "ledger lost": Campaign.ledger_lost,
    "checkpoint damaged": Campaign.checkpoint_damaged,
    "leader's ledger of the past": Campaign.leaders_ledger_of_the_past,
    "writer dies": Campaign.writer_dies,
    "leader compacts": Campaign.leader_compacts,
    "leader expires": Campaign.leader_expires,
    "leader retains": Campaign.leader_retains,
    "leader purges": Campaign.leader_purges,
    "leader changes columns": Campaign.leader_changes_columns,
    "follower compacts": Campaign.follower_compacts,
    "far one follows": Campaign.far_one_follows,
}
