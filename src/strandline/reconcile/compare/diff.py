"""Compares storage with references, both ways. Pure: the same input gives the same sorted answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from strandline.reconcile.paths import Room, Roots, checksum_of, is_metadata_file, key, room_of_folder
from strandline.reconcile.storage.listing import ListedFolder, Listing


@dataclass(frozen=True, slots=True)
class TableKeys:
    """One table, as far as comparing needs it."""

    folders: Sequence[str]  # keys of its location, and of other places that it writes to
    keys: Set[str]
    metadata_folder: str = ""  # key of the folder of its newest metadata file, wherever its properties put it


@dataclass(frozen=True, slots=True)
class Unreferenced:
    path: str  # as storage names it
    table: str | None  # the table whose folder it is in
    size: int | None
    # None for both if the listing does not have them; `modified_ns` is 0 if the listing says that it is unknown
    modified_ns: int | None


@dataclass(frozen=True, slots=True)
class Difference:
    unreferenced: Iterable[Unreferenced]  # files that no table references, by path
    # by table: keys that it references, in places that were listed, and that were not among the files
    missing: Mapping[str, Sequence[str]]
    elsewhere: Mapping[str, Sequence[str]]  # by table: keys that it references in places that were not listed
    listed: Mapping[str | None, int]  # how many files are in the folder of each table; None: of no table
    contents_listed: Mapping[str, int]  # those outside the table's metadata folder
    vanished: Set[str] = frozenset()  # metadata files in folders that no table owns, as storage names them


def compare(listing: Listing, tables: Mapping[str, TableKeys], also: Set[str] = frozenset()) -> Difference:
    """`also`: further referenced keys, of no particular table."""
    names = sorted(tables)
    reached: Set[str] = tables[names[0]].keys if len(names) == 1 else set().union(*(tables[n].keys for n in names))
    owners = {folder: name for name in reversed(names) for folder in tables[name].folders}
    roots = Roots(owners)
    met, are_distinct = 0, True
    listed: dict[str | None, int] = {}
    contents: dict[str, int] = {}
    found: list[Unreferenced] = []
    vanished: set[str] = set()
    for path, folder in listing.sorted_folders():
        at = key(path)
        root = roots.of(at)
        owner = None if root is None else owners[root]
        if owner is None:
            vanished.update(f"{path}/{name}" for name in folder.names if is_metadata_file(name))
        is_plain, whole = _keys(path, folder.names)
        # A listing of folders has each name once; a listing by pages may repeat one.
        are_distinct = are_distinct and is_plain and folder.sizes is None
        unreached = {its_key for its_key in whole if its_key not in reached}
        met += len(whole) - len(unreached)
        extra, checksums = _extra(path, folder, whole, unreached, reached, also)
        found += [Unreferenced(p, owner, size, modified) for p, size, modified in extra]
        count = len(folder.names) - checksums
        listed[owner] = listed.get(owner, 0) + count
        if owner is not None and root is not None and not is_metadata(at, root, tables[owner]):
            contents[owner] = contents.get(owner, 0) + count
    found.sort(key=lambda file: file.path)
    # Usually the counts already show that nothing is missing.
    pending = set() if are_distinct and met == len(reached) else _pending(listing, reached)
    missing, elsewhere = _attributed(pending, listing, tables)
    return Difference(found, missing, elsewhere, listed, contents, vanished)


def is_metadata(folder: str, root: str, table: TableKeys) -> bool:
    return folder == table.metadata_folder or room_of_folder(folder, root) is Room.METADATA


def _keys(path: str, names: Sequence[str]) -> tuple[bool, Sequence[str]]:
    """Also whether all names are spelled like their keys."""
    if key(path) == path and "%" not in "".join(names):
        start = f"{path}/"
        return True, [start + name for name in names]
    return False, [key(f"{path}/{name}") for name in names]


def _extra(
    path: str, folder: ListedFolder, whole: Sequence[str], unreached: Set[str], reached: Set[str], also: Set[str]
) -> tuple[list[tuple[str, int | None, int | None]], int]:
    """The unreferenced files of a folder, and how many of all are checksums. A checksum file shares the fate of its
    file; while that exists, it is not reported."""
    unreached = unreached - also if also else unreached
    if not unreached:
        return [], 0
    there = set(folder.names)
    extra: list[tuple[str, int | None, int | None]] = []
    checksums = 0
    for n, (name, its_key) in enumerate(zip(folder.names, whole, strict=True)):
        if its_key not in unreached:
            continue
        summed = checksum_of(name)
        if summed is not None:
            checksums += 1
            of = key(f"{path}/{summed}")
            if summed in there or of in reached or of in also:
                continue
        sizes, times = folder.sizes, folder.modified_ns
        extra.append((f"{path}/{name}", None if sizes is None else sizes[n], None if times is None else times[n]))
    return _once(extra), checksums


def _pending(listing: Listing, reached: Set[str]) -> set[str]:
    """Referenced keys that were not listed."""
    pending = set(reached)
    for path, folder in listing.folders.items():
        pending.difference_update(_keys(path, folder.names)[1])
    return pending


def _once(extra: list[tuple[str, int | None, int | None]]) -> list[tuple[str, int | None, int | None]]:
    """Listings by pages may show a file twice; the later time counts."""
    kept: dict[str, tuple[str, int | None, int | None]] = {}
    for file in extra:
        before = kept.get(file[0])
        if before is None or (file[2] or 0) >= (before[2] or 0):
            kept[file[0]] = file
    return list(kept.values())


def _attributed(
    pending: set[str], listing: Listing, tables: Mapping[str, TableKeys]
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    if not pending:
        return {}, {}
    failed = Roots(key(failure.prefix) for failure in listing.failures)
    covered = Roots(key(root) for root in listing.roots)
    missing: dict[str, list[str]] = {}
    elsewhere: dict[str, list[str]] = {}
    for name in sorted(tables):
        for its_key in sorted(pending & set(tables[name].keys) if len(tables) > 1 else pending):
            if failed.of(its_key) is not None:
                continue  # It is unknown what exists there.
            (missing if covered.of(its_key) is not None else elsewhere).setdefault(name, []).append(its_key)
    return missing, elsewhere
