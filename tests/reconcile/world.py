"""A small model of storage and catalog in which everything happens at once, for the real diff, guards and sweep.

Whatever the sweep does (listing a folder, reading a table, looking at a file, moving one), others may act just before:
writers, compaction, expiry, people who register files, rewrite them, lose them. Faults come out of the same dice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from strandline.core.errors import CommitUnknown, StorageError
from strandline.core.reconcile_records import Asked, StorageKind
from strandline.core.types import Seq, SeqRange
from strandline.reconcile.compare.compared import CompareContext, compared
from strandline.reconcile.context import QUARANTINE_FOLDER
from strandline.reconcile.model import (
    Content,
    LedgerContext,
    Move,
    Phase,
    Stat,
    Survey,
    TableHead,
    TableSeal,
    Watch,
)
from strandline.reconcile.references.collect import LakeReferences, ManifestPlace, NamedFile, TableReferences
from strandline.reconcile.references.manifest_workers import ListedManifest, ManifestFiles
from strandline.reconcile.references.missing_entries import Entry
from strandline.reconcile.storage.listing import Listing

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
        """So many steps."""
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
        """Called before everything that the sweep does."""
        self.steps += 1
        if self.kill_after is not None and self.steps >= self.kill_after:
            raise Killed
        if not self.busy:
            return
        for _ in range(self.random.choice((0, 0, 0, 1, 1, 2))):
            self.event()

    def moved(self) -> None:
        """The process may not live to look whether it should have."""
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
        there = [path for path in sorted(table.main) if path in self.files]
        if len(there) > 1:
            some = self.random.sample(there, 2)
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
            there = [path for path in sorted(table.main) if path in self.files]
            if there:
                path = self.random.choice(there)
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


class ModelStorage:
    def __init__(self, world: World) -> None:
        self.world = world

    @property
    def kind(self) -> StorageKind:
        return StorageKind.LOCAL

    def _fault(self, chance: float, what: str) -> None:
        if self.world.fails(chance):
            raise StorageError(f"{what}: no answer")

    def look(self, path: str) -> Stat | None:
        self.world.tick()
        self._fault(0.01, path)
        return self.world.files.get(path)

    def same(self, listed: Stat, now: Stat) -> bool:
        return listed == now

    def set_aside(self, files: Sequence[Move]) -> Mapping[str, str | None]:
        told: dict[str, str | None] = {}
        for file in files:
            self.world.tick()
            self.world.register_this(file.path)
            try:
                self._fault(0.03, file.path)
            except StorageError as e:
                told[file.path] = e.message
                continue
            if self.world.files.get(file.path) != file.expected:
                told[file.path] = "changed"
                continue
            age = self.world.now_ns - (file.expected.modified_ns or self.world.now_ns)
            assert age >= GRACE_HOURS * HOUR_NS, f"a young file is moved: {file.path}"
            assert file.to not in self.world.files
            self.world.files[file.to] = self.world.files.pop(file.path)
            told[file.path] = None
            self.world.moved()
        return told

    def bring_back(self, kept_at: str, to: str) -> bool:
        if self.world.kill_after is not None:
            self.world.tick()
        if kept_at not in self.world.files or to in self.world.files:
            return False
        self.world.files[to] = self.world.files.pop(kept_at)
        return True

    def delete(self, paths: Sequence[str]) -> Mapping[str, str]:
        self.world.tick()
        for path in paths:
            assert "/_strandline/quarantine/" in path
            self.world.files.pop(path, None)
        return {}

    def same_content(self, one: str, other: str) -> bool:
        return one in self.world.files and self.world.files[one] == self.world.files.get(other)

    def tail(self, path: str, count: int) -> bytes:
        self._fault(0.01, path)
        return b""

    def files_under(self, folder: str) -> Iterator[str]:
        self.world.tick()
        return iter([path for path in self.world.files if path.startswith(f"{folder}/")])


class ModelCatalog:
    def __init__(self, world: World) -> None:
        self.world = world

    def references(self, known: LakeReferences | None, watch: Watch) -> LakeReferences:
        self.world.tick()
        if self.world.fails(0.02):
            raise StorageError("the catalog cannot be reached")
        read: dict[str, TableReferences] = {}
        unread: dict[str, str] = {}
        for name, table in self.world.tables.items():
            self.world.tick()
            if self.world.fails(0.03):
                unread[name] = "its metadata cannot be read"
                continue
            read[name] = references_of(table)
        return LakeReferences(read, unread)

    def drop_entries(
        self, table: str, paths: Sequence[str], *, token: str, summary: Mapping[str, str], last_word: Callable[[], None]
    ) -> int:
        self.world.tick()
        found = self.world.tables[table]
        gone = found.main & set(paths)
        fault = self.world.random.random() if self.world.faults and self.world.busy else 1.0
        if fault < 0.05 or token in found.void:
            raise CommitUnknown("no answer")
        last_word()
        for path in gone:
            assert path not in self.world.files, f"the entry of a file that is there is dropped: {path}"
            assert path not in self.world.set_aside(), f"the entry of a file in quarantine is dropped: {path}"
        if gone:
            self.world.commit(found, found.main - gone)
            found.tokens[token] = len(gone)
        if fault < 0.1:
            raise CommitUnknown("no answer, and it landed")
        self.world.tick()
        return len(gone)

    def dropped(self, table: str, token: str) -> int | None:
        self.world.tables[table].void.add(token)
        return self.world.tables[table].tokens.get(token)

    def may_have(self, table: str, paths: Sequence[str]) -> bool:
        return not self.world.tables[table].main.isdisjoint(paths)


def references_of(table: Table) -> TableReferences:
    head = TableHead(table.name, f"uuid-{table.location}", table.location, table.metadata)
    manifests, places = [], {}
    for n, (files, at_ns) in enumerate(table.history):
        path = f"memory:{table.location}/{n}"
        manifests.append(ManifestFiles(path, sorted(files)))
        places[path] = ManifestPlace(
            ListedManifest(path, len(files), 0, n), at_ns // 1_000_000, n == len(table.history) - 1
        )
    named = {table.metadata: NamedFile(Content.METADATA, table.metadata)}
    return TableReferences(head, (table.location,), named, tuple(manifests), places, table.reached(), {}, None)


class ModelSurveyor:
    def __init__(self, world: World, storage: ModelStorage, catalog: ModelCatalog) -> None:
        self.world = world
        self.storage = storage
        self.catalog = catalog
        self.failed: list[str] = []

    def survey(self, context: LedgerContext, watch: Watch) -> Survey:
        watch.phase(Phase.LIST)
        listing = self._list()
        watch.phase(Phase.REFERENCES)
        references = self.catalog.references(None, watch)
        watch.phase(Phase.COMPARE)
        comparing = CompareContext(self.storage.look, self._describe, watch.check, lambda path: (), 0.9, 1)
        return compared(self.world.root, listing, references, context, comparing)

    def references(self, known: LakeReferences | None, watch: Watch) -> LakeReferences:
        return self.catalog.references(known, watch)

    def _list(self) -> Listing:
        listing = Listing((self.world.root,))
        self.failed = []
        folders = sorted({path.rpartition("/")[0] for path in self.world.files if "_strandline" not in path})
        for folder in folders:
            self.world.tick()
            if self.world.fails(0.05):
                listing.fail(folder, "no answer")
                self.failed.append(folder)
                continue
            for path, stat in sorted(self.world.files.items()):
                if path.rpartition("/")[0] == folder:
                    listing.folder(folder).add(path.rpartition("/")[2], stat.size, stat.modified_ns or 0)
        return listing

    def _describe(self, references: TableReferences, wanted: Set[str]) -> dict[str, Entry]:
        table = self.world.tables[references.head.name]
        added = {path: at for files, at in reversed(table.history) for path in files}
        return {
            path: Entry(
                path,
                Content.DATA,
                self.world.sizes[path],
                1,
                None,
                self.world.ranges.get(path),
                added.get(path),
                path in table.main,
            )
            for path in wanted
        }
