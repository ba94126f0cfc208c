"""Lists the files of a table in a local folder, and respells their paths for the place that the table moves to.

Iceberg's metadata holds absolute paths: when a table moves, its metadata files, manifest lists and manifests must be
rewritten. Data files stay as they are. Iceberg's own procedure `rewrite_table_path` is not used: it takes one spelling
of the old folder, and Hadoop's file system writes two (`file:/…` beside `file:///…`) into the same table.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strandline.core.errors import TableUnfit
from strandline.iceberg.metadata.metadata_peek import local_path, metadata_document
from strandline.iceberg.metadata.respell_avro import Record, Wanted, respell_avro
from strandline.iceberg.metadata.table_metadata import LOCATION_PROPERTIES

# Iceberg's field ids of manifest lists and manifests.
_MANIFEST_PATH, _MANIFEST_LENGTH = 500, 501
_STATUS, _FILE_PATH, _CONTENT, _REFERENCED = 0, 100, 134, 143
_OLD_PATH = -1  # our own: the path of a file as it was
_DELETED, _POSITION_DELETES = 2, 1
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class NewPlace:
    """A warehouse that moves from a folder to another address."""

    folder: Path
    url: str  # without a slash at the end

    def name(self, location: str) -> str | None:
        """The location relative to the warehouse. None if it is outside."""
        path = local_path(location)
        if path is None or ".." in path.parts or not path.is_relative_to(self.folder):
            return None
        return path.relative_to(self.folder).as_posix()

    def respell(self, location: str) -> str:
        """The same location at the new address. Raises TableUnfit for a location outside of the warehouse, and for one
        that no URL can name."""
        if (name := self.name(location)) is None:
            raise TableUnfit(
                f"{location} is outside of the warehouse {self.folder}",
                hint="All files of a table must be in the warehouse that moves: rewrite the table's data files, and "
                "expire the older snapshots.",
            )
        spelled = self.url if name == "." else f"{self.url}/{name}"
        if set(spelled) & set("#?"):
            raise TableUnfit(
                f"{location} has a # or a ? in its name, and readers of a bucket end a name there",
                hint="Create the table again under another name, or rewrite these files and expire the older "
                "snapshots.",
            )
        return spelled


@dataclass(frozen=True, slots=True)
class Rewritten:
    name: str  # relative to the warehouse, at both places
    body: bytes


@dataclass(frozen=True, slots=True)
class Copied:
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """What stays the same when a table moves."""

    uuid: str
    refs: str  # branches and tags with their rules, as JSON
    snapshots: tuple[int, ...]
    properties: str  # as JSON, in the new spelling
    last_sequence: int

    @classmethod
    def of(cls, document: dict[str, Any]) -> TableIdentity:
        return cls(
            document["table-uuid"],
            json.dumps(document.get("refs", {}), sort_keys=True),
            tuple(sorted(s["snapshot-id"] for s in document.get("snapshots", ()))),
            json.dumps(document.get("properties", {}), sort_keys=True),
            int(document.get("last-sequence-number", 0)),
        )


def parse_document(location: str, content: bytes) -> dict[str, Any]:
    """The metadata of a table, from the bytes of its file. Raises TableUnfit."""
    try:
        document = metadata_document(content)
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as e:
        raise TableUnfit(f"{location} is damaged: {e}", hint="Restore the file from a backup.") from e
    if not isinstance(document, dict):
        raise TableUnfit(f"{location} is not a table's metadata file")
    return document


def respell_document(document: dict[str, Any], place: NewPlace) -> dict[str, Any]:
    """The metadata of the table at its new place."""
    new: dict[str, Any] = json.loads(json.dumps(document))
    new["location"] = place.respell(new["location"])
    for entry in new.get("metadata-log", ()):
        entry["metadata-file"] = place.respell(entry["metadata-file"])
    for snapshot in new.get("snapshots", ()):
        if "manifest-list" not in snapshot:
            raise TableUnfit(
                f"snapshot {snapshot['snapshot-id']} has no manifest list: it is from a very old version of Iceberg",
                hint="Rewrite the table with a newer version, and expire the old snapshots.",
            )
        snapshot["manifest-list"] = place.respell(snapshot["manifest-list"])
    for kind in ("statistics", "partition-statistics"):
        for entry in new.get(kind, ()):
            entry["statistics-path"] = place.respell(entry["statistics-path"])
    for name in LOCATION_PROPERTIES:
        if (value := new.get("properties", {}).get(name)) is not None:
            new["properties"][name] = place.respell(value)
    return new


def list_table_files(location: str, place: NewPlace) -> Iterator[Rewritten | Copied]:
    """All files of the table with this metadata file, with their new content if that changes. The metadata file itself
    comes last. Raises TableUnfit for a table that cannot move, and FileNotFoundError for a missing file."""
    content = _content(location)
    document = parse_document(location, content)
    new = respell_document(document, place)
    manifests: dict[str, int] = {}
    seen: set[str] = set()
    for snapshot in document.get("snapshots", ()):
        yield from _files_of_list(snapshot, place, manifests, seen)
    for kind in ("statistics", "partition-statistics"):
        for entry in document.get(kind, ()):
            yield _copied(entry["statistics-path"], place)
    for entry in document.get("metadata-log", ()):
        earlier = local_path(entry["metadata-file"])
        if earlier is not None and earlier.is_file():  # the log may name files that are gone
            old_content = earlier.read_bytes()
            old_document = parse_document(entry["metadata-file"], old_content)
            yield _metadata(entry["metadata-file"], respell_document(old_document, place), old_content, place)
    yield _metadata(location, new, content, place)


def _files_of_list(
    snapshot: dict[str, Any], place: NewPlace, manifests: dict[str, int], seen: set[str]
) -> Iterator[Rewritten | Copied]:
    """The manifest list of this snapshot, and the files that no snapshot before it has. `manifests` are the new lengths
    of the manifests that were listed before, and `seen` the files in them; both grow."""
    location = snapshot["manifest-list"]
    content = _content(location)
    lengths_before: dict[str, int] = {}

    def on_manifest(record: Record) -> None:
        lengths_before[record.values[_MANIFEST_PATH]] = record.values[_MANIFEST_LENGTH]

    respell_avro(content, Wanted(frozenset({_MANIFEST_PATH, _MANIFEST_LENGTH}), {}), on_manifest)
    summary = snapshot.get("summary", {})
    totals = ("total-data-files", "total-delete-files")
    if not lengths_before and any(summary.get(total, "0") != "0" for total in totals):
        raise TableUnfit(
            f"{location} is cut off: it names no manifest, and its snapshot has files",
            hint="Restore the file from a backup.",
        )
    for manifest, length in lengths_before.items():
        if manifest not in manifests:
            body, files = _respell_manifest(manifest, length, place)
            manifests[manifest] = len(body)
            yield from (_copied(file, place) for file in sorted(files - seen))
            seen |= files
            yield Rewritten(_name(manifest, place), body)
    lengths = {place.respell(path): manifests[path] for path in lengths_before}
    body = respell_avro(
        content,
        Wanted(
            frozenset(),
            {
                _MANIFEST_PATH: lambda _, path: place.respell(path),
                _MANIFEST_LENGTH: lambda record, _: lengths[record.values[_MANIFEST_PATH]],
            },
        ),
        lambda _: None,
    )
    yield Rewritten(_name(location, place), body)


def _respell_manifest(location: str, length: int, place: NewPlace) -> tuple[bytes, set[str]]:
    """The manifest with its new paths, and the old paths of the files in its live entries. `length` is the one that the
    manifest list names. Raises TableUnfit if the manifest has another one."""
    files: set[str] = set()
    content = _content(location)
    if len(content) != length:
        raise TableUnfit(
            f"{location} has {len(content):,} bytes, and {length:,} according to its manifest list",
            hint="The file is damaged. Restore it from a backup.",
        )

    def respell(record: Record, path: str) -> str:
        record.values[_OLD_PATH] = path
        return place.respell(path)

    wanted = Wanted(
        frozenset({_STATUS, _CONTENT}), {_FILE_PATH: respell, _REFERENCED: lambda _, path: place.respell(path)}
    )

    def on_record(record: Record) -> None:
        if record.values[_STATUS] == _DELETED:
            return
        if record.values.get(_CONTENT, 0) == _POSITION_DELETES:
            raise TableUnfit(
                f"{location} names position delete files, which contain the paths of data files",
                hint="Rewrite the table's data files without them (`CALL lake.system.rewrite_data_files(…, options => "
                "map('delete-file-threshold', '1'))`), expire the older snapshots, and run the migration again.",
            )
        files.add(record.values[_OLD_PATH])

    return respell_avro(content, wanted, on_record), files


def _content(location: str) -> bytes:
    path = local_path(location)
    if path is None:
        raise TableUnfit(f"{location} is not a local file")
    return path.read_bytes()


def _metadata(location: str, document: dict[str, Any], before: bytes, place: NewPlace) -> Rewritten:
    """The metadata file with its new content, compressed if the old one was: its name shows whether it is."""
    body = json.dumps(document).encode()
    return Rewritten(_name(location, place), gzip.compress(body, mtime=0) if before.startswith(_GZIP) else body)


def _copied(location: str, place: NewPlace) -> Copied:
    name = _name(location, place)
    return Copied(name, (place.folder / name).stat().st_size)


def _name(location: str, place: NewPlace) -> str:
    place.respell(location)  # raises if the file cannot move
    return place.name(location) or ""
