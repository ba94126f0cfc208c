"""What happens in the campaign of tests/e2e/test_takeover_campaign.py: why a leader is replaced, what it was doing, how
another one is promoted, and how the old one comes back. Whoever has a new kind adds it to the decks at the end.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from strandline.core.errors import LeaseOver, NotLeader, StrandlineError
from strandline.lake import Lake
from strandline.ledger.replicate import cuts
from tests.campaign import Decks
from tests.e2e.following import WAIT_SECONDS_MAX
from tests.e2e.slow_way import SlowWay
from tests.e2e.taking_over import (
    CUTTING,
    KILLED,
    LEASE_SECONDS,
    PROMOTING,
    REJOINING,
    STANDING,
    STOOD,
    Batch,
    TakeOvers,
    rows_of,
)
from tests.fork_server import Forked
from tests.spark.followed import restarted
from tests.spark.network_cut import ASKED_FOR, HOW, cut_once_each
from tests.spark.protocol import crash_at

WRITING = ("reserve.after_commit", "stage.after_commit", "stage.before_mark", "stage.after_mark",
           "publish.before_commit", "publish.after_commit", "settle.before_mark")  # fmt: skip
DELIVERING = ("deliver.after_lease", "deliver.after_fence", "deliver.after_plan", "deliver.before_acknowledge",
              "deliver.after_acknowledge", "deliver.after_mark")  # fmt: skip
"""In the driver: a worker that stands still would hold a core of the Spark that all share."""
AWAY_FOR = ("arbiter away for all", "arbiter away for one")
STOPPED = "stopped at "
PROMOTING_DECK = "promotions"
REFUSED = 3  # the exit code


def cut_name(what: str, how: str) -> str:
    """Of a request of a follower that the network cut off."""
    return f"network cut: {what} {how}"


@dataclass
class Stopped:
    """Processes of the leader that stand still, and go on when another site leads."""

    writer: Forked
    batch: Batch
    deliverer: Forked
    members: Sequence[str]  # who may be promoted


@dataclass
class TakeOverCampaign(TakeOvers):
    decks: Decks = field(default_factory=Decks)
    slow_way: SlowWay | None = None  # of the leader that is replaced
    unfollowed: list[Batch] = field(default_factory=list)  # acknowledged just before a take-over

    def deal(self, kind: str, names: Collection[str], prefix: str = "") -> str:
        return self.decks.deal(self.choose, kind, names, prefix)

    # --- before a take-over ---

    def stand_still(self, rows: int) -> Stopped:
        """One batch is with all and delivered, one is with all and waits, one is with one follower only and one just
        recorded there, one is with nobody, and one is not finished by its writer, which stands still. So does a
        deliverer."""
        self.append(rows)
        self.follow()
        self.deliver()
        members = self.update_members()
        assert members
        self.append(rows)
        self.follow()
        self.sent.clear()
        self.append(rows)
        ahead = self.choose.choice(members)
        self.follow(ahead)
        self.append(rows)
        restarted(self.lakes[ahead])
        crash_at(self.lakes[ahead], "record.after_commit", lambda: self.lakes[ahead].replication.follow_once())
        self.append(rows)
        batch = self.new_batch(rows)
        command = ("tests.e2e.writer", ".", "append", batch.id, str(batch.first), str(rows), "n")
        writer = self._stopped(self.deal("writing", WRITING, STOPPED), *command)
        # At one sink only: with several it may stand still while a job of another runs, and then Spark, which all share
        # here, waits for it.
        sink = self.choose.choice(sorted(self.sinks))
        tick = ("strandline.cli.main", "tick", "--sink", sink, "--json")
        deliverer = self._stopped(self.deal("delivering", DELIVERING, STOPPED), *tick)
        return Stopped(writer, batch, deliverer, members)

    def _stopped(self, point: str, *command: str) -> Forked:
        process = self.sites.command(self.leader, *command, failpoint=f"{point}=stop")
        process.wait_until_stopped(WAIT_SECONDS_MAX)
        self.fired[STOPPED + point] += 1
        return process

    # --- why the leader does not renew its lease: each returns who leads, if somebody was promoted meanwhile ---

    def server_killed(self, members: Sequence[str]) -> None:
        self.sites.kill_server()

    def server_stopped(self, members: Sequence[str]) -> None:
        assert self.sites.served is not None
        self.sites.served.send_signal(signal.SIGSTOP)
        self.sites.served.wait_until_stopped(WAIT_SECONDS_MAX)

    def cut_off(self, members: Sequence[str]) -> None:
        """Its server lives, and does not reach the arbiter."""
        self.way(self.leads).unlink()

    def slow(self, members: Sequence[str]) -> None:
        """Its calls to the arbiter take longer than its lease, while a writer appends: until it is refused."""
        self.slow_way = SlowWay(self.way(self.leads), self.sites.folder / "arbiter", self.leader.id)
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while time.monotonic() < deadline:
            batch = self.new_batch(1)
            try:
                self.leader.append("events", self.frame(batch), batch_id=batch.id)
            except LeaseOver:
                return
            self.unfollowed.append(batch)
        raise AssertionError("the leader takes rows without its lease")

    def stopped_for_a_while(self, members: Sequence[str]) -> str | None:
        """For two thirds of its lease: it may have lost it, if the machine is slow. Who is promoted then takes over, or
        is refused, because the leader has renewed its lease."""
        self.server_stopped(members)
        time.sleep(LEASE_SECONDS * 2 / 3)
        assert self.sites.served is not None
        self.sites.served.send_signal(signal.SIGCONT)
        name = self.choose.choice(members)
        code = self.promoting(name).wait(WAIT_SECONDS_MAX)
        assert code in (0, REFUSED), self.sites.told()
        self.fired[f"after it stood still: {'promoted' if code == 0 else 'refused'}"] += 1
        if code == 0:
            return name
        self.unfollowed.append(self.append(1))
        self.sites.kill_server()
        return None

    def back_again(self, name: str) -> None:
        """The server of a leader that was replaced goes on."""
        if self.slow_way is not None:
            assert self.slow_way.end(), "nobody has waited for the arbiter"
            self.slow_way = None
        if not self.way(name).exists():
            self.way(name).symlink_to(self.sites.folder / "arbiter")
        if self.sites.served is not None:
            self.sites.served.send_signal(signal.SIGCONT)
            assert self.sites.served.poll() is None, self.sites.told()

    # --- promotions: each returns who leads ---

    def two_at_once(self, members: Sequence[str]) -> str:
        """Of all followers, also one that may not lead."""
        both = {name: self.promoting(name) for name in self.followers}
        codes = {name: process.wait(WAIT_SECONDS_MAX) for name, process in both.items()}
        assert sorted(codes.values()) == [0, 3], self.sites.told()
        [winner] = [name for name, code in codes.items() if code == 0]
        assert winner in members
        return winner

    def killed_on_the_way(self, members: Sequence[str]) -> str:
        """At one step and, when it goes on, at a later one."""
        name = self.choose.choice(members)
        points = {self.deal("promoting", PROMOTING, KILLED) for _ in range(2)}
        return self.promote(name, *sorted(points, key=PROMOTING.index))

    def arbiter_away(self, members: Sequence[str]) -> str:
        """For all, or for this follower only: nobody is promoted without it."""
        name = self.choose.choice(members)
        arbiter, away = self.sites.folder / "arbiter", self.sites.folder / "away"
        way = self.way(name)
        for_all = self.deal("away", AWAY_FOR) == AWAY_FOR[0]
        if for_all:
            arbiter.rename(away)
        else:
            way.unlink()
        code = self.promoting(name).wait(WAIT_SECONDS_MAX)
        assert code not in (0, -signal.SIGKILL), self.sites.told()
        assert self.lakes[name].replication.site.follows
        self.fired[AWAY_FOR[0 if for_all else 1]] += 1
        if for_all:
            away.rename(arbiter)
        elif others := [other for other in members if other != name]:
            winner = self.promote(self.choose.choice(others))
            way.symlink_to(arbiter)
            return winner
        else:
            way.symlink_to(arbiter)
        return self.promote(name)

    # --- how the old leader comes back ---

    def killed_while_it_rejoins(self, old: str) -> None:
        self.join(old, self.deal("rejoining", REJOINING, KILLED))
        self.follow(old)

    def killed_in_the_cut(self, old: str) -> None:
        self.join(old)
        self.follow_killed(old, self.deal("cutting", CUTTING, KILLED))

    def stopped_in_the_cut(self, old: str) -> None:
        self.join(old)
        standing = self.stand_still_in_the_cut(old)
        self.follow(old)
        self.let_go_on(old, standing)

    def network_cut(self, old: str) -> None:
        """A request of each kind is cut off; then the network is back."""
        self.join(old, transport="http")
        hows = {what: self.deal(f"cut {what}", HOW, cut_name(what, "")) for what in ASKED_FOR}
        fates = {what: HOW[how] for what, how in hows.items()}
        cut_once_each(self.sites.relay, fates, lambda: self._passes(old), seconds_max=WAIT_SECONDS_MAX)
        self.fired.update(cut_name(what, how) for what, how in hows.items())
        self.follow(old)

    def _passes(self, name: str) -> bool:
        """Whether one pass of a follower that has just been started goes well."""
        try:
            return not restarted(self.lakes[name]).tick().failed
        except StrandlineError:
            return False

    # --- one after the other ---

    def take_over(self, rows: int, away: str, promoting: str, rejoining: str) -> None:
        old = self.leads
        stopped = self.stand_still(rows)
        self.unfollowed.clear()
        promoted = AWAY[away](self, stopped.members)
        if promoted is None:
            promoted = PROMOTIONS[promoting](self, stopped.members)
            self.fired[promoting] += 1
        else:
            self.decks.take_back(PROMOTING_DECK, promoting)
        self.fired[away] += 1
        self.sites.leader = self.lakes[promoted]
        self.sites.leader = self.reopen(self.leads)
        before = rows_of(self.leader)
        self.check_sinks_within(before)
        self.deliver()
        self.append(rows)
        acknowledged = self.go_on(stopped, old)
        lost = {n for batch in acknowledged for n in batch.ids} - {n for _, n in before}
        self.check_sinks_within(rows_of(self.leader))
        self.sites.kill_server()
        self.sites.serve()
        for name in self.followers:
            if name != old:
                self.join(name)
        RETURNS[rejoining](self, old)
        self.fired[rejoining] += 1
        assert lost <= _set_aside(self.lakes[old]), "rows are gone that nobody named"
        for batch in self.sent:
            self.send(batch)

    def go_on(self, stopped: Stopped, old: str) -> list[Batch]:
        """Whoever stood still goes on. Returns what the old leader has acknowledged and perhaps nobody else has."""
        self.back_again(old)  # it may have stood still with the ledger in its hands
        for process in (stopped.deliverer, stopped.writer):
            process.send_signal(signal.SIGCONT)
        written = stopped.writer.wait(WAIT_SECONDS_MAX) == 0
        stopped.deliverer.wait(WAIT_SECONDS_MAX)
        late = self.lakes[old]
        with pytest.raises(StrandlineError):
            late.append("events", self.frame(Batch("late", self.rows, 1)), batch_id="late")
        with suppress(NotLeader):
            late.tick()
        finished = [b for b in self.sent if b.id != stopped.batch.id and b.first < stopped.batch.first]
        return [*finished, *self.unfollowed, *([stopped.batch] if written else [])]


def _set_aside(lake: Lake) -> set[int]:
    """What a person finds in the files that the ledger names."""
    found: set[int] = set()
    for one in lake.ledger.query(cuts.list_cut_folders):
        for file in Path(one.place).glob("*.parquet"):
            found |= set(pq.read_table(file)["n"].to_pylist())
    return found


AWAY: dict[str, Callable[[TakeOverCampaign, Sequence[str]], str | None]] = {
    "server killed": TakeOverCampaign.server_killed,
    "server stopped": TakeOverCampaign.server_stopped,
    "cut off from the arbiter": TakeOverCampaign.cut_off,
    "slow way to the arbiter": TakeOverCampaign.slow,
    "stopped for less than its lease": TakeOverCampaign.stopped_for_a_while,
}
PROMOTIONS: dict[str, Callable[[TakeOverCampaign, Sequence[str]], str]] = {
    "two at once": TakeOverCampaign.two_at_once,
    "killed on the way": TakeOverCampaign.killed_on_the_way,
    "arbiter away": TakeOverCampaign.arbiter_away,
}
RETURNS: dict[str, Callable[[TakeOverCampaign, str], None]] = {
    "killed while it rejoins": TakeOverCampaign.killed_while_it_rejoins,
    "killed in the cut": TakeOverCampaign.killed_in_the_cut,
    "stopped in the cut": TakeOverCampaign.stopped_in_the_cut,
    "network cut": TakeOverCampaign.network_cut,
}

EVERY_FAULT = frozenset(
    {*AWAY, *PROMOTIONS, *RETURNS, *AWAY_FOR}
    | {STOPPED + point for point in (*WRITING, *DELIVERING)}
    | {cut_name(what, how) for what in ASKED_FOR for how in HOW}
    | {KILLED + point for point in (*PROMOTING, *REJOINING, *CUTTING)}
    | {STOOD + point for point in STANDING}
)
