"""One look at everything, in this process and without a JVM: storage first, references after, then both compared.

The order is what makes it safe. A file that was listed and is referenced by the time the tables are read is live; one
that is written after the listing is not in it. What the listing cannot know, a file that came after it, is looked for
before it is called missing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from strandline.config import LakeConfig
from strandline.errors import StorageError, TableUnfit, UsageError
from strandline.reconcile.compared import Bounds, Look, Ways, compared
from strandline.reconcile.discovery import Discovery, discover
from strandline.reconcile.entries import Entry, describe
from strandline.reconcile.inventory import list_local, list_local_level, same_folders
from strandline.reconcile.inventory_file import read_inventory
from strandline.reconcile.listing import Listing
from strandline.reconcile.manifest_files import ManifestReading
from strandline.reconcile.model import Context, Phase, Survey, Watch
from strandline.reconcile.object_inventory import Bucket, list_bucket, list_level
from strandline.reconcile.paths import SPOOL_FOLDER, canonical, key
from strandline.reconcile.pool import Pool
from strandline.reconcile.references import LakeReferences, ReferenceReader, TableReferences, folders_of
from strandline.tables.catalog_rows import read_rows
from strandline.tables.light import LightCatalog


@dataclass(slots=True)
class _Known:
    """What belongs to somebody, before storage is listed."""

    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Keys of each table's folders."""
    left_alone: list[str] = field(default_factory=list)
    """Keys of folders of views, and of tables that cannot be opened."""


class LakeSurveyor:
    def __init__(
        self, config: LakeConfig, catalog: LightCatalog, look: Look, *, inventory_file: Path | None = None
    ) -> None:
        self._config = config
        self._settings = config.settings.reconcile
        self._catalog = catalog
        self._look = look
        self._inventory_file = inventory_file
        self._warehouse = canonical(config.warehouse_url)

    def survey(self, context: Context, watch: Watch) -> Survey:
        with Pool() as pool:
            watch.phase(Phase.LIST)
            known = self._known()
            listing = self._list(known, pool, watch)
            watch.phase(Phase.REFERENCES)
            references = self._reader(pool, watch).read(links=listing.links)
        watch.phase(Phase.COMPARE)
        ways = Ways(self._look, self._describe, watch.check)
        bounds = Bounds(self._settings.references_shrink_max, self._settings.recheck_concurrency)
        return compared(self._warehouse, listing, references, context, ways, bounds)

    def references(self, known: LakeReferences | None, watch: Watch) -> LakeReferences:
        """As they are now."""
        with Pool() as pool:
            return self._reader(pool, watch).read(known)

    def _describe(self, references: TableReferences, wanted: Set[str]) -> dict[str, Entry]:
        return describe(self._catalog.load(references.head.name), references, wanted)

    def _reader(self, pool: Pool, watch: Watch) -> ReferenceReader:
        s = self._settings
        reading = ManifestReading(pool, timeout_seconds=s.prefix_timeout_seconds, check=watch.check)
        return ReferenceReader(self._catalog, reading, references_max=s.references_max, check=watch.check)

    # ---- listing -----------------------------------------------------------------------------------------------------

    def _known(self) -> _Known:
        known = _Known()
        for name in self._catalog.table_names():
            try:
                known.tables[name] = folders_of(self._catalog.load(name))
            except (TableUnfit, StorageError, UsageError):
                continue  # It is said when the references are read; where it lies may still be known below.
        rows = read_rows(self._config)
        if rows is None:
            known.left_alone = [key(location) for location in self._catalog.view_locations()]
        else:
            for row in rows:
                if row.metadata_location and (row.is_view or not row.own or row.name not in known.tables):
                    known.left_alone.append(os.path.dirname(os.path.dirname(key(row.metadata_location))))
        return known

    def _list(self, known: _Known, pool: Pool, watch: Watch) -> Listing:
        if self._inventory_file is not None:
            return read_inventory(self._inventory_file, self._warehouse)
        folders = [folder for of in known.tables.values() for folder in of]
        levels: dict[str, Listing] = {}
        found = self._discover([*folders, *known.left_alone], levels, pool)
        aliases = same_folders(found.unknown, [*folders, *known.left_alone])
        unknown = [folder for folder in found.unknown if folder not in aliases]
        roots = [*folders, *unknown, f"{self._warehouse}/{SPOOL_FOLDER}"]
        seconds = self._settings.prefix_timeout_seconds
        if self._warehouse.startswith("s3://"):
            listing = list_bucket(Bucket.of(self._config), roots, timeout_seconds=seconds, check=watch.check)
        else:
            listing = list_local(roots, timeout_seconds=seconds, pool=pool, check=watch.check)
        for level in levels.values():
            listing.folders |= {path: folder for path, folder in level.folders.items() if path not in listing.folders}
            listing.links += level.links
            listing.failures += level.failures
        for folder, other in aliases.items():
            listing.fail(folder, f"it is another name of {other}")
        if found.is_cut:
            most = self._settings.unknown_roots_max
            listing.fail(f"{self._warehouse}/*", f"there are more than {most:,} folders that no table owns")
        return listing

    def _discover(self, known: Sequence[str], levels: dict[str, Listing], pool: Pool) -> Discovery:
        seconds = self._settings.prefix_timeout_seconds
        bucket = Bucket.of(self._config) if self._warehouse.startswith("s3://") else None

        def children(folder: str) -> tuple[list[str], str | None]:
            if bucket is not None:
                level, names = list_level(bucket, folder)
            else:
                level, names = list_local_level(folder, pool, timeout_seconds=seconds)
            levels[folder] = level
            return names, level.failures[0].why if level.failures else None

        return discover(self._warehouse, known, children, roots_max=self._settings.unknown_roots_max)
