"""Turns a listing and references into a survey: checks, describes and judges every difference.

`FileFacts` checks files and describes entries. The decisions are in `diff.py`, `guard.py` and `judge.py`, which are
pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol

from strandline.core.errors import StorageError, StrandlineError
from strandline.core.text.wording import plural
from strandline.reconcile.compare import guard
from strandline.reconcile.compare.diff import Difference, TableKeys, compare
from strandline.reconcile.compare.findings import Drift, Judged, Store, gathered, in_memory
from strandline.reconcile.compare.judge import Judge, RunPlaces, missing_finding, shared_keys
from strandline.reconcile.compare.places import Places
from strandline.reconcile.compare.vanished import VanishedTables, folders_named_in, table_folder
from strandline.reconcile.model import (
    FileContent,
    Finding,
    FindingKind,
    LedgerContext,
    PrefixFailure,
    Protection,
    Stat,
    TableFacts,
    Watch,
)
from strandline.reconcile.paths import Roots, key
from strandline.reconcile.references.collect import LakeReferences, TableReferences
from strandline.reconcile.references.missing_entries import Entry
from strandline.reconcile.references.real_paths import RealPaths
from strandline.reconcile.storage.listing import Listing

CHECKED_MAX = 10_000  # references of each table, outside everything that was listed, that are checked one by one
_CHECKS_AT_ONCE = 4_096
NO_PLACES = Places()

FindFile = Callable[[str], Stat | None]


class FileFacts(Protocol):
    """What storage and tables say of single files. `survey.LakeSurveyor` implements it."""

    def find_file(self, path: str) -> Stat | None:
        """None if the file does not exist. Raises StorageError if that is unknown."""

    def describe(self, references: TableReferences, wanted: Set[str]) -> Mapping[str, Entry]:
        """The table's entries of these files."""

    def folders_in(self, metadata_file: str) -> Sequence[str]:
        """The keys of the folders that it says its table writes to. Raises StrandlineError."""


@dataclass(frozen=True, slots=True)
class CompareContext:
    files: FileFacts
    watch: Watch
    shrink_max: float
    checks_at_once: int


@dataclass(frozen=True, slots=True)
class UnlistedFiles:
    """Files that a table references and storage does not list: all of them, or a part. Of `elsewhere`, references
    outside everything that was listed, a part has all or none, or only the first if there are too many."""

    table: TableReferences
    missing: Collection[str]
    elsewhere: Sequence[str]
    elsewhere_count: int
    shared: Set[str]  # those that another table references, too


@dataclass(frozen=True, slots=True)
class Survey:
    """Storage and tables, read in this order, and compared."""

    failures: Sequence[PrefixFailure]
    references: LakeReferences
    drift: Drift


def compared(
    warehouse: str,
    listing: Listing,
    references: LakeReferences,
    ledger_context: LedgerContext,
    context: CompareContext,
    places: Places = NO_PLACES,
) -> Survey:
    tables = {name: TableKeys(t.folders, t.keys, t.metadata_folder) for name, t in references.by_name.items()}
    difference = compare(listing, tables, references.also)
    sought = _unlisted_files(references, difference)
    comparison = DriftComparison(warehouse, listing.failures, difference, references, ledger_context, context, places)
    return comparison.survey(sought)


def _unlisted_files(references: LakeReferences, difference: Difference) -> Iterator[UnlistedFiles]:
    everywhere = {
        name: [*difference.missing.get(name, ()), *difference.elsewhere.get(name, ())] for name in references.by_name
    }
    shared = shared_keys({name: table.keys for name, table in references.by_name.items()}, everywhere)
    for name in sorted(references.by_name):
        missing, elsewhere = difference.missing.get(name, ()), difference.elsewhere.get(name, ())
        yield UnlistedFiles(references.by_name[name], missing, elsewhere, len(elsewhere), shared)


@dataclass
class DriftComparison:
    """Checks and judges all differences."""

    warehouse: str
    listing_failures: Sequence[PrefixFailure]
    _difference: Difference
    _references: LakeReferences
    _ledger_context: LedgerContext
    _context: CompareContext
    _places: Places

    def __post_init__(self) -> None:
        references, seals, places = self._references, self._ledger_context.seals, self._places
        self._stopped = stops(references, self._difference, self._ledger_context, self._context.shrink_max, places)
        self._unshown = Unshown(references, self._ledger_context, places)
        vanished = self._vanished()
        tables = references.by_name.items()
        self._run_places = RunPlaces(
            self.warehouse.rstrip("/"),
            {name: table.folders[0] for name, table in tables},
            self._stopped,
            Roots(key(failure.prefix) for failure in self.listing_failures),
            bool(references.unread) or places.unplaced is not None or bool(vanished.failures),
            Roots(vanished.folders),
            {name: key(t.head.metadata_location) for name, t in tables if name in seals},
            places.not_reported(),
        )
        self._failures = [*self.listing_failures, *vanished.failures]

    def survey(self, sought: Iterable[UnlistedFiles], store: Store = in_memory) -> Survey:
        """`sought` is in the order of tables."""
        missing = chain(self._pointers_away(), self._missing(sought))
        listed = sum(self._difference.listed.values())
        drift = gathered(missing, self._orphans(), self._facts, listed, store)
        return Survey(sorted(self._failures, key=lambda failure: failure.prefix), self._references, drift)

    def _vanished(self) -> VanishedTables:
        """Only `delete_foreign` lets a run act where no table is, so only then the metadata files are read."""
        metadata = self._difference.vanished
        if not self._ledger_context.delete_foreign:
            return VanishedTables({table_folder(path) for path in metadata})
        is_strange = Roots(folder for of in self._places.other_tables.values() for folder in of).of
        metadata = {path for path in metadata if is_strange(key(path)) is None}
        context = self._context
        return folders_named_in(
            metadata, context.files.folders_in, context.watch.check, reads_at_once=context.checks_at_once
        )

    def _facts(self) -> list[TableFacts]:
        tables, stopped = self._references.by_name, self._unshown.stops(self._stopped)
        return [
            TableFacts(head, tables[head.name].content_count, stopped.get(head.name))
            for head in self._references.tables
        ]

    def _orphans(self) -> Iterator[Judged]:
        # Judged after the missing files: what they show stops tables and prefixes, too.
        lacking = dict.fromkeys(self._unshown.lacking, Protection.ENTRIES_MISSING)
        failed = Roots(key(failure.prefix) for failure in self._failures)
        stopped = lacking | self._unshown.stops(self._stopped)
        judge = Judge(replace(self._run_places, stopped=stopped, failed=failed), self._ledger_context)
        for n, file in enumerate(self._difference.unreferenced):
            if n % 1_000 == 0:
                self._context.watch.check()
            if judge.is_own(file):
                continue
            if file.size is not None:
                stat: Stat | None = Stat(file.size, file.modified_ns or None)
            else:
                try:
                    stat = self._context.files.find_file(file.path)
                except StorageError:
                    stat = None  # It exists, but cannot be checked: without a time it is protected.
                else:
                    if stat is None:
                        continue  # Deleted since it was listed.
            yield judge.judged(file, stat)

    def _pointers_away(self) -> Iterator[Finding]:
        """Metadata files that the catalog names and that do not exist. Their tables cannot be opened, therefore."""
        for name, path in self._places.pointers.items():
            try:
                exists = self._context.files.find_file(path) is not None
            except StorageError as e:
                self._failures.append(PrefixFailure(path, e.message))
                continue
            if not exists:
                yield Finding(
                    FindingKind.MISSING, path, name, None, None, Protection.TABLE_UNREAD, FileContent.METADATA
                )

    def _missing(self, sought: Iterable[UnlistedFiles]) -> Iterator[Finding]:
        with ThreadPoolExecutor(self._context.checks_at_once, thread_name_prefix="find") as threads:
            for part in sought:
                yield from self._missing_of(part, threads)

    def _missing_of(self, sought: UnlistedFiles, threads: ThreadPoolExecutor) -> Iterator[Finding]:
        table, name, elsewhere = sought.table, sought.table.head.name, sought.elsewhere
        wanted = set(sought.missing)
        if sought.elsewhere_count <= CHECKED_MAX:
            wanted.update(elsewhere)
        else:
            why = f"{plural(sought.elsewhere_count, 'reference')} of {name} lie where nothing was listed"
            self._failures.append(PrefixFailure(elsewhere[0].rpartition("/")[0], why))
        wanted.update(key(path) for path in table.gone)
        if not wanted:
            return
        away = not self._difference.listed.get(name)
        try:
            entries = self._entries(table, wanted, whole=not away)
        except StrandlineError as e:
            self._failures.append(PrefixFailure(table.head.location, e.message))
            self._unshown.cannot_check(name)
            return
        if wanted - entries.keys():
            # An entry was read a moment ago and cannot be described now: nobody can say what is missing.
            self._unshown.cannot_check(name)
        failures_before = len(self._failures)
        existing = {} if away else self._existing(entries, threads)
        gone = [k for k in entries if k not in existing]
        own_origin = self._ledger_context.own_origin
        if any(own_origin or entries[k].content is not FileContent.METADATA for k in gone):
            self._unshown.lacking.add(name)
        seen: Set[str] = existing.keys()
        if len(self._failures) > failures_before:
            seen = frozenset()
            self._unshown.cannot_check(name)
        covered = set(sought.missing)
        self._unshown.check(name, {k: stat for k, stat in existing.items() if stat is not None and k in covered})
        absent = _absent(table, set(gone), seen, elsewhere, self._difference.contents_listed.get(name, 0))
        for k in gone:
            stopped, shared = absent.get(k), k in sought.shared
            yield missing_finding(
                name, entries[k], self._run_places, self._ledger_context, shared=shared, stopped=stopped
            )

    def _entries(self, table: TableReferences, wanted: Set[str], *, whole: bool) -> dict[str, Entry]:
        entries = dict(self._context.files.describe(table, wanted - table.files.keys())) if whole else {}
        for its_key in wanted & table.files.keys():
            entries[its_key] = Entry(table.files[its_key].path, table.files[its_key].content)
        if not whole:
            contents = {k: content for manifest in table.manifests for k, content in manifest.others.items()}
            for its_key in wanted - entries.keys():
                entries[its_key] = Entry(its_key, contents.get(its_key, FileContent.DATA))
        return dict(sorted(entries.items()))

    def _existing(self, entries: Mapping[str, Entry], threads: ThreadPoolExecutor) -> dict[str, Stat | None]:
        """Files that exist after all: tables were read after the listing, and may name newer files. None: unknown."""

        def find(its_key: str) -> Stat | StorageError | None:
            try:
                path = entries[its_key].path
                return self._context.files.find_file(path) or (
                    None if path == its_key else self._context.files.find_file(its_key)
                )
            except StorageError as e:
                return e

        existing: dict[str, Stat | None] = {}
        names = list(entries)
        for at in range(0, len(names), _CHECKS_AT_ONCE):
            self._context.watch.check()
            part = names[at : at + _CHECKS_AT_ONCE]
            for its_key, answer in zip(part, threads.map(find, part), strict=True):
                if isinstance(answer, StorageError):
                    self._failures.append(PrefixFailure(entries[its_key].path, answer.message))
                    existing[its_key] = None
                elif answer is not None:
                    existing[its_key] = answer
        return existing


class Unshown:
    """Tables with old files that the listing lacks, or for which that could not be checked. Storage lists them under
    other names, for example if it ignores case, so they match no reference."""

    def __init__(self, references: LakeReferences, ledger_context: LedgerContext, places: Places) -> None:
        folders = [folder for table in references.by_name.values() for folder in table.folders]
        self._real = RealPaths(folders, references.links)
        began_ns = ledger_context.now_ns - ledger_context.clock_skew_seconds * 1_000_000_000
        self._as_of_ns = began_ns if places.as_of_ns is None else places.as_of_ns
        self._tables: set[str] = set()
        self._unchecked: set[str] = set()
        self.lacking: set[str] = set()  # tables that reference a missing file

    def cannot_check(self, table: str) -> None:
        self._unchecked.add(table)

    def check(self, table: str, unlisted: Mapping[str, Stat]) -> None:
        """`unlisted`: existing files that should have been listed, by key. Files behind a link are never listed."""
        old = [k for k, stat in unlisted.items() if stat.modified_ns and stat.modified_ns <= self._as_of_ns]
        if any(not self._real.also([[k]]) for k in old):
            self._tables.add(table)

    def stops(self, before: Mapping[str, Protection]) -> dict[str, Protection]:
        spelling = dict.fromkeys(self._tables, Protection.SPELLING)
        return {**spelling, **dict.fromkeys(self._unchecked, Protection.PREFIX_FAILED), **before}


def stops(
    references: LakeReferences,
    difference: Difference,
    ledger_context: LedgerContext,
    shrink_max: float,
    places: Places,
) -> dict[str, Protection]:
    """Tables of which this run touches nothing."""
    overlapping = places.overlapping({name: table.folders for name, table in references.by_name.items()})
    found: dict[str, Protection] = {}
    for name, table in references.by_name.items():
        listed, seal = difference.listed.get(name, 0), ledger_context.seals.get(name)
        reason = guard.first(
            (
                Protection.TABLE_UNREAD if name in references.unread else None,
                Protection.OVERLAP if name in overlapping else None,
                guard.by_identity(table.head.uuid, None if seal is None else seal.uuid),
                guard.by_emptiness(references=table.count, contents=table.content_count, listed=listed),
                guard.by_shrinking(
                    contents=table.content_count,
                    before=ledger_context.contents_before.get(table.head.uuid),
                    listed=difference.contents_listed.get(name, 0),
                    shrink_max=shrink_max,
                ),
                guard.by_lineage(
                    table.head.lineage,
                    before=ledger_context.sequences_before.get(table.head.uuid),
                    published=() if seal is None else seal.published,
                    skew_seconds=ledger_context.clock_skew_seconds,
                ),
                guard.by_absence(expected=table.count, found=listed),
            )
        )
        if reason is not None:
            found[name] = reason
    return found


def _absent(
    table: TableReferences, gone: Set[str], seen: Set[str], elsewhere: Sequence[str], contents_listed: int
) -> dict[str, Protection]:
    """Files that are gone together with everything around them. Outside everything that was listed, the files that were
    checked and found count as listed."""
    apart = {k for k in elsewhere if k not in table.files}
    here = gone - apart - table.files.keys()
    found: dict[str, Protection] = {}
    for some, count in ((here, contents_listed), (apart & gone, len(apart & seen))):
        reason = guard.by_absence(expected=len(some), found=count)
        if reason is not None:
            found |= dict.fromkeys(some, reason)
    return found
