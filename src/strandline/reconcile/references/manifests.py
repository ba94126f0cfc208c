"""Parses which manifests a manifest list names, and which files the live entries of a manifest name.

The result decides whether a file is live. A path that is left out would make a live file look like an orphan. So
whatever is not understood is an error, and callers compare the number of entries with the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from strandline.iceberg.pyiceberg.internals import checked_avro_file
from strandline.reconcile.paths import first_that_is_no_text, keys
from strandline.reconcile.references.avro_reader import AvroUnknown, AvroUnreadable, WantedFields, read_records

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestEntry

_DELETED = 2
_SHARED_FORM = "PUFFIN"
_ENTRY = WantedFields(
    fields={0: "status", 134: "content", 100: "path", 101: "form"},
    texts=frozenset((100, 101)),
    inside=frozenset((2,)),
    required=frozenset((0, 100)),
    defaults="content, form = 0, ''",
    keep="(content or 0, form, path, status)",
)
_LISTED = WantedFields(
    fields={500: "path", 501: "length", 502: "spec", 503: "snapshot", 504: "added", 505: "existing"},
    texts=frozenset((500,)),
    inside=frozenset(),
    required=frozenset((500,)),
    defaults="length, spec, snapshot, added, existing = None, None, None, None, None",
    keep="(path, spec, snapshot, added, existing, length)",
)

# the number of live entries; the keys of data files; content, format and key of the others
LivePart = tuple[int, list[str], list[tuple[int, str, str]]]
LiveEntry = tuple[int, str, str, int]  # content, format, path and status of an entry
# path, partition spec, the snapshot that added it, files added and existing, and its size in bytes
Listed = tuple[str, int | None, int | None, int | None, int | None, int | None]


def listed_manifests(content: bytes) -> Iterator[list[Listed]]:
    met: set[str] = set()
    for found in _records(content, _LISTED, _listed_by_pyiceberg):
        paths = [manifest[0] for manifest in found]
        _check_paths(paths)
        _check_once(paths, met)
        _check_text(keys(paths))
        yield found


def _records(content: bytes, wanted: WantedFields, by_pyiceberg: Callable[[Any], Iterator[Any]]) -> Iterator[list[Any]]:
    """By PyIceberg if ours does not know the format."""
    try:
        yield from read_records(content, wanted)
        return
    except AvroUnknown:
        pass  # Nothing was yielded yet: an unknown format shows in the head of the file.
    try:
        found = list(by_pyiceberg(_InMemory(content)))
    except Exception as e:
        raise AvroUnreadable(f"{type(e).__name__}: {e}") from e
    yield found


def live_files(content: bytes) -> Iterator[LivePart]:
    """All entries that are not deleted, in order. Deleted entries are checked, too: if two entries of a manifest name
    one file, the name of another file was lost."""
    met: set[str] = set()
    for found in _records(content, _ENTRY, _entries):
        _check_paths([entry[2] for entry in found])
        # Deletion vectors share a file.
        _check_once([path for _, form, path, _ in found if form.upper() != _SHARED_FORM], met)
        yield _part([entry for entry in found if entry[3] != _DELETED])


def _part(found: list[LiveEntry]) -> LivePart:
    others = [entry for entry in found if entry[0] != 0]
    data = [path for content, _, path, _ in found if content == 0] if others else [path for _, _, path, _ in found]
    data_keys, other_keys = keys(data), keys([path for _, _, path, _ in others])
    _check_text(data_keys)
    _check_text(other_keys)
    return len(found), data_keys, [(e[0], e[1].upper(), k) for e, k in zip(others, other_keys, strict=True)]


def _check_paths(paths: Sequence[object]) -> None:
    if not all(isinstance(path, str) and path for path in paths):
        raise AvroUnreadable("an entry has no path")


def _check_once(paths: Sequence[str], met: set[str]) -> None:
    """`met`: the paths of the parts before."""
    before = len(met)
    met.update(paths)
    if len(met) - before != len(paths):
        raise AvroUnreadable("two of its entries name one file")


def _check_text(paths: Sequence[str]) -> None:
    """An escaped path may not be valid text without its escapes; no writer produces such a path."""
    odd = first_that_is_no_text(paths)
    if odd is not None:
        raise AvroUnreadable(f"the path {odd!a} does not decode as text")


def entries_by_pyiceberg(file: Any) -> Iterator[ManifestEntry]:
    """All entries of an input file; on a decoder that checks where its input ends."""
    from pyiceberg.manifest import DEFAULT_READ_VERSION, MANIFEST_ENTRY_SCHEMAS, DataFile, ManifestEntry

    types = {-1: ManifestEntry, 2: DataFile}
    with checked_avro_file()(file, MANIFEST_ENTRY_SCHEMAS[DEFAULT_READ_VERSION], read_types=types) as entries:
        yield from entries


def _entries(file: Any) -> Iterator[LiveEntry]:
    for e in entries_by_pyiceberg(file):
        yield int(e.data_file.content or 0), str(e.data_file.file_format), e.data_file.file_path, int(e.status)


def _listed_by_pyiceberg(file: Any) -> Iterator[Listed]:
    from pyiceberg.manifest import read_manifest_list

    for m in read_manifest_list(file):
        spec, snapshot = m.partition_spec_id, m.added_snapshot_id
        yield m.manifest_path, spec, snapshot, m.added_files_count, m.existing_files_count, m.manifest_length


class _InMemory:
    """As much of an input file as PyIceberg's reader needs."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def open(self) -> BytesIO:
        return BytesIO(self._content)
