"""The lake's own objects in the warehouse, such as spool files: in a local folder, or in a bucket."""

from __future__ import annotations

import errno
import io
import mmap
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from strandline.core.errors import StorageError
from strandline.core.settings.lake_config import LakeConfig
from strandline.storage.durable import NO_LINKS, make_folders_in, rename, sync_folder, whole_file, write_file
from strandline.storage.s3_client import RequestFailed, RequestFailure, S3Client
from strandline.storage.s3_settings import WAREHOUSE_LIMITS, S3Settings, split_url


@dataclass(frozen=True, slots=True, order=True)
class StoredObject:
    name: str
    modified: datetime


class ObjectStore(Protocol):
    """Names are relative to the warehouse, with slashes. Can be pickled, and keeps nothing open. Methods raise
    `OSError` or `RequestFailed`; `explained` turns those into messages."""

    def put(self, name: str, body: bytes) -> None:
        """Durable when it returns; replaces an existing object."""

    def put_new(self, name: str, body: bytes | memoryview) -> None:
        """For an object that does not exist yet. Its content is durable when it returns, its name after `sync`."""

    def writer(self, name: str) -> AbstractContextManager[BinaryIO]:
        """As `put_new`, for content that is too large to be in memory as a whole: durable at the end of the block. If
        the block fails, there is no object."""

    def sync(self, names: Iterable[str]) -> None:
        """One call for many objects: their names survive a power cut when it returns."""

    def get(self, name: str) -> bytes | None: ...

    def buffer(self, name: str) -> bytes | mmap.mmap | None:
        """Like `get`, but maps a local file instead of copying it into memory."""

    def size(self, name: str) -> int | None: ...

    def list_below(self, folder: str) -> list[StoredObject]:
        """All objects below a folder, at any depth, by name."""

    def folders(self, folder: str) -> set[str]:
        """The names of the folders in this one that are not empty."""

    def remove(self, names: Iterable[str]) -> None:
        """Names that do not exist are ignored."""

    def copy(self, name: str, to: str) -> None:
        """As durable as `writer`. If `to` exists, it is the same object already. Raises if `name` is gone."""

    def move(self, name: str, to: str) -> None:
        """Durable when it returns; does nothing if `name` is gone."""

    def url(self, name: str) -> str:
        """For people."""


def open_objects(config: LakeConfig) -> ObjectStore:
    folder = config.warehouse_folder
    if folder is not None:
        return LocalObjects(folder)
    bucket, prefix = split_url(config.settings.warehouse.url)
    return S3Objects(bucket, prefix.strip("/"), S3Settings.of_warehouse(config.settings.warehouse))


@contextmanager
def explained(what: str, *, hint: str | None = None) -> Iterator[None]:
    """Raises a `StorageError` that says what failed, and why, without a path or an address: it may reach a client."""
    try:
        yield
    except RequestFailed as e:
        raise StorageError(f"{what}: {e.failure.value}", hint=hint) from e
    except OSError as e:
        raise StorageError(f"{what}: {e.strerror or type(e).__name__}", hint=hint) from e


@dataclass(frozen=True, slots=True)
class LocalObjects:
    warehouse: Path

    def put(self, name: str, body: bytes) -> None:
        self._make_folder(name)
        write_file(self._path(name), body)

    def put_new(self, name: str, body: bytes | memoryview) -> None:
        path = self._path(name)
        try:
            write_file(path, body, sync_name=False)
        except FileNotFoundError:
            self._make_folder(name)
            write_file(path, body, sync_name=False)

    @contextmanager
    def writer(self, name: str) -> Iterator[BinaryIO]:
        path = self._path(name)
        if not path.parent.is_dir():
            self._make_folder(name)
        with whole_file(path, sync_name=False) as file:
            yield file

    def sync(self, names: Iterable[str]) -> None:
        for folder in {self._path(name).parent for name in names}:
            sync_folder(folder)

    def get(self, name: str) -> bytes | None:
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError:
            return None

    def buffer(self, name: str) -> bytes | mmap.mmap | None:
        try:
            with self._path(name).open("rb") as file:
                is_empty = os.fstat(file.fileno()).st_size == 0  # an empty file cannot be mapped
                return b"" if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            return None

    def size(self, name: str) -> int | None:
        try:
            return self._path(name).stat().st_size
        except FileNotFoundError:
            return None

    def list_below(self, folder: str) -> list[StoredObject]:
        found = []
        for path in self._path(folder).rglob("*"):
            with suppress(FileNotFoundError):
                if path.is_file():
                    modified = datetime.fromtimestamp(path.stat().st_mtime, UTC)
                    found.append(StoredObject(path.relative_to(self.warehouse).as_posix(), modified))
        return sorted(found)

    def folders(self, folder: str) -> set[str]:
        try:
            return {p.name for p in self._path(folder).iterdir() if p.is_dir() and any(p.iterdir())}
        except FileNotFoundError:
            return set()

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._path(name).unlink(missing_ok=True)

    def copy(self, name: str, to: str) -> None:
        try:
            os.link(self._path(name), self._path(to))  # noqa: TID251 - a second name is meant, never a move
        except FileExistsError:
            return
        except OSError as e:
            if e.errno not in NO_LINKS:
                raise
            with self._path(name).open("rb") as source, self.writer(to) as target:
                shutil.copyfileobj(source, target)

    def move(self, name: str, to: str) -> None:
        with suppress(FileNotFoundError):
            rename(self._path(name), self._path(to))
            sync_folder(self._path(to).parent)

    def url(self, name: str) -> str:
        return str(self._path(name))

    def _path(self, name: str) -> Path:
        return self.warehouse / name

    def _make_folder(self, name: str) -> None:
        if not self.warehouse.is_dir():
            raise FileNotFoundError(errno.ENOENT, "the warehouse is not there; is its disk mounted?")
        make_folders_in(self.warehouse, name.rpartition("/")[0])


@dataclass(frozen=True, slots=True)
class S3Objects:
    bucket: str
    prefix: str
    settings: S3Settings

    def put(self, name: str, body: bytes) -> None:
        self._retry("put_object", name, Body=body)

    def put_new(self, name: str, body: bytes | memoryview) -> None:
        self.put(name, bytes(body))

    @contextmanager
    def writer(self, name: str) -> Iterator[BinaryIO]:
        body = io.BytesIO()
        yield body
        # One request: a multipart upload would cost three, and may leave parts behind that no listing shows.
        self._retry("put_object", name, Body=body.getvalue())

    def sync(self, names: Iterable[str]) -> None:
        """An acknowledged object is durable."""

    def get(self, name: str) -> bytes | None:
        found = self._client().get(self.bucket, self._key(name))
        return None if found is None else found[0]

    buffer = get

    def size(self, name: str) -> int | None:
        found = self._client().head(self.bucket, self._key(name))
        return None if found is None else int(found["ContentLength"])

    def list_below(self, folder: str) -> list[StoredObject]:
        start = len(self._key(""))
        found = self._client().list_objects(self.bucket, f"{self._key(folder)}/")
        return [StoredObject(entry["Key"][start:], entry["LastModified"]) for entry in found]

    def folders(self, folder: str) -> set[str]:
        prefix = f"{self._key(folder)}/"
        return self._client().list_folders(self.bucket, prefix)

    def remove(self, names: Iterable[str]) -> None:
        for failed in self._client().delete(self.bucket, [self._key(name) for name in names]).values():
            raise failed

    def copy(self, name: str, to: str) -> None:
        self._retry("copy_object", to, CopySource={"Bucket": self.bucket, "Key": self._key(name)})

    def move(self, name: str, to: str) -> None:
        try:
            self.copy(name, to)
            self.remove([name])
        except RequestFailed as e:
            if e.failure is not RequestFailure.NOT_FOUND:
                raise

    def url(self, name: str) -> str:
        return f"s3://{self.bucket}/{self._key(name)}"

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name

    def _retry(self, operation: str, name: str, **parameters: Any) -> Any:
        return self._client().retry(operation, Bucket=self.bucket, Key=self._key(name), **parameters)

    def _client(self) -> S3Client:
        return S3Client(self.settings, WAREHOUSE_LIMITS)
