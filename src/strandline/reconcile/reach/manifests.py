"""Which manifests a manifest list names, and which files the live entries of a manifest name.

What is read here decides whether a file is live. A path that is left out would make a live file look like an orphan: so
whatever is not understood is an error, and whoever asks compares the number of entries with what the list says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from strandline.reconcile.paths import keys
from strandline.reconcile.reach.avro_reader import AvroUnknown, AvroUnreadable, Wanted, read_records

_DELETED = 2
_ENTRY = Wanted(
    fields={0: "status", 134: "content", 100: "path", 101: "form"},
    inside=frozenset((2,)),
    required=frozenset((0, 100)),
    defaults="content, form = 0, ''",
    keep="(content or 0, form, path)",
    when=f"status != {_DELETED}",
)
_LISTED = Wanted(
    fields={500: "path", 501: "length", 502: "spec", 503: "snapshot", 504: "added", 505: "existing"},
    inside=frozenset(),
    required=frozenset((500,)),
    defaults="length, spec, snapshot, added, existing = None, None, None, None, None",
    keep="(path, spec, snapshot, added, existing, length)",
    when="True",
)

LivePart = tuple[int, list[str], list[tuple[int, str, str]]]
"""How many live entries; the keys of those that are data files; content, format and key of the others."""
Listed = tuple[str, int | None, int | None, int | None, int | None, int | None]
"""Path, partition spec, the snapshot that added it, files added and existing, and how many bytes it has."""


def listed_manifests(content: bytes) -> Iterator[list[Listed]]:
    try:
        yield from read_records(content, _LISTED)
    except AvroUnknown:
        yield _listed_by_pyiceberg(content)


def live_files(content: bytes) -> Iterator[LivePart]:
    """Of every entry that is not marked as deleted, in order."""
    try:
        for found in read_records(content, _ENTRY):
            yield _part(found)
    except AvroUnknown:
        # Nothing was given yet: what is not known shows in the head of the file.
        yield _part(_live_by_pyiceberg(content))


def _part(found: list[tuple[int, str, str]]) -> LivePart:
    others = [entry for entry in found if entry[0] != 0]
    data = [path for content, _, path in found if content == 0] if others else [path for _, _, path in found]
    other_keys = keys([path for _, _, path in others])
    return len(found), keys(data), [(e[0], e[1].upper(), k) for e, k in zip(others, other_keys, strict=True)]


def _live_by_pyiceberg(content: bytes) -> list[tuple[int, str, str]]:
    from pyiceberg.avro.file import AvroFile
    from pyiceberg.manifest import DEFAULT_READ_VERSION, MANIFEST_ENTRY_SCHEMAS, DataFile, ManifestEntry

    found: list[tuple[int, str, str]] = []
    try:
        with AvroFile[Any](
            _InMemory(content),  # type: ignore[arg-type]
            MANIFEST_ENTRY_SCHEMAS[DEFAULT_READ_VERSION],
            read_types={-1: ManifestEntry, 2: DataFile},
        ) as entries:
            for entry in entries:
                if entry.status != _DELETED:
                    file = entry.data_file
                    found.append((int(file.content or 0), str(file.file_format), file.file_path))
    except Exception as e:
        raise AvroUnreadable(f"{type(e).__name__}: {e}") from e
    return found


def _listed_by_pyiceberg(content: bytes) -> list[Listed]:
    from pyiceberg.manifest import read_manifest_list

    try:
        return [
            (
                m.manifest_path,
                m.partition_spec_id,
                m.added_snapshot_id,
                m.added_files_count,
                m.existing_files_count,
                m.manifest_length,
            )
            for m in read_manifest_list(_InMemory(content))  # type: ignore[arg-type]
        ]
    except Exception as e:
        raise AvroUnreadable(f"{type(e).__name__}: {e}") from e


class _InMemory:
    """As much of an input file as PyIceberg's reader asks for."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def open(self) -> Any:
        from io import BytesIO

        return BytesIO(self._content)
