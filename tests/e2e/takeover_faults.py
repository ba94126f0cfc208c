"""What happens in the campaign of tests/e2e/test_takeover_campaign.py: why a leader is replaced, what it was doing, how
another one is promoted, and how the old one comes back. Whoever has a new kind adds it to the decks at the end.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from strandline.core.errors import NotLeader, StrandlineError
from strandline.lake import Lake
from strandline.ledger.replicate import cuts
from tests.e2e.following import WAIT_SECONDS_MAX
from tests.e2e.taking_over import CUTTING, KILLED, PROMOTING, REJOINING, Batch, TakeOvers, rows_of
from tests.fork_server import Forked
from tests.spark.followed import restarted
from tests.spark.protocol import crash_at
from tests.spark.relay import Instead

WRITING = ("reserve.after_commit", "stage.after_commit", "stage.before_mark", "stage.after_mark",
           "publish.before_commit", "publish.after_commit", "settle.before_mark")  # fmt: skip
DELIVERING = ("deliver.after_lease", "deliver.after_fence", "deliver.after_plan", "deliver.before_acknowledge",
              "deliver.after_acknowledge", "deliver.after_mark")  # fmt: skip
"""In the driver: a worker that stands still would hold a core of the Spark that all share."""
AWAY_FOR = ("arbiter away for all", "arbiter away for one")
STOPPED = "stopped at "


class Decks:
    """Deals faults of each kind in a random order, each as often as the others, over all runs of a campaign."""

    def __init__(self) -> None:
        self._left: dict[str, list[str]] = {}
        self.dealt: set[str] = set()

    def deal(self, choose: random.Random, kind: str, names: Collection[str], prefix: str = "") -> str:
        """The next name. `prefix` and name are how the campaign counts that it fired."""
        if not (left := self._left.setdefault(kind, [])):
            left += choose.sample(sorted(names), len(names))
        name = left.pop()
        self.dealt.add(prefix + name)
        return name


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

    # --- why the leader does not renew its lease ---

    def server_killed(self) -> None:
        self.sites.kill_server()

    def server_stopped(self) -> None:
        assert self.sites.served is not None
        self.sites.served.send_signal(signal.SIGSTOP)
        self.sites.served.wait_until_stopped(WAIT_SECONDS_MAX)

    def cut_off(self) -> None:
        """Its server lives, and does not reach the arbiter."""
        self.way(self.leads).unlink()

    def back_again(self, name: str) -> None:
        """The server of a leader that was replaced goes on."""
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

    def network_cut(self, old: str) -> None:
        """Its requests fail; then the network is back."""
        self.join(old, transport="http")
        cut = 0

        def rule(request: object) -> Instead | None:
            nonlocal cut
            if cut and self.choose.random() < 0.5:
                return None
            cut += 1
            return Instead(502)

        self.sites.relay.rule = rule
        for _ in range(5):
            report = None
            try:
                report = restarted(self.lakes[old]).tick()
            except StrandlineError:
                if cut:
                    break
                continue
            if report.failed:
                break
        self.sites.relay.rule = lambda request: None
        self.fired["requests that the network cut"] += cut
        self.follow(old)

    # --- one after the other ---

    def take_over(self, rows: int, away: str, promoting: str, rejoining: str) -> None:
        old = self.leads
        stopped = self.stand_still(rows)
        AWAY[away](self)
        self.sites.leader = self.lakes[PROMOTIONS[promoting](self, stopped.members)]
        self.sites.leader = self.reopen(self.leads)
        self.fired.update([away, promoting])
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
        return [*finished, *([stopped.batch] if written else [])]


def _set_aside(lake: Lake) -> set[int]:
    """What a person finds in the files that the ledger names."""
    found: set[int] = set()
    for one in lake.ledger.query(cuts.list_cut_folders):
        for file in Path(one.place).glob("*.parquet"):
            found |= set(pq.read_table(file)["n"].to_pylist())
    return found


AWAY: dict[str, Callable[[TakeOverCampaign], None]] = {
    "server killed": TakeOverCampaign.server_killed,
    "server stopped": TakeOverCampaign.server_stopped,
    "cut off from the arbiter": TakeOverCampaign.cut_off,
}
PROMOTIONS: dict[str, Callable[[TakeOverCampaign, Sequence[str]], str]] = {
    "two at once": TakeOverCampaign.two_at_once,
    "killed on the way": TakeOverCampaign.killed_on_the_way,
    "arbiter away": TakeOverCampaign.arbiter_away,
}
RETURNS: dict[str, Callable[[TakeOverCampaign, str], None]] = {
    "killed while it rejoins": TakeOverCampaign.killed_while_it_rejoins,
    "killed in the cut": TakeOverCampaign.killed_in_the_cut,
    "network cut": TakeOverCampaign.network_cut,
}

EVERY_FAULT = frozenset(
    {*AWAY, *PROMOTIONS, *RETURNS, *AWAY_FOR}
    | {STOPPED + point for point in (*WRITING, *DELIVERING)}
    | {KILLED + point for point in (*PROMOTING, *REJOINING, *CUTTING)}
)
