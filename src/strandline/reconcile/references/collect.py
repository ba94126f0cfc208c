"""Reads everything that the tables of the catalog reference, without a JVM.

For each table: its metadata file and those of its log, statistics, and for every snapshot that its metadata keeps,
whether main, a branch, a tag or nothing refers to it, the manifest list, the manifests, and the files of their live
entries. A table that cannot be read completely is in `unread`: it may reference any file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from strandline.core.errors import (
    NoSuchDataset,
    ReferencesTooMany,
    SchemaError,
    StorageError,
    StrandlineError,
    TableUnfit,
)
from strandline.core.text.whole_number import whole_number
from strandline.core.text.wording import plural
from strandline.iceberg.metadata.table_metadata import LOCATION_PROPERTIES
from strandline.reconcile.model import FileContent, Lineage, TableHead
from strandline.reconcile.paths import canonical, first_that_is_no_text, key
from strandline.reconcile.references.manifest_workers import ListedManifest, ManifestFiles, ManifestReading, Unreadable
from strandline.reconcile.references.metadata_checks import named_files, newest_sequence, problem_of
from strandline.reconcile.references.real_paths import RealPaths

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog

FORMAT_VERSIONS = (1, 2, 3)
ATTEMPTS_MAX = 4


@dataclass(frozen=True, slots=True)
class NamedFile:
    content: FileContent
    path: str  # canonical


@dataclass(frozen=True, slots=True)
class ManifestPlace:
    listed: ListedManifest
    first_ms: int  # when the oldest kept snapshot that has it was made: its entries are at least as old
    in_main: bool


@dataclass(frozen=True, slots=True)
class TableReferences:
    head: TableHead
    folders: tuple[str, ...]  # keys of the location, and of other places that its properties send writers to
    files: Mapping[str, NamedFile]  # everything except the entries of manifests, by key
    manifests: tuple[ManifestFiles, ...]
    listed: Mapping[str, ManifestPlace]  # what is known of each manifest, by its path
    keys: frozenset[str] | set[str]  # of all files
    gone: Mapping[str, FileContent]  # canonical paths of missing manifests and manifest lists
    problem: str | None  # why not everything could be read
    apart: int = 0  # how many more keys there are that this process does not hold: those of all content files, or none

    @property
    def metadata_folder(self) -> str:
        """Its key."""
        return key(self.head.metadata_location).rpartition("/")[0]

    @property
    def count(self) -> int:
        return len(self.keys) + self.apart

    @property
    def content_count(self) -> int:
        return self.count - len(self.files)


@dataclass(frozen=True)
class LakeReferences:
    """What the catalog's tables reference, at one moment."""

    by_name: Mapping[str, TableReferences]
    unread: Mapping[str, str]  # tables that could not be read completely, and why
    also: frozenset[str] = field(default=frozenset())  # the real paths of references that go through symbolic links
    links: tuple[str, ...] = ()  # the known links

    @property
    def tables(self) -> Sequence[TableHead]:
        return [self.by_name[name].head for name in sorted(self.by_name)]

    def __len__(self) -> int:
        return sum(table.count for table in self.by_name.values())

    @cached_property
    def everything(self) -> frozenset[str] | set[str]:
        tables = list(self.by_name.values())
        if len(tables) == 1 and not self.also:
            return tables[0].keys
        return set().union(self.also, *(table.keys for table in tables))

    def referenced(self, paths: Iterable[str]) -> set[str]:
        """Those of the paths that are referenced."""
        return {path for path in paths if key(path) in self.everything}


class ReferenceReader:
    def __init__(self, catalog: PyIcebergCatalog, reading: ManifestReading, *, references_max: int) -> None:
        self._catalog = catalog
        self._reading = reading
        self._references_max = references_max
        self._check = reading.check or (lambda: None)

    def read(self, known: LakeReferences | None = None, *, links: Sequence[str] = ()) -> LakeReferences:
        """A table whose pointer did not move since `known` is not read again. Names are listed before and after, so
        that a table that is created, dropped or renamed meanwhile is noticed. A table that is always listed and never
        found is unread. Raises StorageError."""
        read: dict[str, TableReferences] = {}
        unread: dict[str, str] = {}
        links = links or (() if known is None else known.links)
        names = self._catalog.table_names()
        always = set(names)
        for _ in range(ATTEMPTS_MAX):
            self._read_tables([name for name in names if name not in read], known, read, unread)
            before, names = names, self._catalog.table_names()
            always &= set(names)
            pending = {name for name in names if name not in read and name not in unread}
            is_settled = set(names) <= set(before)
            if is_settled and not pending:
                return self._gathered(names, known, read, unread, links)
        if is_settled and pending <= always:
            # A REST catalog does this for a table whose metadata file it has lost. The other tables can be read.
            unread |= dict.fromkeys(sorted(pending), "the catalog lists it, and says that there is no such table")
            return self._gathered(names, known, read, unread, links)
        raise StorageError(
            "tables of the catalog are created and dropped faster than they can be read",
            hint="Try again when fewer tables are created and dropped.",
        )

    @staticmethod
    def _gathered(
        names: Sequence[str],
        known: LakeReferences | None,
        read: dict[str, TableReferences],
        unread: dict[str, str],
        links: Sequence[str],
    ) -> LakeReferences:
        """Returns `known` itself if nothing changed since."""
        before = {} if known is None else known.by_name
        is_same = read.keys() == before.keys() and all(table is before[name] for name, table in read.items())
        if known is not None and is_same and not unread and not known.unread and tuple(links) == known.links:
            return known
        real = RealPaths([folder for table in read.values() for folder in table.folders], links)
        also = real.also(part for table in read.values() for part in _spelled(table))
        still = {name: why for name, why in unread.items() if name in names}
        return LakeReferences(read, still, frozenset(also), tuple(links))

    def _read_tables(
        self,
        names: Sequence[str],
        known: LakeReferences | None,
        read: dict[str, TableReferences],
        unread: dict[str, str],
    ) -> None:
        waiting = list(names)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            tables: dict[str, Table] = {}
            for name in waiting:
                self._check()
                unread.pop(name, None)
                try:
                    table = self._catalog.load(name)
                    if (version := table.metadata.format_version) not in FORMAT_VERSIONS:
                        raise TableUnfit(f"{name} has format version {version}: what it references is not known")
                    folders_of(table)  # which raises, too
                except NoSuchDataset:
                    continue  # Dropped or renamed just now: the names are listed again.
                except (TableUnfit, StorageError, SchemaError) as e:
                    unread[name] = e.message
                    continue
                before = known.by_name.get(name) if known is not None else None
                if before is not None and before.problem is None and _is_same(before.head, table):
                    read[name] = before
                else:
                    tables[name] = table
            found = self._read_manifests(tables)
            # If the pointer moved, a missing file was expired: the table's present references must be read.
            waiting = [
                name
                for name, table in found.items()
                if table.gone and attempt < ATTEMPTS_MAX and self._moved(name, table.head)
            ]
            for name, table_found in found.items():
                if name not in waiting:
                    read[name] = table_found
                    if table_found.problem is not None:
                        unread[name] = table_found.problem
            if not waiting:
                return

    def _moved(self, name: str, head: TableHead) -> bool:
        try:
            return self._catalog.load(name).metadata_location != head.metadata_location
        except StrandlineError:
            return False

    def _read_manifests(self, tables: Mapping[str, Table]) -> dict[str, TableReferences]:
        parts = self._read_lists(tables)
        wanted = {manifest.path: manifest for part in parts.values() for manifest in part.listed()}
        owners = {manifest.path: tables[name].io for name, part in parts.items() for manifest in part.listed()}
        if (counted := sum(manifest.live or 0 for manifest in wanted.values())) > self._references_max:
            raise references_too_many(counted)
        files = self._reading.read_manifests(wanted.values(), owners)
        for part in parts.values():
            for path in sorted({manifest.path for manifest in part.listed()}):
                manifest = files[path]
                if manifest.problem is None:
                    part.manifests.append(manifest)
                else:
                    part.lacks(path, manifest.problem, FileContent.MANIFEST if manifest.is_missing else None)
        return {
            name: references_from(name, table, parts[name], damage=self.damage_of(table))
            for name, table in tables.items()
        }

    def damage_of(self, table: Table) -> str | None:
        return problem_of(table, is_from_file=not self._catalog.is_remote)

    def _read_lists(self, tables: Mapping[str, Table]) -> dict[str, Parts]:
        answers = self._reading.read_lists({s.manifest_list: t.io for t in tables.values() for s in t.snapshots()})
        parts = {name: Parts() for name in tables}
        for name, table in tables.items():
            for path in sorted({s.manifest_list for s in table.snapshots()}):
                listed = answers[path]
                if isinstance(listed, Unreadable):
                    parts[name].lacks(path, listed.why, FileContent.MANIFEST_LIST if listed.is_missing else None)
                else:
                    parts[name].lists[path] = listed
        return parts


def references_too_many(count: int) -> ReferencesTooMany:
    return ReferencesTooMany(
        f"the tables reference {plural(count, 'file')}, more than one process may hold in memory",
        hint="Raise reconcile.references_max, if this machine has the memory.",
    )


@dataclass(slots=True)
class Parts:
    """What was read of one table so far."""

    lists: dict[str, list[ListedManifest]] = field(default_factory=dict)
    manifests: list[ManifestFiles] = field(default_factory=list)
    gone: dict[str, FileContent] = field(default_factory=dict)
    problem: str | None = None

    def listed(self) -> Iterator[ListedManifest]:
        """Of every snapshot: a manifest as often as it is listed."""
        return chain.from_iterable(self.lists.values())

    def lacks(self, path: str, why: str, gone: FileContent | None) -> None:
        self.problem = self.problem or f"{canonical(path)} cannot be read: {why}"
        if gone is not None:
            self.gone[canonical(path)] = gone


def entries_of_summary(snapshot: Snapshot) -> int | None:
    """The live entries of a snapshot by its summary; a lower bound if that lacks some kinds. None without counts."""
    said = {} if snapshot.summary is None else snapshot.summary.additional_properties
    counts = [whole_number(said.get(name)) for name in ("total-data-files", "total-delete-files")]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _check_totals(table: Table, parts: Parts) -> None:
    """A list that is cut off at the end of a block is readable, and names fewer manifests."""
    counted = {manifest.path: len(manifest.data) + len(manifest.others) for manifest in parts.manifests}
    for snapshot in table.snapshots():
        said, listed = entries_of_summary(snapshot), parts.lists.get(snapshot.manifest_list)
        if said is None or listed is None:
            continue
        counts = [counted.get(m.path) if m.live is None else m.live for m in listed]
        live = sum(count for count in counts if count is not None)
        if None not in counts and live < said:
            why = f"its manifests have {plural(live, 'live entry')}, and its snapshot says {said:,}"
            parts.lacks(snapshot.manifest_list, why, None)


def references_from(name: str, table: Table, parts: Parts, *, damage: str | None = None) -> TableReferences:
    """`damage`: why the table's metadata file is not trusted."""
    _check_totals(table, parts)
    files = metadata_files(table)
    places: dict[str, ManifestPlace] = {}
    current = table.metadata.current_snapshot_id
    for snapshot in table.snapshots():
        is_main = snapshot.snapshot_id == current
        for listed in parts.lists.get(snapshot.manifest_list, ()):
            before = places.get(listed.path)
            first_ms = snapshot.timestamp_ms if before is None else min(before.first_ms, snapshot.timestamp_ms)
            places[listed.path] = ManifestPlace(listed, first_ms, is_main or (before is not None and before.in_main))
    files |= {key(path): NamedFile(FileContent.MANIFEST, canonical(path)) for path in places}
    keys = set(files).union(*(named for manifest in parts.manifests for named in (manifest.data, manifest.others)))
    problem = damage or parts.problem or not_understood(keys)
    manifests = tuple(parts.manifests)
    return TableReferences(head_of(name, table), folders_of(table), files, manifests, places, keys, parts.gone, problem)


def not_understood(keys: Collection[str]) -> str | None:
    """A path of another kind may mean one of our files in a way that a comparison of keys does not see."""
    kinds = repeat(("/", "s3://"))
    if all(map(str.startswith, keys, kinds)):  # without a Python step per key: there may be millions
        return None
    odd = next(k for k, is_plain in zip(keys, map(str.startswith, keys, kinds), strict=False) if not is_plain)
    return f"it references {odd}, which is no path of a folder or of a bucket"


def _spelled(table: TableReferences) -> Iterator[Sequence[str]]:
    yield list(table.files)
    for manifest in table.manifests:
        yield manifest.data
        yield list(manifest.others)


def head_of(name: str, table: Table) -> TableHead:
    metadata = table.metadata
    lineage = Lineage(
        None if metadata.format_version == 1 else metadata.last_sequence_number,
        metadata.last_updated_ms * 1_000_000,
        metadata.current_snapshot_id,
        {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in metadata.snapshots},
        None if metadata.format_version == 1 else newest_sequence(metadata),
    )
    return TableHead(name, str(metadata.table_uuid), canonical(metadata.location), table.metadata_location, lineage)


def folders_of(table: Table) -> tuple[str, ...]:
    """Their keys. Raises `TableUnfit` if one of them cannot be a folder."""
    return _folders(locations_of(table))


def folders_in(document: object) -> tuple[str, ...]:
    """The same from the document in a metadata file, of a table or of a view."""
    match {"properties": {}, **document} if isinstance(document, dict) else None:
        case {"location": str(location), "properties": dict(properties)}:
            return _folders(_locations(location, properties))
        case _:
            raise TableUnfit("its metadata is damaged: it does not say where its table is")


def _folders(locations: Sequence[str]) -> tuple[str, ...]:
    folders = tuple(key(path).rstrip("/") for path in locations)
    odd = first_that_is_no_text((*folders, *locations))
    if odd is not None:
        raise TableUnfit(f"its metadata is damaged: the location {odd!a} does not decode as text")
    return folders


def locations_of(table: Table) -> list[str]:
    """Where the table is and writes to, as the table spells it."""
    return _locations(table.metadata.location, table.properties)


def _locations(location: str, properties: Mapping[str, Any]) -> list[str]:
    return [location, *(str(properties[p]) for p in LOCATION_PROPERTIES if properties.get(p))]


def metadata_files(table: Table) -> dict[str, NamedFile]:
    """Files that the table's metadata names directly, by key."""
    return {
        key(path): NamedFile(content, canonical(path))
        for _, content, paths in named_files(table)
        for path in paths
        # A path that is not valid text is damage, which `metadata_checks` reports; nobody can check such a file.
        if first_that_is_no_text((path, key(path))) is None
    }


def _is_same(head: TableHead, table: Table) -> bool:
    return head.metadata_location == table.metadata_location and head.uuid == str(table.metadata.table_uuid)
