"""The spool: bodies that were received and are not ingested yet, one Arrow file each.

A name is `<table uuid>/<random>.body.arrow`, and never used twice. The file holds a note that says which body it is. A
file that the ledger does not name was left by a receiver that died before the commit point, or the ledger was restored
from an older copy and has forgotten it: then its sender was told that it is safe. So a receiver records what it finds
(`adoption`). A file that the ledger names must not go away before its rows are published.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from strandline.core.errors import StorageError
from strandline.core.settings import LakeConfig, resolve_key
from strandline.storage.bucket import bucket_store
from strandline.storage.durable import sync_data, sync_folder
from strandline.storage.receipts import BODY_SUFFIX, Note, parse_note

if TYPE_CHECKING:
    import pyarrow as pa
    from obstore.store import S3Store

FOLDER = "_strandline/spool"
UNSURE_SUFFIX = ".unsure"
"""Of a file that was set aside: the table may have its rows already."""
_NOTE = b"strandline.body"
_TEMPORARY = ".tmp"
_BATCH_ROWS = 65_536
"""Compressed at a time."""
_NOT_NOW = "The warehouse cannot be used right now: nothing is lost, try again."


class SpoolReader(Protocol):
    """What tasks are given: it can be pickled, and keeps nothing open."""

    def open(self, name: str) -> Any:
        """The file for pyarrow. `StorageError` where it is not there or cannot be read."""

    def exists(self, name: str) -> bool: ...

    def read(self, name: str) -> Any:
        """A context that gives the batches of the file, in order."""

    def count(self, name: str) -> int: ...

    def note(self, name: str) -> Note | None:
        """What the file says of its body; None for an older file."""


class Spool(SpoolReader, Protocol):
    def write(self, table_uuid: str, rows: pa.Table, note: Note) -> tuple[str, int]:
        """Name and size. What is in the file is durable when this returns; its name is, after `sync`."""

    def bodies(self, table_uuid: str | None = None) -> list[tuple[str, datetime]]:
        """The files that have a note, of this table or of all, and when they were written."""

    def copy(self, name: str, target: str | None = None) -> tuple[str, int]:
        """Its content under a new name, or under that of a file that is gone; and its size. As durable as after
        `write`. `StorageError` where it is gone itself."""

    def set_aside(self, name: str) -> None:
        """Out of the way, under a name that nobody ingests; a person may rename it back."""

    def sync(self, names: Iterable[str]) -> None:
        """One call for many files: their names survive a power cut when it returns."""

    def remove(self, names: Iterable[str]) -> None:
        """Those that are there."""

    def reader(self) -> SpoolReader: ...


def open_spool(config: LakeConfig) -> LocalSpool | S3Spool:
    folder = config.warehouse_folder
    if folder is not None:
        return LocalSpool(str(folder), f"{folder}/{FOLDER}")
    w = config.settings.warehouse
    bucket, _, prefix = w.url.removeprefix("s3://").partition("/")
    return S3Spool(
        bucket,
        "/".join(filter(None, (prefix.strip("/"), FOLDER))),
        w.region,
        w.endpoint,
        resolve_key(w.access_key),
        resolve_key(w.secret_key),
    )


class _Reading:
    """Reading is the same wherever the file comes from."""

    __slots__ = ()

    def open(self, name: str) -> Any:
        raise NotImplementedError

    @contextmanager
    def read(self, name: str) -> Iterator[Iterator[pa.RecordBatch]]:
        with self._reader(name) as reader:
            yield (reader.get_batch(i) for i in range(reader.num_record_batches))

    def count(self, name: str) -> int:
        with self._reader(name) as reader:
            return sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))

    def note(self, name: str) -> Note | None:
        with self._reader(name) as reader:
            found = (reader.schema.metadata or {}).get(_NOTE)
        return None if found is None else parse_note(found)

    @contextmanager
    def _reader(self, name: str) -> Iterator[Any]:
        import pyarrow as pa

        with self.open(name) as source:
            try:
                reader = pa.ipc.open_file(source)
            except pa.ArrowInvalid as e:
                raise StorageError(f"the spool file {name} is damaged: {e}") from e
            with reader:
                yield reader


@dataclass(frozen=True, slots=True)
class LocalSpool(_Reading):
    warehouse: str
    folder: str

    def reader(self) -> LocalSpool:
        return self

    def open(self, name: str) -> Any:
        import pyarrow as pa

        try:
            return pa.memory_map(str(self._path(name)), "r")
        except OSError as e:
            raise StorageError(f"the spool file {name} cannot be read: {_said(e)}") from e

    def exists(self, name: str) -> bool:
        try:
            self._path(name).stat()
        except FileNotFoundError:
            return False
        except OSError as e:
            raise StorageError(f"the spool cannot be read: {_said(e)}", hint=_NOT_NOW) from e
        return True

    def write(self, table_uuid: str, rows: pa.Table, note: Note) -> tuple[str, int]:
        name = _new_name(table_uuid)
        path = self._path(name)
        temporary = path.with_suffix(_TEMPORARY)
        try:
            try:
                fd = _new_file(temporary)
            except FileNotFoundError:
                self._make(path.parent)
                fd = _new_file(temporary)
            try:
                with os.fdopen(os.dup(fd), "wb") as file:  # straight to the disk, so that it is not in memory again
                    _pack(rows, note, file)
                size = os.fstat(fd).st_size
                sync_data(fd)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            finally:
                os.close(fd)
            temporary.rename(path)
        except OSError as e:
            raise StorageError(f"the spool cannot be written: {_said(e)}", hint=_NOT_NOW) from e
        return name, size

    def sync(self, names: Iterable[str]) -> None:
        try:
            for folder in {self._path(name).parent for name in names}:
                sync_folder(folder)
        except OSError as e:
            raise StorageError(f"the spool cannot be written: {_said(e)}", hint=_NOT_NOW) from e

    def remove(self, names: Iterable[str]) -> None:
        try:
            for name in names:
                self._path(name).unlink(missing_ok=True)
        except OSError as e:
            raise StorageError(f"files of the spool cannot be removed: {_said(e)}") from e

    def bodies(self, table_uuid: str | None = None) -> list[tuple[str, datetime]]:
        found = []
        try:
            for path in Path(self.folder).glob(f"{table_uuid or '*'}/*{BODY_SUFFIX}"):
                with suppress(FileNotFoundError):  # ingested meanwhile
                    found.append((f"{path.parent.name}/{path.name}", _moment(path.stat().st_mtime)))
        except OSError as e:
            raise StorageError(f"the spool cannot be listed: {_said(e)}", hint=_NOT_NOW) from e
        return sorted(found)

    def copy(self, name: str, target: str | None = None) -> tuple[str, int]:
        made = target or _new_name(name.partition("/")[0])
        try:
            with suppress(FileExistsError):  # the target was put back by another
                os.link(self._path(name), self._path(made))
            return made, self._path(made).stat().st_size
        except OSError as e:
            raise StorageError(f"the spool file {name} cannot be copied: {_said(e)}", hint=_NOT_NOW) from e

    def set_aside(self, name: str) -> None:
        path = self._path(name)
        try:
            path.rename(path.with_name(path.name + UNSURE_SUFFIX))
            sync_folder(path.parent)
        except FileNotFoundError:
            pass
        except OSError as e:
            raise StorageError(f"the spool file {name} cannot be set aside: {_said(e)}") from e

    def _path(self, name: str) -> Path:
        return Path(self.folder, _checked(name))

    def _make(self, folder: Path) -> None:
        """Durably, those above it too, and even where another made them and died. Not the warehouse itself: where that
        is away (a disk that is not mounted), a folder in its place would take rows that nobody finds."""
        base = Path(self.warehouse)
        at = base
        for part in folder.relative_to(base).parts:
            above, at = at, at / part
            at.mkdir(exist_ok=True)
            sync_folder(above)


@dataclass(frozen=True, slots=True)
class S3Spool(_Reading):
    bucket: str
    prefix: str
    region: str
    endpoint: str | None
    access_key: str | None = field(repr=False)
    secret_key: str | None = field(repr=False)

    def reader(self) -> S3Spool:
        return self

    def open(self, name: str) -> Any:
        import obstore
        import pyarrow as pa

        with _s3_told(f"the spool file {name} cannot be read"):
            return pa.BufferReader(pa.py_buffer(obstore.get(self._store(), self._key(name)).bytes()))

    def exists(self, name: str) -> bool:
        import obstore
        from obstore.exceptions import NotFoundError

        with _s3_told("the spool cannot be read"):
            try:
                obstore.head(self._store(), self._key(name))
            except (NotFoundError, FileNotFoundError):
                return False
            return True

    def write(self, table_uuid: str, rows: pa.Table, note: Note) -> tuple[str, int]:
        import obstore

        name, packed = _new_name(table_uuid), _packed(rows, note)
        with _s3_told("the spool cannot be written"):
            # In one piece: parts would cost three requests, and leave something behind that no listing shows.
            obstore.put(self._store(), self._key(name), packed, use_multipart=False)
        return name, packed.nbytes

    def sync(self, names: Iterable[str]) -> None:
        """An object that was acknowledged is durable."""

    def remove(self, names: Iterable[str]) -> None:
        import obstore

        keys = [self._key(name) for name in names]
        with _s3_told("files of the spool cannot be removed"):
            if keys:
                obstore.delete(self._store(), keys)

    def bodies(self, table_uuid: str | None = None) -> list[tuple[str, datetime]]:
        import obstore

        found = []
        below = f"{self.prefix}/" if table_uuid is None else f"{self.prefix}/{table_uuid}/"
        with _s3_told("the spool cannot be listed"):
            for some in obstore.list(self._store(), below):
                for meta in some:
                    if meta["path"].endswith(BODY_SUFFIX):
                        found.append((meta["path"].removeprefix(f"{self.prefix}/"), meta["last_modified"]))
        return sorted(found)

    def copy(self, name: str, target: str | None = None) -> tuple[str, int]:
        import obstore

        made = target or _new_name(name.partition("/")[0])
        with _s3_told(f"the spool file {name} cannot be copied"):
            obstore.copy(self._store(), self._key(name), self._key(made))
            return made, obstore.head(self._store(), self._key(made))["size"]

    def set_aside(self, name: str) -> None:
        import obstore
        from obstore.exceptions import NotFoundError

        with _s3_told(f"the spool file {name} cannot be set aside"):
            try:
                obstore.copy(self._store(), self._key(name), self._key(name) + UNSURE_SUFFIX)
            except (NotFoundError, FileNotFoundError):
                return
            obstore.delete(self._store(), self._key(name))

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{_checked(name)}"

    def _store(self) -> S3Store:
        return bucket_store(self.bucket, self.region, self.endpoint, self.access_key, self.secret_key)


@contextmanager
def _s3_told(what: str) -> Iterator[None]:
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError) as e:
        raise StorageError(f"{what}: {type(e).__name__}", hint=_NOT_NOW) from e


def _new_name(table_uuid: str) -> str:
    return f"{table_uuid}/{uuid.uuid4().hex}{BODY_SUFFIX}"


def _checked(name: str) -> str:
    """Names come back out of a database; one that leads elsewhere must not be followed."""
    folder, _, file = name.partition("/")
    if (
        not folder
        or not file.removesuffix(UNSURE_SUFFIX).endswith(".arrow")
        or "/" in file
        or ".." in name
        or folder.startswith(".")
    ):
        raise StorageError(f"not a name in the spool: {name!r}")
    return name


def _packed(rows: pa.Table, note: Note) -> memoryview:
    import pyarrow as pa

    out = pa.BufferOutputStream()
    _pack(rows, note, out)
    return memoryview(cast("Any", out.getvalue())).cast("B")


def _pack(rows: pa.Table, note: Note, out: Any) -> None:
    import pyarrow as pa

    rows = rows.replace_schema_metadata({_NOTE: note.to_bytes()})
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with pa.ipc.new_file(out, rows.schema, options=options) as file:
        file.write_table(rows, max_chunksize=_BATCH_ROWS)


def _new_file(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _said(error: OSError) -> str:
    """Without the path: what is said here may reach a client."""
    return error.strerror or type(error).__name__
