"""Turns a listing and references into a survey: checks, describes and judges every difference.

Callers pass in the functions that check files and describe entries. The decisions are those of `diff.py`, `guard.py`
and `judge.py`, which are pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain

from strandline.core.errors import StorageError, StrandlineError
from strandline.core.wording import plural
from strandline.reconcile.compare import guard
from strandline.reconcile.compare.diff import Difference, TableKeys, Unreferenced, compare
from strandline.reconcile.compare.findings import Gather, Judged, gathered
from strandline.reconcile.compare.judge import Judge, RunPlaces, missing_finding, shared_keys
from strandline.reconcile.compare.places import Places
from strandline.reconcile.compare.vanished import VanishedTables, folders_beside, folders_named_in
from strandline.reconcile.model import (
    Content,
    Finding,
    FindingKind,
    LedgerContext,
    PrefixFailure,
    Protection,
    Stat,
    Survey,
    TableFacts,
)
from strandline.reconcile.paths import Roots, key
from strandline.reconcile.references.collect import LakeReferences, TableReferences
from strandline.reconcile.references.missing_entries import Entry
from strandline.reconcile.references.real_paths import RealPaths
from strandline.reconcile.storage.listing import Listing

LOOKED_FOR_MAX = 10_000  # references of each table, outside everything that was listed, that are checked one by one
_LOOKS_AT_ONCE = 4_096
NO_PLACES = Places()

Look = Callable[[str], Stat | None]


@dataclass(frozen=True, slots=True)
class Ways:
    look: Look  # raises `StorageError` if the answer is unknown
    describe: Callable[[TableReferences, Set[str]], Mapping[str, Entry]]
    check: Callable[[], None]  # raises to abort
    # the keys of the folders that a metadata file says its table writes to; raises `StrandlineError`
    folders_in: Callable[[str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class CompareBounds:
    shrink_max: float
    looks_at_once: int


@dataclass(frozen=True, slots=True)
class Sought:
    """Files that a table references and storage does not list: all of them, or a part. Of `elsewhere`, references
    outside everything that was listed, a part has all or none, or only the first if there are too many."""

    table: TableReferences
    missing: Collection[str]
    elsewhere: Sequence[str]
    elsewhere_count: int
    shared: Set[str]  # those that another table references, too


def compared(
    warehouse: str,
    listing: Listing,
    references: LakeReferences,
    ledger_context: LedgerContext,
    ways: Ways,
    bounds: CompareBounds,
    places: Places = NO_PLACES,
) -> Survey:
    tables = {
        name: TableKeys(t.folders, t.keys, key(t.head.metadata_location).rpartition("/")[0])
        for name, t in references.by_name.items()
    }
    difference = compare(listing, tables, references.also)
    sought = _sought(references, difference)
    return surveyed(warehouse, listing.failures, difference, sought, references, ledger_context, ways, bounds, places)


def surveyed(
    warehouse: str,
    listing_failures: Sequence[PrefixFailure],
    difference: Difference,
    sought: Iterable[Sought],
    references: LakeReferences,
    ledger_context: LedgerContext,
    ways: Ways,
    bounds: CompareBounds,
    places: Places = NO_PLACES,
    gather: Gather = gathered,
) -> Survey:
    """Checks and judges all differences. `sought` is in the order of tables."""
    stopped = stops(references, difference, ledger_context, bounds.shrink_max, places)
    vanished = _vanished(difference, ledger_context, ways, bounds, places)
    ground = RunPlaces(
        warehouse.rstrip("/"),
        {name: table.folders[0] for name, table in references.by_name.items()},
        stopped,
        Roots(key(failure.prefix) for failure in listing_failures),
        bool(references.unread) or places.unplaced is not None or bool(vanished.failures),
        Roots(vanished.folders),
        {name: key(t.head.metadata_location) for name, t in references.by_name.items() if name in ledger_context.seals},
        places.passing_over(),
    )
    failures = [*listing_failures, *vanished.failures]
    unshown = Unshown(references, ledger_context, places)

    def facts(missing: Mapping[str | None, int], orphans: Mapping[str | None, int]) -> list[TableFacts]:
        return _facts(references, difference, missing, orphans, unshown.stops(stopped), ledger_context)

    def orphans() -> Iterator[Judged]:
        # Judged after the missing files: what they show stops tables and prefixes, too.
        failed = Roots(key(failure.prefix) for failure in failures)
        lacking = dict.fromkeys(unshown.lacking, Protection.ENTRIES_MISSING)
        by_then = replace(ground, stopped=lacking | unshown.stops(stopped), failed=failed)
        yield from _orphans(difference.unreferenced, by_then, ledger_context, ways)

    drift = gather(
        chain(
            _pointers_away(places, ways, failures),
            _missing(sought, difference, ground, ledger_context, ways, bounds, failures, unshown),
        ),
        orphans(),
        facts,
        sum(difference.listed.values()),
    )
    return Survey(sorted(failures, key=lambda failure: failure.prefix), references, drift)


def _vanished(
    difference: Difference, ledger_context: LedgerContext, ways: Ways, bounds: CompareBounds, places: Places
) -> VanishedTables:
    """Only `delete_foreign` lets a run act where no table is, so only then the metadata files are read."""
    if not ledger_context.delete_foreign:
        return folders_beside(difference.vanished)
    is_strange = Roots(folder for of in places.strangers.values() for folder in of).of
    metadata = {path for path in difference.vanished if is_strange(key(path)) is None}
    return folders_named_in(metadata, ways.folders_in, ways.check, reads_at_once=bounds.looks_at_once)


class Unshown:
    """Tables with old files in storage that the listing does not show. Storage shows them under other names, then: if
    it ignores case, or has two forms of a letter, a listed file cannot be matched to a reference. Also tables for which
    that could not be checked."""

    def __init__(self, references: LakeReferences, ledger_context: LedgerContext, places: Places) -> None:
        folders = [folder for table in references.by_name.values() for folder in table.folders]
        self._real = RealPaths(folders, references.links)
        began_ns = ledger_context.now_ns - ledger_context.clock_skew_seconds * 1_000_000_000
        self._as_of_ns = began_ns if places.as_of_ns is None else places.as_of_ns
        self._tables: set[str] = set()
        self._untold: set[str] = set()
        self.lacking: set[str] = set()  # tables that reference a missing file

    def cannot_look(self, table: str) -> None:
        self._untold.add(table)

    def look_at(self, table: str, unlisted: Mapping[str, Stat]) -> None:
        """`unlisted`: existing files that should have been listed, by key. Files behind a link are never listed."""
        old = [k for k, stat in unlisted.items() if stat.modified_ns and stat.modified_ns <= self._as_of_ns]
        if any(not self._real.also([[k]]) for k in old):
            self._tables.add(table)

    def stops(self, before: Mapping[str, Protection]) -> dict[str, Protection]:
        spelling = dict.fromkeys(self._tables, Protection.SPELLING)
        return {**spelling, **dict.fromkeys(self._untold, Protection.PREFIX_FAILED), **before}


def stops(
    references: LakeReferences,
    difference: Difference,
    ledger_context: LedgerContext,
    shrink_max: float,
    places: Places = NO_PLACES,
) -> dict[str, Protection]:
    """Tables of which this run touches nothing."""
    overlapping = places.overlapping({name: table.folders for name, table in references.by_name.items()})
    found: dict[str, Protection] = {}
    for name, table in references.by_name.items():
        listed = difference.listed.get(name, 0)
        reason = guard.first(
            (
                Protection.TABLE_UNREAD if name in references.unread else None,
                Protection.OVERLAP if name in overlapping else None,
                guard.by_identity(
                    table.head.uuid, None if name not in ledger_context.seals else ledger_context.seals[name].uuid
                ),
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
                    published=() if name not in ledger_context.seals else ledger_context.seals[name].published,
                    skew_seconds=ledger_context.clock_skew_seconds,
                ),
                guard.by_absence(references=table.count, listed=listed),
            )
        )
        if reason is not None:
            found[name] = reason
    return found


def _orphans(
    files: Iterable[Unreferenced], ground: RunPlaces, ledger_context: LedgerContext, ways: Ways
) -> Iterator[Judged]:
    judge = Judge(ground, ledger_context)
    for n, file in enumerate(files):
        if n % 1_000 == 0:
            ways.check()
        if judge.is_own(file):
            continue
        if file.size is not None:
            stat: Stat | None = Stat(file.size, file.modified_ns or None)
        else:
            try:
                stat = ways.look(file.path)
            except StorageError:
                stat = None  # It exists, but cannot be checked: without a time it is protected.
            else:
                if stat is None:
                    continue  # Deleted since it was listed.
        yield judge.judged(file, stat)


def _sought(references: LakeReferences, difference: Difference) -> Iterator[Sought]:
    everywhere = {
        name: [*difference.missing.get(name, ()), *difference.elsewhere.get(name, ())] for name in references.by_name
    }
    shared = shared_keys({name: table.keys for name, table in references.by_name.items()}, everywhere)
    for name in sorted(references.by_name):
        missing, elsewhere = difference.missing.get(name, ()), difference.elsewhere.get(name, ())
        yield Sought(references.by_name[name], missing, elsewhere, len(elsewhere), shared)


def _missing(
    sought: Iterable[Sought],
    difference: Difference,
    ground: RunPlaces,
    ledger_context: LedgerContext,
    ways: Ways,
    bounds: CompareBounds,
    failures: list[PrefixFailure],
    unshown: Unshown,
) -> Iterator[Finding]:
    with ThreadPoolExecutor(bounds.looks_at_once, thread_name_prefix="look") as threads:
        for piece in sought:
            table, name, elsewhere = piece.table, piece.table.head.name, piece.elsewhere
            wanted = set(piece.missing)
            if piece.elsewhere_count <= LOOKED_FOR_MAX:
                wanted.update(elsewhere)
            else:
                why = f"{plural(piece.elsewhere_count, 'reference')} of {name} lie where nothing was listed"
                failures.append(PrefixFailure(elsewhere[0].rpartition("/")[0], why))
            wanted.update(key(path) for path in table.gone)
            if not wanted:
                continue
            away = not difference.listed.get(name)
            try:
                entries = _entries(table, wanted, ways, whole=not away)
            except StrandlineError as e:
                failures.append(PrefixFailure(table.head.location, e.message))
                unshown.cannot_look(name)
                continue
            if wanted - entries.keys():
                # An entry was read a moment ago and cannot be described now: nobody can say what is missing.
                unshown.cannot_look(name)
            told = len(failures)
            there = {} if away else _there(entries, ways, threads.map, failures)
            gone = [k for k in entries if k not in there]
            if any(ledger_context.own_origin or entries[k].content is not Content.METADATA for k in gone):
                unshown.lacking.add(name)
            seen: Set[str] = there.keys()
            if len(failures) > told:
                seen = frozenset()
                unshown.cannot_look(name)
            covered = set(piece.missing)
            unshown.look_at(name, {k: stat for k, stat in there.items() if stat is not None and k in covered})
            absent = _absent(table, set(gone), seen, elsewhere, difference.contents_listed.get(name, 0))
            for k in gone:
                yield missing_finding(
                    name, entries[k], ground, ledger_context, shared=k in piece.shared, stopped=absent.get(k)
                )


def _pointers_away(places: Places, ways: Ways, failures: list[PrefixFailure]) -> Iterator[Finding]:
    """Metadata files that the catalog names and that do not exist. Their tables cannot be opened, therefore."""
    for name, path in places.pointers.items():
        try:
            is_there = ways.look(path) is not None
        except StorageError as e:
            failures.append(PrefixFailure(path, e.message))
            continue
        if not is_there:
            yield Finding(FindingKind.MISSING, path, name, None, None, Protection.TABLE_UNREAD, Content.METADATA)


def _absent(
    table: TableReferences, gone: Set[str], seen: Set[str], elsewhere: Sequence[str], contents_listed: int
) -> dict[str, Protection]:
    """Files that are gone together with everything around them. Outside everything that was listed, the files that were
    checked and found count as listed."""
    apart = {k for k in elsewhere if k not in table.files}
    here = gone - apart - table.files.keys()
    found: dict[str, Protection] = {}
    for some, there in ((here, contents_listed), (apart & gone, len(apart & seen))):
        reason = guard.by_absent_contents(missing=len(some), there=there)
        if reason is not None:
            found |= dict.fromkeys(some, reason)
    return found


def _entries(table: TableReferences, wanted: Set[str], ways: Ways, *, whole: bool) -> dict[str, Entry]:
    entries = dict(ways.describe(table, wanted - table.files.keys())) if whole else {}
    for its_key in wanted & table.files.keys():
        entries[its_key] = Entry(table.files[its_key].path, table.files[its_key].content)
    if not whole:
        contents = {k: content for manifest in table.manifests for k, content in manifest.others.items()}
        for its_key in wanted - entries.keys():
            entries[its_key] = Entry(its_key, contents.get(its_key, Content.DATA))
    return dict(sorted(entries.items()))


def _there(
    entries: Mapping[str, Entry],
    ways: Ways,
    each: Callable[..., Iterable[Stat | StorageError | None]],
    failures: list[PrefixFailure],
) -> dict[str, Stat | None]:
    """Files that exist after all: the tables were read after the listing, and may name newer files. None: unknown."""

    def look(its_key: str) -> Stat | StorageError | None:
        try:
            path = entries[its_key].path
            return ways.look(path) or (None if path == its_key else ways.look(its_key))
        except StorageError as e:
            return e

    there: dict[str, Stat | None] = {}
    names = list(entries)
    for at in range(0, len(names), _LOOKS_AT_ONCE):
        ways.check()
        part = names[at : at + _LOOKS_AT_ONCE]
        for its_key, answer in zip(part, each(look, part), strict=True):
            if isinstance(answer, StorageError):
                failures.append(PrefixFailure(entries[its_key].path, answer.message))
                there[its_key] = None
            elif answer is not None:
                there[its_key] = answer
    return there


def _facts(
    references: LakeReferences,
    difference: Difference,
    missing: Mapping[str | None, int],
    orphans: Mapping[str | None, int],
    stopped: Mapping[str, Protection],
    ledger_context: LedgerContext,
) -> list[TableFacts]:
    return [
        TableFacts(
            head,
            difference.listed.get(head.name, 0),
            references.by_name[head.name].count,
            references.by_name[head.name].content_count,
            missing.get(head.name, 0),
            orphans.get(head.name, 0),
            ledger_context.contents_before.get(head.uuid),
            stopped.get(head.name),
            references.unread.get(head.name),
        )
        for head in references.tables
    ]
