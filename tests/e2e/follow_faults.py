"""What happens to a leader and its followers in the campaign of tests/e2e/test_follow_campaign.py.

Each fault is a function of the campaign, which returns when it has seen the effect of the fault, and fails if there is
none. `FAULTS` is the deck that a seed deals from: whoever has a new one adds it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from strandline.core import failpoints
from strandline.core.errors import FailedError, NoSuchDataset, Skipped
from strandline.core.records.audit_events import Event
from strandline.core.settings.maintain import RetainSettings
from strandline.iceberg.schema.alteration import AddColumn
from strandline.iceberg.schema.columns import Primitive
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.ledger.receive import receive_holds
from strandline.maintain.retain import retain
from strandline.replicate.facade import CHECKPOINT_NAME
from tests.e2e.follow_run import OVER_A_ROUGH_NETWORK, ROUGH, FollowRun, is_stopped
from tests.fork_server import Forked
from tests.spark.followed import restarted
from tests.spark.protocol import (
    COLUMNS,
    copy_ledger,
    expire_everything,
    ledger_is_locked,
    outlive_lease,
    restore_ledger,
)

APPLYING = ("record", "follow", "stage", "publish", "settle")
STEPS = tuple(point for point in failpoints.POINTS if point.partition(".")[0] in APPLYING)
BETWEEN = ("follow.after_take", "stage.before_commit", "stage.after_commit", "stage.after_mark",
           "publish.before_commit", "settle.before_mark", "follow.before_checkpoint",
           "follow.before_acknowledge")  # fmt: skip
"""Outside of a transaction: within one it would hold the ledger, and nobody could take its work over."""
WRITING = ("reserve.after_witness", "reserve.after_commit", "stage.after_commit", "stage.after_mark",
           "publish.before_commit", "publish.after_commit", "settle.before_mark")  # fmt: skip
DAMAGED = (b"", b"{", b'{"0": 1}', b'{"0": 999999, "1": 7}')
ROUGH_REQUESTS = 3
KILLED, STOPPED, WRITER_DIES = "killed at ", "stopped at ", "writer dies at "


class Campaign(FollowRun):
    # --- the follower's processes ---

    def killed_at_random(self) -> None:
        self.keep_following()
        time.sleep(self.choose.uniform(0, 1.5))
        assert -signal.SIGKILL in self.end_processes()
        self.start()

    def killed_at_a_step(self) -> None:
        """One that is not reached with every row gets what it needs first."""
        point, hit = self.deal(KILLED, STEPS), self.choose.randint(1, 3)
        if point in NEEDS:
            NEEDS[point](self)
            hit = 1
        self.end_processes()
        self.join_network()
        process = self.start(f"{point}=kill@{hit}")
        self.until(lambda: process.poll() is not None, f"{point} was not reached")
        assert process.poll() == -signal.SIGKILL, self.sites.told()
        self.fired[KILLED + point] += 1
        outlive_lease(self.near)
        self.start()

    def stopped_and_taken_for_dead(self) -> None:
        """Another process does its work. At the end of the round, it goes on."""
        self.end_processes()
        self.join_network()
        point = self.deal(STOPPED, BETWEEN)
        process = self.stop_at(point)
        while ledger_is_locked(self.near):  # by another thread of it, which stopped within a transaction
            self.end_processes()
            process = self.stop_at(point)
        self.live.remove(process)
        self.stopped.append(process)
        outlive_lease(self.near)
        self.append(1)
        wanted = self.leader.sealed("events")
        self.start()
        self.until(lambda: self.has_upto(wanted), "nobody takes the work over", feed=False)
        self.fired[STOPPED + point] += 1

    def stop_at(self, point: str) -> Forked:
        process = self.start(f"{point}=stop@{self.choose.randint(1, 2)}")
        self.until(lambda: is_stopped(process), f"{point} was not reached")
        return process

    def several_appliers(self) -> None:
        """Two of them apply something after they have all been started."""
        self.join_network()
        self.start()
        self.start()
        alive = [process for process in self.live if process.poll() is None]
        before = [self.applied_by(process) for process in alive]

        def both_have() -> bool:
            return sum(self.applied_by(process) > n for process, n in zip(alive, before, strict=True)) >= 2

        self.until(both_have, "only one of them applies anything")

    # --- the network, until it is healed at the end of the round ---

    def rough_network(self) -> None:
        self.keep_following()
        self.sites.relay.rule, self.is_cut = self.roughly, False
        before = self.hit.total()
        self.until(lambda: self.hit.total() >= before + ROUGH_REQUESTS, "nothing went wrong on the way", feed=False)

    def cut_network(self) -> None:
        self.keep_following()
        self.sites.relay.rule, self.is_cut = self.cut_off, True
        before = self.hit["requests of a cut network"]
        self.until(lambda: self.hit["requests of a cut network"] > before, "the follower asks for nothing", feed=False)

    def server_killed(self) -> None:
        served = self.sites.served
        assert served is not None and served.poll() is None
        self.sites.kill_server()
        assert served.poll() == -signal.SIGKILL
        self.sites.serve()

    # --- what the follower stores ---

    def ledger_of_the_past(self) -> None:
        """The follower notices that its ledger has forgotten something."""
        if not self.copies:
            self.copies.append((copy_ledger(self.near, "copy.db"), self.counter()))
        copy, counter = self.choose.choice(self.copies)
        if self.counter() <= counter:
            self.join_network()
            self.keep_following()
            self.until(lambda: self.counter() > counter, "it records nothing")
        self.end_processes()
        restore_ledger(self.near, copy)
        before = self.events(self.near, Event.FOLLOWER_BEHIND)
        self.start()
        self.until(lambda: self.events(self.near, Event.FOLLOWER_BEHIND) > before, "it has not noticed", feed=False)

    def ledger_lost(self) -> None:
        """Its tables and its witness are there. `follow init` asks the leader, so the network is well meanwhile."""
        self.catch_up()
        self.end_processes()
        self.heal()
        assert self.near.ledger.path is not None
        self.near.close()
        self.near.ledger.path.unlink()
        self.near = self.sites.init("near", "http")
        self.copies.clear()
        assert self.sealed() is None and self.near.datasets() == []
        self.start()
        self.until(lambda: self.near.datasets() != [], "it makes no datasets", feed=False)

    def checkpoint_damaged(self) -> None:
        self.end_processes()
        path, damage = self.near.config.home / CHECKPOINT_NAME, self.choose.choice(DAMAGED)
        path.write_bytes(damage)
        self.join_network()
        self.start()
        self.until(lambda: path.read_bytes() != damage, "it does not write its checkpoint anew", feed=False)

    def follower_compacts(self) -> None:
        self.catch_up()
        self.until(self._has_compacted, "there is nothing to compact")

    def _has_compacted(self) -> bool:
        with suppress(FailedError, Skipped, NoSuchDataset):  # others write meanwhile, or have lost their ledger
            return bool(self.near.maintenance.compact("events").result.files_rewritten)
        return False

    def far_one_follows(self) -> None:
        assert restarted(self.far).tick().recorded

    # --- the leader ---

    def leaders_ledger_of_the_past(self) -> None:
        """It notices that it has forgotten rows. Where their snapshots have expired since the copy, a person accepts
        that nobody knows which bodies were received: until then, a purge is refused."""
        self.sites.kill_server()
        restore_ledger(self.leader, self.choose.choice(self.leaders_copies))
        before = self.events(self.leader, Event.LEDGER_RESYNCED)
        self.leader.recover()
        assert self.events(self.leader, Event.LEDGER_RESYNCED) > before
        if self.leader.ledger.query(receive_holds.list_holds):
            self.leader.receiver.accept("events", "nothing was received")
        self.sites.serve()

    def writer_dies(self) -> None:
        """Whatever it left is recovered, and its batch is sent again."""
        point = self.deal(WRITER_DIES, WRITING)
        failpoints.arm(f"{point}=fail")
        try:
            with pytest.raises(failpoints.FailpointError):
                self.append(50)
        finally:
            failpoints.arm("")
        self.fired[WRITER_DIES + point] += 1
        outlive_lease(self.leader)
        self.leader.recover()
        self.append(50)

    def leader_compacts(self) -> None:
        self.append_until(lambda: bool(self.leader.maintenance.compact("events").result.files_rewritten))

    def leader_expires(self) -> None:
        def has_expired() -> bool:
            before = self.leader.work.tables.view("default.events").snapshots.keys()
            expire_everything(self.leader)
            return bool(before - self.leader.work.tables.view("default.events").snapshots.keys())

        self.append_until(has_expired)

    def leader_retains(self) -> None:
        """Everything is due, and followers hold what they do not have. So they come first, and get more meanwhile."""
        self.catch_up()
        restarted(self.far).tick()
        self.until(self._has_retained, "followers hold everything", feed=False)

    def _has_retained(self) -> bool:
        rule = RetainSettings(older_than=timedelta(days=30))
        later = datetime.now(UTC) + timedelta(days=31)
        dataset = self.leader.dataset("events")
        return bool(retain(self.leader.maintenance.context, dataset, rule, now=later, accept_clock=True).deleted_rows)

    def leader_purges(self) -> None:
        """Of rows that retention has deleted, a purge finds nothing: followers keep them."""
        found = sorted(r["id"] for r in self.leader.spark.sql("SELECT id FROM lake.default.events").collect())
        some = self.choose.sample(found, min(3, len(found)))
        done = self.leader.maintenance.purge("events", f"id IN ({', '.join(map(str, some))})").result
        assert done.deleted_rows == len(some) > 0
        self.purged |= set(some)

    def leader_changes_columns(self) -> None:
        self.columns += 1
        self.leader.alter_dataset("events", [AddColumn(f"c{self.columns}", Primitive("long"))])

    # --- what some steps need ---

    def purges_what_followers_have(self) -> None:
        self.catch_up()
        self.end_processes()
        self.leader_purges()

    def changes_columns_while_nobody_follows(self) -> None:
        self.end_processes()
        self.leader_changes_columns()

    def makes_a_dataset(self) -> None:
        self.end_processes()
        self.datasets += 1
        self.leader.create_dataset(f"d{self.datasets}", parse_columns(COLUMNS))

    def drops_a_dataset(self) -> None:
        self.makes_a_dataset()
        name = f"d{self.datasets}"
        self.join_network()
        self.start()
        self.until(lambda: any(d.name == f"default.{name}" for d in self.near.datasets()), "it makes no dataset")
        self.end_processes()
        self.leader.drop_dataset(name)


NEEDS: dict[str, Callable[[Campaign], None]] = {
    "follow.after_table": Campaign.makes_a_dataset,
    "follow.after_dataset": Campaign.makes_a_dataset,
    "follow.after_drop": Campaign.drops_a_dataset,
    "follow.after_alter": Campaign.changes_columns_while_nobody_follows,
    "follow.before_settle": Campaign.purges_what_followers_have,
    "follow.after_settle": Campaign.purges_what_followers_have,
    "follow.after_purge_record": Campaign.purges_what_followers_have,
    "follow.after_purge": Campaign.purges_what_followers_have,
}
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
EVERY_KIND = frozenset(
    {*FAULTS}
    | {KILLED + point for point in STEPS}
    | {STOPPED + point for point in BETWEEN}
    | {WRITER_DIES + point for point in WRITING}
    | {OVER_A_ROUGH_NETWORK + one for one in ROUGH}
)
