"""Storage, catalog and surveyor over a `World`, as the sweep has them: others act before each call, and calls fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set

from strandline.core.errors import CommitUnknown, StorageError
from strandline.core.records.reconcile_records import StorageKind
from strandline.reconcile.compare.compared import CompareContext, Survey, compared
from strandline.reconcile.model import FileContent, LedgerContext, Move, Phase, Stat, TableHead, Watch
from strandline.reconcile.references.collect import LakeReferences, ManifestPlace, NamedFile, TableReferences
from strandline.reconcile.references.manifest_workers import ListedManifest, ManifestFiles
from strandline.reconcile.references.missing_entries import Entry
from strandline.reconcile.storage.listing import Listing
from tests.reconcile.world import GRACE_HOURS, HOUR_NS, Table, World


class ModelStorage:
    def __init__(self, world: World) -> None:
        self.world = world

    @property
    def kind(self) -> StorageKind:
        return StorageKind.LOCAL

    def _fault(self, chance: float, what: str) -> None:
        if self.world.fails(chance):
            raise StorageError(f"{what}: no answer")

    def find_file(self, path: str) -> Stat | None:
        self.world.tick()
        self._fault(0.01, path)
        return self.world.files.get(path)

    def same(self, listed: Stat, now: Stat) -> bool:
        return listed == now

    def set_aside(self, files: Sequence[Move]) -> Mapping[str, str | None]:
        failures: dict[str, str | None] = {}
        for file in files:
            self.world.tick()
            self.world.register_this(file.path)
            try:
                self._fault(0.03, file.path)
            except StorageError as e:
                failures[file.path] = e.message
                continue
            if self.world.files.get(file.path) != file.expected:
                failures[file.path] = "changed"
                continue
            age = self.world.now_ns - (file.expected.modified_ns or self.world.now_ns)
            assert age >= GRACE_HOURS * HOUR_NS, f"a young file is moved: {file.path}"
            assert file.to not in self.world.files
            self.world.files[file.to] = self.world.files.pop(file.path)
            failures[file.path] = None
            self.world.moved()
        return failures

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
    named = {table.metadata: NamedFile(FileContent.METADATA, table.metadata)}
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
        comparing = CompareContext(self, watch, 0.9, 1)
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

    def find_file(self, path: str) -> Stat | None:
        return self.storage.find_file(path)

    def folders_in(self, metadata_file: str) -> Sequence[str]:
        return ()

    def describe(self, references: TableReferences, wanted: Set[str]) -> dict[str, Entry]:
        table = self.world.tables[references.head.name]
        added = {path: at for files, at in reversed(table.history) for path in files}
        return {
            path: Entry(
                path,
                FileContent.DATA,
                self.world.sizes[path],
                1,
                None,
                self.world.ranges.get(path),
                added.get(path),
                path in table.main,
            )
            for path in wanted
        }
