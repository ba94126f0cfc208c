"""Storage and references laid beside each other, both ways. Pure: the same input gives the same answer, sorted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from strandline.reconcile.paths import Room, Roots, checksum_of, is_metadata_file, key, room_of_folder
from strandline.reconcile.storage.listing import Folder, Listing


@dataclass(frozen=True, slots=True)
class Reach:
    """One table, as far as comparing needs it."""

    folders: Sequence[str]
    """Keys of its location, and of other places that it writes to."""
    keys: Set[str]
    metadata_folder: str = ""
    """Key of the folder that its newest metadata file lies in, wherever its properties put it."""


@dataclass(frozen=True, slots=True)
class Unreferenced:
    path: str
    """As it is called in storage."""
    table: str | None
    """Whose folder it lies in."""
    size: int | None
    modified_ns: int | None
    """None for both where the listing does not tell; `modified_ns` 0 where it tells that it does not know."""


@dataclass(frozen=True, slots=True)
class Difference:
    unreferenced: Iterable[Unreferenced]
    """Files that no table reaches, by path."""
    missing: Mapping[str, Sequence[str]]
    """Keys that a table reaches and that were to be listed and were not; by table."""
    elsewhere: Mapping[str, Sequence[str]]
    """Keys that a table reaches in places that were not listed; by table."""
    listed: Mapping[str | None, int]
    """How many files lie in the folder of each table; None: in no table's."""
    contents_listed: Mapping[str, int]
    """Those of them that do not lie among a table's metadata."""
    vanished: Set[str] = frozenset()
    """Keys of folders that no table owns, and that hold a table's metadata."""


def compare(listing: Listing, tables: Mapping[str, Reach], also: Set[str] = frozenset()) -> Difference:
    """`also` are further keys that are referenced, by no table in particular."""
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
        if owner is None and any(is_metadata_file(name) for name in folder.names):
            vanished.add(table_folder(at))
        is_plain, whole = _keys(path, folder.names)
        # One who lists folders by name sees each name once; pages may repeat one.
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
    # Counting says that nothing is missing, which is how most lakes are.
    pending = set() if are_distinct and met == len(reached) else _pending(listing, reached)
    missing, elsewhere = _attributed(pending, listing, tables)
    return Difference(found, missing, elsewhere, listed, contents, vanished)


def table_folder(folder: str) -> str:
    """Of the key of a folder with metadata files: that of the table that they are of."""
    outer, _, name = folder.rpartition("/")
    return outer if name == Room.METADATA else folder


def is_metadata(folder: str, root: str, table: Reach) -> bool:
    return folder == table.metadata_folder or room_of_folder(folder, root) is Room.METADATA


def _keys(path: str, names: Sequence[str]) -> tuple[bool, Sequence[str]]:
    """Also whether all of them are spelled as their keys are."""
    if key(path) == path and "%" not in "".join(names):
        start = f"{path}/"
        return True, [start + name for name in names]
    return False, [key(f"{path}/{name}") for name in names]


def _extra(
    path: str, folder: Folder, whole: Sequence[str], unreached: Set[str], reached: Set[str], also: Set[str]
) -> tuple[list[tuple[str, int | None, int | None]], int]:
    """The files of a folder that nothing reaches, and how many of all are checksums. Of a checksum, the file that it is
    of decides; while that is there, it goes with it and is not spoken of."""
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
    """What is reached and was not listed."""
    pending = set(reached)
    for path, folder in listing.folders.items():
        pending.difference_update(_keys(path, folder.names)[1])
    return pending


def _once(extra: list[tuple[str, int | None, int | None]]) -> list[tuple[str, int | None, int | None]]:
    """Listings by pages may show a file twice; the later time is the one that counts."""
    kept: dict[str, tuple[str, int | None, int | None]] = {}
    for file in extra:
        before = kept.get(file[0])
        if before is None or (file[2] or 0) >= (before[2] or 0):
            kept[file[0]] = file
    return list(kept.values())


def _attributed(
    pending: set[str], listing: Listing, tables: Mapping[str, Reach]
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
                continue  # What lies there is not known.
            (missing if covered.of(its_key) is not None else elsewhere).setdefault(name, []).append(its_key)
    return missing, elsewhere
