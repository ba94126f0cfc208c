"""The newest metadata of tables. A metadata file never changes, so a process reads one again only if the catalog names
another."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from enum import Enum
from pathlib import Path

from strandline.core.errors import StorageError, StrandlineError
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import Dataset
from strandline.iceberg.metadata.identifier import parse_identifier
from strandline.iceberg.metadata.lineage import Memory
from strandline.iceberg.metadata.metadata_peek import (
    TableGlance,
    glance_at,
    is_glanceable,
    local_path,
    read_glance,
    read_locations,
)
from strandline.read import rollback

CATALOG_SECONDS_MAX = 5.0  # `status` answers, also while the catalog does not
_SKIPPED_SECONDS = 15.0  # for so long, `status` does not ask a catalog that hung


class NoGlance(Enum):
    GONE = "the catalog has no such table"
    ELSEWHERE = "the catalog has it, and its metadata is not a local file: nothing is known of it"


Glance = TableGlance | StrandlineError | NoGlance
GlancesByFile = Mapping[str, TableGlance]  # by metadata file
GlancesByDataset = Mapping[str, Glance]  # by dataset


class TableGlances:
    """Caches the metadata of the tables of the last call. Thread-safe."""

    def __init__(self, config: LakeConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._by_location: dict[str, TableGlance] = {}
        self._problems: dict[str, tuple[Memory, str | None]] = {}
        self._silent: tuple[float, StrandlineError] | None = None  # when the catalog hung, and what that raised

    def read(self, names: Sequence[str]) -> GlancesByDataset:
        """An error is of one table; one of the whole catalog is that of every table."""
        with self._lock:
            known = self._by_location
        read = self._local if is_glanceable(self._config) else self._remote
        try:
            found = dict(read(names, known))
        except StrandlineError as e:
            return dict.fromkeys(names, e)
        with self._lock:
            self._by_location = {g.metadata_location: g for g in found.values() if isinstance(g, TableGlance)}
            self._problems = {at: p for at, p in self._problems.items() if at in self._by_location}
        return found

    def _local(self, names: Sequence[str], known: GlancesByFile) -> Iterator[tuple[str, Glance]]:
        if names and not (file := self._config.path(self._config.settings.catalog.path)).is_file():
            raise StorageError(f"there is no catalog at {file}", hint="Restore the file.")
        locations = read_locations(self._config)
        for name in names:
            if (location := locations.get(parse_identifier(name))) is None:
                yield name, NoGlance.GONE
            elif (same := known.get(location)) is not None:
                yield name, same
            elif (path := local_path(location)) is None:
                yield name, NoGlance.ELSEWHERE
            else:
                yield name, self._read_file(name, location, path)

    def _read_file(self, name: str, location: str, path: Path) -> Glance:
        try:
            try:
                return glance_at(name, location, path)
            except FileNotFoundError:  # the catalog may name a newer file by now, or none
                if (newer := read_glance(self._config, name)) is not None:
                    return newer
                is_there = parse_identifier(name) in read_locations(self._config)
                return NoGlance.ELSEWHERE if is_there else NoGlance.GONE
        except StrandlineError as e:
            return e

    def _remote(self, names: Sequence[str], known: GlancesByFile) -> Iterator[tuple[str, Glance]]:
        """Slower: the catalog or the metadata is remote, so PyIceberg must be loaded."""
        if not names:
            return
        from strandline.iceberg.pyiceberg.catalog import open_catalog

        if (silent := self._silent) is not None:
            if time.monotonic() - silent[0] < _SKIPPED_SECONDS:
                raise silent[1].with_traceback(None)
            self._silent = None
        with self._note_silence():
            opened = open_catalog(self._config, answer_seconds_max=CATALOG_SECONDS_MAX)
        with closing(opened) as catalog:
            for name in names:
                if self._silent is not None:
                    yield name, self._silent[1]
                    continue
                try:
                    with self._note_silence():
                        found = catalog.glance(name, known) or NoGlance.GONE
                    yield name, found
                except StrandlineError as e:
                    yield name, e

    @contextmanager
    def _note_silence(self) -> Iterator[None]:
        """Notes the error of a catalog that did not answer in time."""
        began = time.monotonic()
        try:
            yield
        except StrandlineError as e:
            if time.monotonic() - began >= CATALOG_SECONDS_MAX:
                self._silent = time.monotonic(), e
            raise

    def rollback_problem(self, dataset: Dataset, glance: TableGlance, memory: Memory) -> str | None:
        """As `rollback.problem`. It may read many earlier metadata files, so the answer is kept, too."""
        with self._lock:
            known = self._problems.get(glance.metadata_location)
        if known is not None and known[0] == memory:
            return known[1]
        found = rollback.problem(dataset, glance.view, memory)
        with self._lock:
            self._problems[glance.metadata_location] = memory, found
        return found
