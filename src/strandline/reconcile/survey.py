"""Surveys the lake in this process, without a JVM: lists storage, then reads references, then compares both.

This order makes it safe. A file that was listed and is referenced when the tables are read is live; a file written
after the listing is not in it. A referenced file that is not in the listing may be newer than it, so it is checked
before it is reported missing.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from strandline.core.errors import StorageError, StrandlineError, TableUnfit, UsageError
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.text.wording import plural
from strandline.iceberg.lake_tables import CatalogAccess
from strandline.iceberg.metadata.metadata_peek import CatalogRow, read_rows
from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog
from strandline.reconcile.compare.compared import CompareContext, FindFile, Survey, compared
from strandline.reconcile.compare.places import Places, Unclaimed
from strandline.reconcile.model import LedgerContext, Phase, PrefixFailure, Watch
from strandline.reconcile.paths import SPOOL_FOLDER, Room, Roots, canonical, key
from strandline.reconcile.references.collect import (
    LakeReferences,
    ReferenceReader,
    TableReferences,
    entries_of_summary,
    folders_in,
    folders_of,
    locations_of,
    references_too_many,
)
from strandline.reconcile.references.manifest_workers import ManifestReading
from strandline.reconcile.references.missing_entries import Entry, describe
from strandline.reconcile.references.real_paths import other_spellings, same_folders
from strandline.reconcile.storage.discovery import Discovery, discover
from strandline.reconcile.storage.inventory import holding, list_local, list_local_level
from strandline.reconcile.storage.inventory_file import read_inventory
from strandline.reconcile.storage.listing import Listing, OnFound, outermost
from strandline.reconcile.storage.object_inventory import list_level, list_prefixes
from strandline.reconcile.storage.pool import Pool
from strandline.storage.s3_listing import ListedBucket


@dataclass(slots=True)
class KnownFolders:
    """What belongs to somebody, before storage is listed."""

    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)  # keys of each table's folders
    # The same folders as storage may name them. A percent sign in a location may be literal, or begin an escape: both
    # folders are listed, and a missing one is empty.
    spelled: list[str] = field(default_factory=list)
    # by table: the metadata file that the catalog names, if it tells without reading it
    pointers: dict[str, str] = field(default_factory=dict)
    # folders of views, of another catalog's tables, and of tables that cannot be opened; empty if unknown
    others: dict[str, tuple[str, ...]] = field(default_factory=dict)
    expected: int = 0  # how many files their newest snapshots say that they have

    @property
    def left_alone(self) -> list[str]:
        return [folder for of in self.others.values() for folder in of]

    @property
    def folders(self) -> list[str]:
        return [folder for of in self.tables.values() for folder in of]

    def places(self, references: LakeReferences) -> Places:
        """The places, after the references were read."""
        unread = references.unread.keys() - references.by_name.keys()
        other_tables = {name: of for name, of in self.others.items() if name not in references.by_name}
        other_tables |= {name: self.tables[name] for name in unread & self.tables.keys()}
        nowhere = sorted({name for name, of in other_tables.items() if not of} | (unread - other_tables.keys()))
        folders = [folder for table in references.by_name.values() for folder in table.folders]
        spellings = other_spellings([*folders, *(folder for of in other_tables.values() for folder in of)])
        away = {name: self.pointers[name] for name in sorted(unread & self.pointers.keys())}
        return Places(other_tables, next(iter(nowhere), None), spellings, pointers=away)


class LakeSurveyor:
    def __init__(
        self,
        config: LakeConfig,
        tables: CatalogAccess,
        find_file: FindFile,
        *,
        inventory_file: Path | None = None,
        memory: Path | None = None,
    ) -> None:
        """`memory`: a folder for manifests, for reports only."""
        self.config = config
        self._settings = config.settings.reconcile
        self._tables = tables
        self.find_file = find_file
        self.inventory_file = inventory_file
        self._memory = None if memory is None else str(memory)
        self.warehouse = canonical(config.warehouse_url)

    @property
    def catalog(self) -> PyIcebergCatalog:
        return self._tables.catalog

    def survey(self, ledger_context: LedgerContext, watch: Watch) -> Survey:
        with older_objects_passed_over():
            with Pool() as pool:
                watch.phase(Phase.LIST)
                known = self.known()
                if known.expected > self._settings.references_max:
                    # Before anything is listed: a lake with so many references has as many files.
                    raise references_too_many(known.expected)
                listing = self._list(known, pool, watch)
                watch.phase(Phase.REFERENCES)
                references = self._reader(pool, watch, watch.advance).read(links=listing.links)
            watch.phase(Phase.COMPARE)
            places = known.places(references)
            if self.inventory_file is not None:
                unclaimed = self.unclaimed(known)
                roots = {root for path in listing.folders if (root := unclaimed.root_of(key(path))) is not None}
                times = (max(f.modified_ns, default=0) for f in listing.folders.values() if f.modified_ns)
                places = self.bounded(places, unclaimed, sorted(roots), max(times, default=0), listing.failures)
            return compared(self.warehouse, listing, references, ledger_context, self.compare_context(watch), places)

    @property
    def bucket(self) -> ListedBucket | None:
        return ListedBucket.of(self.config) if self.warehouse.startswith("s3://") else None

    def references(self, known: LakeReferences | None, watch: Watch) -> LakeReferences:
        """The present references."""
        with Pool() as pool:
            return self._reader(pool, watch).read(known)

    def compare_context(self, watch: Watch) -> CompareContext:
        return CompareContext(self, watch, self._settings.references_shrink_max, self._settings.recheck_concurrency)

    def describe(self, references: TableReferences, wanted: Set[str]) -> Mapping[str, Entry]:
        return describe(self.catalog.load(references.head.name), references, wanted)

    def folders_in(self, metadata_file: str) -> Sequence[str]:
        return folders_in(self.catalog.read_metadata(metadata_file))

    def _reader(self, pool: Pool, watch: Watch, on_found: OnFound = lambda more: None) -> ReferenceReader:
        s = self._settings
        seconds, check = s.prefix_timeout_seconds, watch.check
        reading = ManifestReading(pool, timeout_seconds=seconds, check=check, memory=self._memory, on_found=on_found)
        return ReferenceReader(self.catalog, reading, references_max=s.references_max)

    def known(self) -> KnownFolders:
        known = KnownFolders()
        for name in self.catalog.table_names():
            try:
                table = self.catalog.load(name)
                known.tables[name] = folders_of(table)
                known.spelled += [folder for path in locations_of(table) for folder in (canonical(path), key(path))]
                if (newest := table.current_snapshot()) is not None:
                    known.expected += entries_of_summary(newest) or 0
            except (TableUnfit, StorageError, UsageError):
                continue  # reported when the references are read; its place may still become known below
        rows = read_rows(self.config)
        if rows is None:
            for name, location in self.catalog.view_locations().items():
                known.others[f"the view {name}"] = () if location is None else (key(location).rstrip("/"),)
            return known
        for row in rows:
            if row.own and not row.is_view and row.metadata:
                known.pointers[row.name] = canonical(row.metadata[0])
            if row.is_view:
                known.others[f"the view {row.name}"] = _place_of_view(row)
            elif not row.own:
                known.others[f"{row.name} of another catalog"] = self._place_of_table(row)
            elif row.name not in known.tables:
                known.others[row.name] = self._place_of_table(row)
        return known

    def _place_of_table(self, row: CatalogRow) -> tuple[str, ...]:
        """The place of a table that is not opened: from its metadata, or the metadata before, and the file's folder."""
        found: list[str] = []
        for location in row.metadata:
            try:
                found += folders_of(self.catalog.open_metadata(location))
                break
            except StrandlineError:
                continue
        folders = [os.path.dirname(key(location)) for location in row.metadata[:1]]
        found += [os.path.dirname(f) for f in folders if os.path.basename(f) == Room.METADATA]
        return tuple(dict.fromkeys(found))

    def _list(self, known: KnownFolders, pool: Pool, watch: Watch) -> Listing:
        if self.inventory_file is not None:
            return read_inventory(self.inventory_file, self.warehouse)
        planned = self.plan_listing(known, pool, watch)
        seconds, check, on_found = self._settings.prefix_timeout_seconds, watch.check, watch.advance
        if self.bucket is not None:
            listing = list_prefixes(self.bucket, planned.roots, timeout_seconds=seconds, check=check, on_found=on_found)
        else:
            listing = list_local(planned.roots, timeout_seconds=seconds, pool=pool, check=check, on_found=on_found)
        listing.folders |= planned.folders
        listing.links += planned.links
        listing.failures += planned.failures
        return listing

    def plan_listing(self, known: KnownFolders, pool: Pool, watch: Watch) -> Listing:
        """The roots are to be listed: the folders of tables, folders that nobody owns, and the spool. The files are
        those that were found beside them while they were searched for."""
        folders = known.folders
        levels: dict[str, Listing] = {}
        found = self._discover([*folders, *known.left_alone], levels, pool, watch)
        aliases = same_folders(found.unknown, [*folders, *known.left_alone])
        unknown = [folder for folder in found.unknown if folder not in aliases]
        roots = outermost([*known.spelled, *unknown, f"{self.warehouse}/{SPOOL_FOLDER}"])
        below, planned = Roots(roots), Listing(roots)
        for level in levels.values():
            planned.folders |= {path: folder for path, folder in level.folders.items() if below.of(path) is None}
            planned.links += level.links
            planned.failures += level.failures
        for folder, other in aliases.items():
            planned.fail(folder, f"it is another name of {other}")
        if found.is_cut:
            planned.failures.append(self._cut())
        return planned

    def _cut(self) -> PrefixFailure:
        most = self._settings.unknown_roots_max
        return PrefixFailure(f"{self.warehouse}/*", f"there are more than {plural(most, 'folder')} that no table owns")

    def unclaimed(self, known: KnownFolders) -> Unclaimed:
        return Unclaimed(key(self.warehouse), [*known.folders, *known.left_alone])

    def bounded(
        self,
        places: Places,
        unclaimed: Unclaimed,
        roots: Sequence[str],
        newest_ns: int,
        failures: list[PrefixFailure],
    ) -> Places:
        """Considers no more of an inventory than of a listing. `roots`: the first folders that nobody owns, sorted, at
        least one more than allowed if there are. Files as young as `newest_ns` may be missing."""
        most = self._settings.unknown_roots_max
        if 0 < most < len(roots):
            failures.append(self._cut())
        as_of_ns = newest_ns - self._settings.grace_seconds * 1_000_000_000
        return replace(places, unclaimed=unclaimed, considered=frozenset(roots[: max(most, 0)]), as_of_ns=as_of_ns)

    def _discover(self, known: Sequence[str], levels: dict[str, Listing], pool: Pool, watch: Watch) -> Discovery:
        seconds, bucket = self._settings.prefix_timeout_seconds, self.bucket

        def children(folder: str) -> list[str]:
            if bucket is not None:
                level, names = list_level(bucket, folder, timeout_seconds=seconds, check=watch.check)
            else:
                level, names = list_local_level(folder, pool, timeout_seconds=seconds, check=watch.check)
            levels[folder] = level
            return names

        def non_empty(folders: Sequence[str]) -> Sequence[str]:
            if bucket is not None:
                return folders  # a bucket has no empty folders
            return holding(folders, pool, timeout_seconds=seconds, check=watch.check)

        roots_max, today = self._settings.unknown_roots_max, int(time.time() // 86_400)
        return discover(self.warehouse, known, children, roots_max=roots_max, holding=non_empty, turn=today)


@contextmanager
def older_objects_passed_over() -> Iterator[None]:
    """Keeps the garbage collector from scanning the existing objects again and again while a million names are made. It
    stays on: it still collects what deliverers in this process produce meanwhile."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _place_of_view(row: CatalogRow) -> tuple[str, ...]:
    """A view has no files except its metadata."""
    folders = [os.path.dirname(key(location)) for location in row.metadata]
    return tuple(os.path.dirname(f) if os.path.basename(f) == Room.METADATA else f for f in folders)
