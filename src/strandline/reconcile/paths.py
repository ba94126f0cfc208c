"""The canonical spelling of a path, its key, and its place in a table's layout. Pure.

Two spellings have different uses. `canonical` names a file in storage: it can be opened, moved and deleted. `key`
compares files: everything that *may* be another spelling of one file has the same key, so that a file counts as
unreferenced only if no reference could mean it. Two files that differ only in such spelling protect each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from urllib.parse import unquote

OWN_FOLDER = "_strandline"
SPOOL_FOLDER = "_strandline/spool"

_S3_SCHEMES = frozenset(("s3", "s3a", "s3n"))
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")
_DECODE_ROUNDS_MAX = 16
_CHECKSUM_SUFFIX = ".crc"
_VERSIONED = re.compile(r"(\d{5,18})-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:\.gz)?\.metadata\.json(?:\.gz)?")
_DATA_SUFFIXES = (".parquet", ".orc", ".avro", ".puffin")
_METADATA_SUFFIXES = (
    ".metadata.json",
    ".metadata.json.gz",
    ".avro",
    ".stats",
    ".puffin",
    ".parquet",
    ".orc",
)


class Room(StrEnum):
    """The two folders with a table's own files."""

    DATA = "data"
    METADATA = "metadata"


SUFFIXES = {Room.DATA: _DATA_SUFFIXES, Room.METADATA: _METADATA_SUFFIXES}


def canonical(path: str) -> str:
    """`/folder/file` or `s3://bucket/key`; all other characters stay as they are."""
    match = _SCHEME.match(path)
    if match is None:
        return path
    scheme, rest = match[1].lower(), path[match.end() :]
    if scheme in _S3_SCHEMES:
        return f"s3://{rest.removeprefix('//')}"
    if scheme != "file":
        return f"{scheme}:{rest}"
    if rest.startswith("//"):
        host, slash, below = rest[2:].partition("/")
        return slash + below if host in ("", "localhost") else path
    return rest


def key(path: str) -> str:
    """For comparing: schemes, escapes, doubled slashes and dots make no difference."""
    plain = canonical(path)
    if "%" in plain:
        # Until nothing changes: a name with an escape in it may be escaped once more.
        for _ in range(_DECODE_ROUNDS_MAX):
            decoded = unquote(plain, errors="surrogateescape")
            if decoded == plain:
                break
            plain = decoded
    return _flattened(plain) if "//" in plain or "/." in plain else plain


def _flattened(path: str) -> str:
    head, rest = _root_of(path)
    kept: list[str] = []
    for segment in rest.split("/"):
        if segment in ("", "."):
            continue
        if segment == ".." and kept:
            kept.pop()
        elif segment != "..":
            kept.append(segment)
    return head + "/".join(kept)


def _root_of(path: str) -> tuple[str, str]:
    if path.startswith("/"):
        return "/", path[1:]
    scheme, mark, rest = path.partition("://")
    return (f"{scheme}://", rest) if mark else ("", path)


_PLAIN = (("file:///", "/"), ("file:/", "/"), ("s3://", "s3://"), ("s3a://", "s3://"), ("/", "/"))


def keys(paths: Sequence[str]) -> list[str]:
    """`key` of each; fast if all are plain and have the same scheme."""
    joined = "\n".join(paths)
    prefix, short = next((pair for pair in _PLAIN if joined.startswith(pair[0])), ("", ""))
    if prefix and "%" not in joined and "/." not in joined:
        slashes = 1 if "//" in prefix else 0
        # Every path has the scheme's double slash. If there are no others, no path has a doubled slash of its own.
        plain = joined.count("//") == slashes * len(paths) and (slashes == 0 or f"{prefix}/" not in joined)
        if plain and all(path.startswith(prefix) for path in paths):
            return list(paths) if prefix == short else [short + path[len(prefix) :] for path in paths]
    return [key(path) for path in paths]


def has_plain_segments(path: str) -> bool:
    """No empty, `.` or `..` segment, and valid text."""
    _, rest = _root_of(path)
    if any(segment in ("", ".", "..") for segment in rest.split("/")):
        return False
    return first_that_is_no_text((path,)) is None


def first_that_is_no_text(paths: Iterable[str]) -> str | None:
    """Also finds null characters, which no file system or database accepts."""
    for path in paths:
        if "\0" in path or (not path.isascii() and any("\ud800" <= c <= "\udfff" for c in path)):
            return path
    return None


def is_under(path: str, folder: str) -> bool:
    """By whole segments: `/a/bc` is not under `/a/b`."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def below(path: str, folder: str) -> str | None:
    """The part of the path after the folder; None if the path is not below it."""
    start = f"{folder.rstrip('/')}/"
    return path[len(start) :] if path.startswith(start) and len(path) > len(start) else None


def above(folder: str) -> Iterator[str]:
    """The folders above it, nearest first."""
    at = folder.rpartition("/")[0]
    while at:
        yield at
        at = at.rpartition("/")[0]


def room_of_folder(folder: str, root: str) -> Room | None:
    """The part of the layout that a folder belongs to, in the table at `root`."""
    relative = below(folder, root)
    if relative is None:
        # The table spells its location differently from storage.
        relative = below(key(folder), root)
    if relative is None or not has_plain_segments(folder):
        return None
    top = relative.partition("/")[0]
    return Room(top) if top in (Room.DATA.value, Room.METADATA.value) else None


def fits_room(name: str, suffixes: tuple[str, ...]) -> bool:
    name = checksum_of(name) or name
    return name.endswith(suffixes) and not name.startswith(".") and (name.isascii() or has_plain_segments(name))


def is_metadata_file(name: str) -> bool:
    """By its name alone."""
    return name.endswith((".metadata.json", ".metadata.json.gz"))


def metadata_version(name: str) -> int | None:
    """The number of the table's commit in the file's name; None if the name has none."""
    found = _VERSIONED.fullmatch(name)
    return None if found is None else int(found[1])


def checksum_of(name: str) -> str | None:
    """Hadoop's local file system writes `.NAME.crc` beside NAME: such a file belongs to the other one."""
    if name.startswith(".") and name.endswith(_CHECKSUM_SUFFIX) and len(name) > len(_CHECKSUM_SUFFIX) + 1:
        return name[1 : -len(_CHECKSUM_SUFFIX)]
    return None


def is_own(path: str, warehouse: str) -> bool:
    """Whether it is in the lake's own folder, directly in the warehouse."""
    return is_under(path, f"{warehouse.rstrip('/')}/{OWN_FOLDER}")


def unknown_root_of(relative: str) -> str | None:
    """The folder that looks like a table's, for a path below the warehouse: everything before the first segment `data`
    or `metadata`. None if there is none."""
    segments = relative.split("/")
    for n, segment in enumerate(segments[:-1]):
        if n and segment in (Room.DATA.value, Room.METADATA.value):
            return "/".join(segments[:n])
    return None


class Roots:
    """Finds which of many folders a path is in: the deepest one."""

    def __init__(self, folders: Iterable[str]) -> None:
        self._folders = {folder.rstrip("/") for folder in folders}

    def of(self, path: str) -> str | None:
        at = path.rstrip("/")
        while at and at not in self._folders:
            at = at.rpartition("/")[0]
        return at or None
