"""A small model of storage and catalog in which everything happens at once, for the real diff, guards and sweep.

Whatever the sweep does (listing a folder, reading a table, looking at a file, moving one), others may act just before:
writers, compaction, expiry, people who register files, rewrite them, lose them. Faults come out of the same dice.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from strandline.core.records.reconcile_records import Asked
from strandline.core.types import Seq, SeqRange
from strandline.reconcile.context import QUARANTINE_FOLDER
from strandline.reconcile.model import (
    LedgerContext,
    Stat,
    TableSeal,
)

HOUR_NS = 3_600 * 1_000_000_000
GRACE_HOURS = 24
START_NS = 1_700_000_000 * 1_000_000_000


class Killed(BaseException):
    """The process is gone: nothing after this happens."""


@dataclass(slots=True)
class Table:
    name: str
    location: str
    version: int = 0
    history: list[tuple[frozenset[str], int]] = field(default_factory=list)
    """Retained snapshots, oldest first: data files, and when."""
    tokens: dict[str, int] = field(default_factory=dict)
    void: set[str] = field(default_factory=set)

    @property
    def main(self) -> frozenset[str]:
        return self.history[-1][0] if self.history else frozenset()

    @property
    def metadata(self) -> str:
        return f"{self.location}/metadata/{self.version:05}.metadata.json"

    def reached(self) -> set[str]:
        return {self.metadata}.union(*(files for files, _ in self.history))


class World:
    def __init__(self, seed: int, *, faults: bool = True) -> None:
        self.random = random.Random(seed)
        self.root = f"/warehouse-{seed}"
        self.now_ns = START_NS
        self.files: dict[str, Stat] = {}
        self.tables = {name: Table(name, f"{self.root}/ns/{name.rpartition('.')[2]}") for name in ("ns.a", "ns.b")}
        self.ranges: dict[str, SeqRange] = {}
        self.sizes: dict[str, int] = {}
        """Of data files, as their entries have it: also of those that are gone."""
        self.seq = 0
        self.in_flight: list[tuple[str, list[str], int]] = []
        """Files that a writer has written and not committed, and since when its block is open."""
        self.lost: set[str] = set()
        """Live files that an accident took away."""
        self.faults = faults
        self.busy = True
        self.kill_after: int | None = None
        """The process dies at this step; None: it lives."""
        self.kill_after_moves: int | None = None
        self.steps = 0
        self.unrest = self.random.choice((0, 1, 1, 6))
        """How many times as often as usual there is no answer."""
        self.unanswered = 0
        """How often storage or catalog gave no answer."""
        self._made = 0
        for table in self.tables.values():
            self.files[table.metadata] = Stat(1, self.now_ns)
            for _ in range(3):
                self.ingest(table)

    # ---- what others do ----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Called before each step of the sweep."""
        self.steps += 1
        if self.kill_after is not None and self.steps >= self.kill_after:
            raise Killed
        if not self.busy:
            return
        for _ in range(self.random.choice((0, 0, 0, 1, 1, 2))):
            self.event()

    def moved(self) -> None:
        """A process that is to die within the next steps may die before it has checked the move."""
        if self.kill_after_moves is not None:
            self.kill_after_moves -= 1
            if self.kill_after_moves == 0:
                self.kill_after = self.steps + self.random.randrange(1, 4)

    def event(self) -> None:
        table = self.random.choice(list(self.tables.values()))
        self.now_ns += self.random.randrange(1, 60) * 1_000_000_000
        self.random.choice(
            (
                lambda: self.ingest(table),
                lambda: self.begin(table),
                self.finish,
                self.finish,
                lambda: self.compact(table),
                lambda: self.expire(table),
                lambda: self.stray(table),
                lambda: self.stray(table),
                lambda: self.register(table),
                lambda: self.rewrite(table),
                lambda: self.lose(table),
            )
        )()

    def write(self, table: Table, age_ns: int = 0) -> str:
        self._made += 1
        path = f"{table.location}/data/{self.random.choice('pqr')}=1/{self._made:05}.parquet"
        self.sizes[path] = self.random.randrange(1, 99)
        self.files[path] = Stat(self.sizes[path], self.now_ns - age_ns)
        self.seq += 1
        self.ranges[path] = SeqRange(Seq(self.seq), Seq(self.seq))
        return path

    def commit(self, table: Table, files: frozenset[str]) -> None:
        before = table.metadata
        table.version += 1
        self.files[table.metadata] = Stat(1, self.now_ns)
        if self.random.random() < 0.5:
            self.files.pop(before, None)
        table.history.append((files, self.now_ns))

    def ingest(self, table: Table) -> None:
        self.commit(table, table.main | {self.write(table)})

    def begin(self, table: Table) -> None:
        self.in_flight.append((table.name, [self.write(table)], self.now_ns))

    def finish(self) -> None:
        if self.in_flight:
            name, files, _ = self.in_flight.pop(self.random.randrange(len(self.in_flight)))
            self.commit(self.tables[name], self.tables[name].main | set(files))

    def compact(self, table: Table) -> None:
        present = [path for path in sorted(table.main) if path in self.files]
        if len(present) > 1:
            some = self.random.sample(present, 2)
            self.commit(table, table.main - set(some) | {self.write(table)})

    def expire(self, table: Table) -> None:
        """Half of the time its files go, half of the time the process dies before and they stay."""
        if len(table.history) < 2:
            return
        before = table.reached()
        del table.history[: self.random.randrange(1, len(table.history))]
        table.version += 1
        self.files[table.metadata] = Stat(1, self.now_ns)
        if self.random.random() < 0.5:
            for path in before - self.referenced():
                self.files.pop(path, None)

    def forget_history(self, table: Table) -> None:
        """All but the newest snapshot, and nothing of storage."""
        del table.history[:-1]
        table.version += 1
        self.files[table.metadata] = Stat(1, self.now_ns)

    def stray(self, table: Table) -> None:
        self.write(table, age_ns=self.random.choice((0, 12, 23, 25, 48, 1000)) * HOUR_NS)

    def register(self, table: Table) -> None:
        """An old file that nothing referenced until now."""
        strays = sorted(p for p in self.files if p.startswith(f"{table.location}/data/") and p not in self.referenced())
        waiting = {path for _, files, _ in self.in_flight for path in files}
        strays = [path for path in strays if path not in waiting]
        if strays:
            self.commit(table, table.main | {self.random.choice(strays)})

    def register_this(self, path: str) -> None:
        """The very file that is about to be moved."""
        if self.busy and self.random.random() < 0.2 and path in self.files and path not in self.referenced():
            for table in self.tables.values():
                if path.startswith(f"{table.location}/data/"):
                    self.commit(table, table.main | {path})

    def rewrite(self, table: Table) -> None:
        strays = sorted(p for p in self.files if p.startswith(f"{table.location}/data/") and p not in self.referenced())
        if strays:
            path = self.random.choice(strays)
            self.sizes[path] += 1
            self.files[path] = Stat(self.sizes[path], self.now_ns)

    def lose(self, table: Table) -> None:
        if self.faults and self.random.random() < 0.2:
            present = [path for path in sorted(table.main) if path in self.files]
            if present:
                path = self.random.choice(present)
                del self.files[path]
                self.lost.add(path)

    def referenced(self) -> set[str]:
        return set().union(*(table.reached() for table in self.tables.values()))

    # ---- what must hold ----------------------------------------------------------------------------------------------

    def out_of_place(self) -> set[str]:
        return self.referenced() - self.lost - self.files.keys()

    def set_aside(self) -> set[str]:
        inside = (path.partition(f"/{QUARANTINE_FOLDER}/") for path in self.files)
        return {f"{root}/{kept.partition('/')[2]}" for root, found, kept in inside if found}

    def fails(self, chance: float) -> bool:
        failed = self.faults and self.busy and self.random.random() < chance * self.unrest
        self.unanswered += failed
        return failed

    def aged_orphans(self) -> set[str]:
        """Old enough for any run that begins now, and younger than nothing that is open."""
        waiting = {path for _, files, _ in self.in_flight for path in files}
        bound = min([self.now_ns - (GRACE_HOURS + 1) * HOUR_NS, *(since - HOUR_NS for _, _, since in self.in_flight)])
        live = self.referenced()
        return {
            path
            for path, stat in self.files.items()
            if path not in live and path not in waiting and "/ns/" in path and "_strandline" not in path
            and (stat.modified_ns or 0) <= bound
        }  # fmt: skip

    def context(self, asked: Asked) -> LedgerContext:
        opened = [since for _, _, since in self.in_flight]
        seals = {name: TableSeal(name, Seq(self.seq) if self.seq else None) for name in self.tables}
        return LedgerContext(
            self.now_ns,
            GRACE_HOURS * 3_600,
            300,
            min(opened, default=None),
            None,
            seals,
            accept_loss=asked.accept_loss,
        )
