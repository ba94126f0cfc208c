"""A leader with 4 shards and two followers, in a campaign: what always goes on, and what must hold in the end."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from strandline.core.errors import NoSuchDataset
from strandline.core.records.audit_events import Event
from strandline.core.types import Seq
from strandline.lake import Lake
from strandline.ledger import audit
from strandline.ledger.ingest import sequence
from strandline.ledger.replicate import following
from tests.campaign import Decks
from tests.e2e.following import WAIT_SECONDS_MAX, Sites
from tests.fork_server import Forked
from tests.spark.followed import restarted
from tests.spark.network_cut import HOW
from tests.spark.protocol import copy_ledger, outlive_lease
from tests.spark.relay import Afterwards, CutShort, Damaged, Fate, Instead, Late, Request, Swapped, Twice

FEED_ROWS_MAX = 20
BATCHES_MAX = 10
ROUGH = ("a gateway's error", "answer lost", "answer cut short", "answer damaged", "request damaged", "request twice",
         "answer late", "answer to another request")  # fmt: skip
OVER_A_ROUGH_NETWORK = "over a rough network: "


@dataclass
class FollowRun:
    """`near` follows over HTTP and meets the faults; `far` follows over shared storage, and only now and then."""

    sites: Sites
    near: Lake
    far: Lake
    choose: random.Random
    fired: Counter[str]
    decks: Decks
    live: list[Forked] = field(default_factory=list)
    stopped: list[Forked] = field(default_factory=list)
    copies: list[tuple[Path, int]] = field(default_factory=list)  # each with the counter in it
    leaders_copies: list[Path] = field(default_factory=list)
    rows: int = 0  # acknowledged by the leader: their ids are 0, 1, …
    batches: int = 0
    columns: int = 0
    datasets: int = 0
    purged: set[int] = field(default_factory=set)
    hit: Counter[str] = field(default_factory=Counter)  # requests that the network did something to
    is_cut: bool = False
    _network: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> FollowRun:
        return self

    def __exit__(self, *failure: object) -> None:
        for follower in (self.near, self.far):
            follower.close()

    @property
    def leader(self) -> Lake:
        return self.sites.leader

    def deal(self, kind: str, names: tuple[str, ...]) -> str:
        """`kind` and name are how the campaign counts that it fired."""
        return self.decks.deal(self.choose, kind, names, kind)

    # --- what always goes on ---

    def append(self, rows: int) -> None:
        """Acknowledged in the end, however often its writer dies."""
        df = self.leader.spark.range(self.rows, self.rows + rows, 1, 2)
        df = df.selectExpr("id", "concat('row ', id) AS text", "CAST('2026-01-01' AS TIMESTAMP) AS at")
        self.leader.append("events", df, batch_id=f"batch {self.batches}")
        self.rows += rows
        self.batches += 1

    def start(self, failpoint: str = "") -> Forked:
        process = self.sites.start(self.near, failpoint)
        self.live.append(process)
        return process

    def keep_following(self) -> None:
        if all(process.poll() is not None for process in self.live):
            self.start()

    def take_copies(self) -> None:
        name = f"copy-{len(self.leaders_copies)}.db"
        counter = self.counter()  # of the copy or lower
        self.copies.append((copy_ledger(self.near, name), counter))
        self.leaders_copies.append(copy_ledger(self.leader, name))

    def counter(self) -> int:
        return self.near.ledger.query(sequence.read).last

    def end_processes(self) -> list[int]:
        """Returns how those ended that followed until now."""
        self.wake()
        alive = [process for process in self.live if process.poll() is None]
        for process in alive:
            process.kill()
        codes = [process.wait(WAIT_SECONDS_MAX) for process in alive]
        self.live = []
        outlive_lease(self.near)
        return codes

    def wake(self) -> None:
        """Whoever was taken for dead goes on, and does something before anybody ends it."""
        for process in self.stopped:
            used = _cpu_seconds(process)
            process.send_signal(signal.SIGCONT)
            self.until(lambda one=process, before=used: _has_gone_on(one, before), "it does not go on", feed=False)
            self.fired["taken for dead, and goes on"] += 1
        self.live += self.stopped
        self.stopped = []

    # --- waiting for an effect ---

    def until(self, happened: Callable[[], bool], what: str, *, feed: bool = True) -> None:
        """Whenever the follower has everything and it has not happened, the leader gets more rows."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not happened():
            assert time.monotonic() < deadline, f"{what}\n{self.sites.told()}"
            if feed and self.has_all():
                self.append(self.choose.randint(1, FEED_ROWS_MAX))
            time.sleep(0.05)

    def append_until(self, happened: Callable[[], bool]) -> None:
        """What happens at the leader as soon as it has some more files."""
        for _ in range(BATCHES_MAX):
            if happened():
                return
            self.append(1)
        raise AssertionError(f"it has not happened after {BATCHES_MAX} batches")

    def sealed(self) -> Seq | None:
        """At the follower; None if it has not made the dataset yet, too."""
        try:
            return self.near.sealed("events")
        except NoSuchDataset:
            return None

    def has_all(self) -> bool:
        return self.sealed() == self.leader.sealed("events")

    def has_upto(self, seal: Seq | None) -> bool:
        own = self.sealed()
        return seal is None or (own is not None and own >= seal)

    def catch_up(self) -> None:
        """The follower has all that its leader has. It follows in processes of its own, over a network that is not
        cut."""
        self.join_network()
        self.keep_following()
        self.until(self.has_all, "it does not catch up", feed=False)

    def applied_by(self, process: Forked) -> int:
        """How many passes of the process have applied something."""
        return self.sites.logs[process.pid].read_text("utf-8").count('"event": "applied"')

    def events(self, lake: Lake, event: Event) -> int:
        with lake.ledger.read() as connection:
            return len(audit.latest(connection, events_max=10_000, events=[event]))

    # --- the network ---

    def heal(self) -> None:
        self.sites.relay.rule = lambda request: None
        self.is_cut = False

    def join_network(self) -> None:
        """A rough one is left as it is: over it, everything gets there in the end."""
        if self.is_cut:
            self.heal()

    def roughly(self, request: Request) -> Fate:
        with self._network:
            if self.choose.random() > 0.4:
                return None
            kind = request.path.partition("?")[0]
            earlier = [a for r in self.sites.relay.seen if r.path.partition("?")[0] == kind for a in r.passed]
            possible = [one for one in ROUGH if (request.body or one not in ("request damaged", "request twice"))]
            name = self.choose.choice([one for one in possible if earlier or one != "answer to another request"])
            self.hit[OVER_A_ROUGH_NETWORK + name] += 1
            at = self.choose.random()
        fates: dict[str, Callable[[], Fate]] = {
            "a gateway's error": lambda: Instead(503),
            "answer lost": lambda: Afterwards(None),
            "answer cut short": lambda: CutShort(at),
            "answer damaged": lambda: Damaged(at),
            "request damaged": lambda: Damaged(at, request=True),
            "request twice": lambda: Twice(),
            "answer late": lambda: Late(at * 0.3),
            "answer to another request": lambda: Swapped(earlier[int(at * len(earlier))]),
        }
        return fates[name]()

    def cut_off(self, request: Request) -> Fate:
        with self._network:
            self.hit["requests of a cut network"] += 1
            return HOW[self.choose.choice(list(HOW))]

    def described(self, follower: Lake) -> str:
        opened = [(int(i.head.rows.lo), i.head.item.value) for i in follower.ledger.query(following.open_items)]
        seals = f"sealed to {follower.sealed('events')}, the leader to {self.leader.sealed('events')}"
        return (
            f"{follower.config.home.name} is {seals}; open: {opened}; the leader has {_rows(self.leader).num_rows} rows"
        )

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
            assert set(ids) == wanted, f"{_difference(set(ids), wanted)}; {self.described(follower)}"
            by_number = {row["_ingest_seq"]: row for row in ours.to_pylist()}
            assert len(by_number) == len(ids)
            different = [row for row in theirs.to_pylist() if by_number.get(row["_ingest_seq"]) != row]
            assert not different, f"{len(different)} rows are other ones than the leader's: {different[:5]}"
            assert follower.sealed("events") == self.leader.sealed("events")
            assert _columns(follower) == _columns(self.leader)


def is_stopped(process: Forked) -> bool:
    assert process.poll() is None, "it has ended instead of standing still"
    return bool(psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)


def _cpu_seconds(process: Forked) -> float:
    times = psutil.Process(process.pid).cpu_times()
    return float(times.user + times.system)


def _has_gone_on(process: Forked, before: float) -> bool:
    try:
        return process.poll() is not None or _cpu_seconds(process) > before
    except psutil.NoSuchProcess:
        return True


def _columns(lake: Lake) -> list[Any]:
    return sorted(lake.spark.table("lake.default.events").dtypes)


def _rows(lake: Lake) -> pa.Table:
    return lake.spark.sql("SELECT _ingest_seq, id, text, at FROM lake.default.events").toArrow()


def _difference(found: set[int], wanted: set[int]) -> str:
    lacking, more = sorted(wanted - found), sorted(found - wanted)
    return f"{len(lacking)} are lacking ({lacking[:5]}), {len(more)} should not be there ({more[:5]})"
