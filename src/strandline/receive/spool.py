"""The spool: bodies that were received and are not ingested yet, one Arrow file each.

A name is `<table uuid>/<random>.body.arrow`, and is never reused. The file contains a note that identifies its body.
There are two reasons why the ledger may not know a file: a receiver died before the commit point, or the ledger was
restored from an older copy, in which case the body was acknowledged. So a receiver records the files that it finds
(`record_found`). A file that the ledger names must not be removed before its rows are published.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from strandline.core.errors import StorageError
from strandline.core.settings.lake_config import LakeConfig
from strandline.ledger.receive.receipts import BODY_SUFFIX, Note, parse_note
from strandline.storage.objects import ObjectStore, explained, open_objects

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = "_strandline/spool"
UNSURE_SUFFIX = ".unsure"  # of a file that was set aside because the table may have its rows already
_NOTE = b"strandline.body"
_BATCH_ROWS = 65_536  # compressed at a time
_PACKED_AT_ONCE_BYTES_MAX = 4 << 20  # rows that take more memory are packed straight into their file
_NOT_NOW = "The warehouse cannot be used right now: nothing is lost, try again."


def open_spool(config: LakeConfig) -> Spool:
    return Spool(open_objects(config))


@dataclass(frozen=True, slots=True)
class Spool:
    """Can be pickled for tasks, and leaves no file open. Raises StorageError for a file that is missing or unusable."""

    objects: ObjectStore

    def exists(self, name: str) -> bool:
        with explained("the spool cannot be read", hint=_NOT_NOW):
            return self.objects.size(_path(name)) is not None

    @contextmanager
    def read(self, name: str) -> Iterator[Iterator[pa.RecordBatch]]:
        """The file's record batches, in order."""
        with self._reader(name) as reader:
            yield (reader.get_batch(i) for i in range(reader.num_record_batches))

    def count(self, name: str) -> int:
        with self._reader(name) as reader:
            return sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))

    def note(self, name: str) -> Note | None:
        """The note in the file; None for an older file."""
        with self._reader(name) as reader:
            found = (reader.schema.metadata or {}).get(_NOTE)
        return None if found is None else parse_note(found)

    @contextmanager
    def _reader(self, name: str) -> Iterator[Any]:
        import pyarrow as pa

        with explained(f"the spool file {name} cannot be read", hint=_NOT_NOW):
            found = self.objects.buffer(_path(name))
        if found is None:
            raise StorageError(f"the spool file {name} cannot be read: it does not exist")
        try:
            reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(found)))
        except pa.ArrowInvalid as e:
            raise StorageError(f"the spool file {name} is damaged: {e}") from e
        with reader:
            yield reader

    def write(self, table_uuid: str, rows: pa.Table, note: Note) -> tuple[str, int]:
        """Returns name and size. The content is durable when this returns; the name only after `sync`."""
        name = _new_name(table_uuid)
        with explained("the spool cannot be written", hint=_NOT_NOW):
            if rows.get_total_buffer_size() <= _PACKED_AT_ONCE_BYTES_MAX:
                packed = _packed(rows, note)
                self.objects.put_new(_path(name), packed)
                return name, packed.nbytes
            with self.objects.writer(_path(name)) as file:
                _pack(rows, note, file)
                return name, file.tell()

    def sync(self, names: Iterable[str]) -> None:
        """Makes the names of many files durable in one call."""
        with explained("the spool cannot be written", hint=_NOT_NOW):
            self.objects.sync(map(_path, names))

    def remove(self, names: Iterable[str]) -> None:
        """Names that do not exist are ignored."""
        with explained("files of the spool cannot be removed"):
            self.objects.remove(map(_path, names))

    def bodies(self, table_uuid: str | None = None) -> list[tuple[str, datetime]]:
        """The files that have a note, of this table or of all, with their modification times."""
        with explained("the spool cannot be listed", hint=_NOT_NOW):
            found = self.objects.list_below(FOLDER if table_uuid is None else f"{FOLDER}/{table_uuid}")
        named = ((stored.name.removeprefix(f"{FOLDER}/"), stored.modified) for stored in found)
        return [(name, modified) for name, modified in named if name.endswith(BODY_SUFFIX) and name.count("/") == 1]

    def copy(self, name: str, target: str | None = None) -> tuple[str, int]:
        """Copies to a new name, or to that of a file that is gone; returns name and size. As durable as `write`."""
        made = target or _new_name(name.partition("/")[0])
        with explained(f"the spool file {name} cannot be copied", hint=_NOT_NOW):
            self.objects.copy(_path(name), _path(made))
            size = self.objects.size(_path(made))
        if size is None:
            raise StorageError(f"the spool file {name} cannot be copied: its copy is gone", hint=_NOT_NOW)
        return made, size

    def set_aside(self, name: str) -> None:
        """Renames the file, so that it is not ingested; a person may rename it back."""
        with explained(f"the spool file {name} cannot be set aside"):
            self.objects.move(_path(name), _path(name) + UNSURE_SUFFIX)


def _new_name(table_uuid: str) -> str:
    return f"{table_uuid}/{uuid.uuid4().hex}{BODY_SUFFIX}"


def _path(name: str) -> str:
    """Raises StorageError for a name outside of the spool: names come from a database."""
    folder, _, file = name.partition("/")
    if (
        not folder
        or not file.removesuffix(UNSURE_SUFFIX).endswith(".arrow")
        or "/" in file
        or ".." in name
        or folder.startswith(".")
    ):
        raise StorageError(f"not a name in the spool: {name!r}")
    return f"{FOLDER}/{name}"


def _packed(rows: pa.Table, note: Note) -> memoryview:
    """Packs in memory: Arrow writes many small pieces, and each call to a Python file blocks other threads."""
    import pyarrow as pa

    out = pa.BufferOutputStream()
    _pack(rows, note, out)
    return memoryview(cast("Any", out.getvalue()))


def _pack(rows: pa.Table, note: Note, out: Any) -> None:
    import pyarrow as pa

    schema = rows.schema.with_metadata({_NOTE: note.to_bytes()})
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with pa.ipc.new_file(out, schema, options=options) as file:
        file.write_table(rows, max_chunksize=_BATCH_ROWS)
