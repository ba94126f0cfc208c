"""One look at everything, in this process and without a JVM: storage first, references after, then both compared.

The order is what makes it safe. A file that was listed and is referenced by the time the tables are read is live; one
that is written after the listing is not in it. What the listing cannot know, a file that came after it, is looked for
before it is called missing.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.config import LakeConfig
from strandline.errors import StorageError, TableUnfit, UsageError
from strandline.reconcile.compared import Bounds, Look, Ways, compared
from strandline.reconcile.discovery import Discovery, discover
from strandline.reconcile.entries import Entry, describe
from strandline.reconcile.inventory import holding, list_local, list_local_level, same_folders
from strandline.reconcile.inventory_file import read_inventory
from strandline.reconcile.listing import Listing, outermost
from strandline.reconcile.manifest_files import ManifestReading
from strandline.reconcile.model import Context, Phase, Survey, Watch
from strandline.reconcile.object_inventory import Bucket, list_bucket, list_level
from strandline.reconcile.paths import SPOOL_FOLDER, Roots, canonical, key
from strandline.reconcile.pool import Pool
from strandline.reconcile.references import (
    LakeReferences,
    ReferenceReader,
    TableReferences,
    folders_of,
    references_too_many,
)
from strandline.tables.catalog_rows import read_rows
from strandline.tables.light import LightCatalog

if TYPE_CHECKING:
    from pyiceberg.table import Table


@dataclass(slots=True)
class Known:
    """What belongs to somebody, before storage is listed."""

    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Keys of each table's folders."""
    left_alone: list[str] = field(default_factory=list)
    """Keys of folders of views, and of tables that cannot be opened."""
    expected: int = 0
    """How many files their newest snapshots say that they have."""


@dataclass(frozen=True, slots=True)
class ListingPlan:
    roots: tuple[str, ...]
    beside: Listing
    """What was seen while they were looked for: it is not below them."""


class LakeSurveyor:
    def __init__(
        self, config: LakeConfig, catalog: LightCatalog, look: Look, *, inventory_file: Path | None = None
    ) -> None:
        self.config = config
        self._settings = config.settings.reconcile
        self.catalog = catalog
        self._look = look
        self.inventory_file = inventory_file
        self.warehouse = canonical(config.warehouse_url)

    def survey(self, context: Context, watch: Watch) -> Survey:
        with garbage_left_alone():
            with Pool() as pool:
                watch.phase(Phase.LIST)
                known = self.known()
                self._check_expected(known)
                listing = self._list(known, pool, watch)
                watch.phase(Phase.REFERENCES)
                references = self._reader(pool, watch).read(links=listing.links)
            watch.phase(Phase.COMPARE)
            return compared(self.warehouse, listing, references, context, self.ways(watch), self.bounds)

    def references(self, known: LakeReferences | None, watch: Watch) -> LakeReferences:
        """As they are now."""
        with Pool() as pool:
            return self._reader(pool, watch).read(known)

    def ways(self, watch: Watch) -> Ways:
        return Ways(self._look, self._describe, watch.check)

    @property
    def bounds(self) -> Bounds:
        return Bounds(self._settings.references_shrink_max, self._settings.recheck_concurrency)

    def _describe(self, references: TableReferences, wanted: Set[str]) -> dict[str, Entry]:
        return describe(self.catalog.load(references.head.name), references, wanted)

    def _reader(self, pool: Pool, watch: Watch) -> ReferenceReader:
        s = self._settings
        reading = ManifestReading(pool, timeout_seconds=s.prefix_timeout_seconds, check=watch.check)
        return ReferenceReader(self.catalog, reading, references_max=s.references_max, check=watch.check)

    # ---- listing -----------------------------------------------------------------------------------------------------

    def known(self) -> Known:
        known = Known()
        for name in self.catalog.table_names():
            try:
                table = self.catalog.load(name)
                known.tables[name] = folders_of(table)
                known.expected += _contents_said(table)
            except (TableUnfit, StorageError, UsageError):
                continue  # It is said when the references are read; where it lies may still be known below.
        rows = read_rows(self.config)
        if rows is None:
            known.left_alone = [key(location) for location in self.catalog.view_locations()]
        else:
            for row in rows:
                if row.metadata_location and (row.is_view or not row.own or row.name not in known.tables):
                    known.left_alone.append(os.path.dirname(os.path.dirname(key(row.metadata_location))))
        return known

    def _list(self, known: Known, pool: Pool, watch: Watch) -> Listing:
        if self.inventory_file is not None:
            return read_inventory(self.inventory_file, self.warehouse)
        plan = self.plan_listing(known, pool, watch)
        seconds = self._settings.prefix_timeout_seconds
        if self.warehouse.startswith("s3://"):
            listing = list_bucket(Bucket.of(self.config), plan.roots, timeout_seconds=seconds, check=watch.check)
        else:
            listing = list_local(plan.roots, timeout_seconds=seconds, pool=pool, check=watch.check)
        listing.folders |= plan.beside.folders
        listing.links += plan.beside.links
        listing.failures += plan.beside.failures
        return listing

    def plan_listing(self, known: Known, pool: Pool, watch: Watch) -> ListingPlan:
        """Where to list: the folders of tables, those that nobody owns, and the spool."""
        folders = [folder for of in known.tables.values() for folder in of]
        levels: dict[str, Listing] = {}
        found = self._discover([*folders, *known.left_alone], levels, pool, watch)
        aliases = same_folders(found.unknown, [*folders, *known.left_alone])
        unknown = [folder for folder in found.unknown if folder not in aliases]
        roots = outermost([*folders, *unknown, f"{self.warehouse}/{SPOOL_FOLDER}"])
        below, beside = Roots(roots), Listing(())
        for level in levels.values():
            beside.folders |= {path: folder for path, folder in level.folders.items() if below.of(path) is None}
            beside.links += level.links
            beside.failures += level.failures
        for folder, other in aliases.items():
            beside.fail(folder, f"it is another name of {other}")
        if found.is_cut:
            most = self._settings.unknown_roots_max
            beside.fail(f"{self.warehouse}/*", f"there are more than {most:,} folders that no table owns")
        return ListingPlan(roots, beside)

    def _check_expected(self, known: Known) -> None:
        """Before anything is listed: a lake with so many references has as many files."""
        if known.expected > self._settings.references_max:
            raise references_too_many(known.expected)

    def _discover(self, known: Sequence[str], levels: dict[str, Listing], pool: Pool, watch: Watch) -> Discovery:
        seconds = self._settings.prefix_timeout_seconds
        bucket = Bucket.of(self.config) if self.warehouse.startswith("s3://") else None

        def children(folder: str) -> tuple[list[str], str | None]:
            if bucket is not None:
                level, names = list_level(bucket, folder, timeout_seconds=seconds, check=watch.check)
            else:
                level, names = list_local_level(folder, pool, timeout_seconds=seconds, check=watch.check)
            levels[folder] = level
            return names, level.failures[0].why if level.failures else None

        def held(folders: Sequence[str]) -> Sequence[str]:
            if bucket is not None:
                return folders  # A bucket has no empty ones.
            return holding(folders, pool, timeout_seconds=seconds, check=watch.check)

        roots_max, today = self._settings.unknown_roots_max, int(time.time() // 86_400)
        return discover(self.warehouse, known, children, roots_max=roots_max, holding=held, turn=today)


@contextmanager
def garbage_left_alone() -> Iterator[None]:
    """A million names are held, and none of them is garbage: looking through them for some, again and again, takes a
    quarter of the time. What the run holds is bounded by `references_max`."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _contents_said(table: Table) -> int:
    """As the summary of its newest snapshot has it; 0 where it does not say."""
    current = table.current_snapshot()
    said = {} if current is None or current.summary is None else current.summary.additional_properties
    counts = [said.get(name, "0") for name in ("total-data-files", "total-delete-files")]
    return sum(int(count) for count in counts if count.isdecimal())
