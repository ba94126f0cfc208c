"""Where the content of rows that were set aside lies: objects in the warehouse, one for each.

    _strandline/quarantine/<sink's instance>/<generation>/<hash of the lane>/<number>.arrow

An object is durable before the ledger tells of it. One that the ledger does not know is from a deliverer that died in
between, and is replaced by the next one.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from strandline.core.errors import StorageError
from strandline.core.settings import LakeConfig, resolve_key
from strandline.deliver.sink import Address
from strandline.deliver.sinks.files.folder import Folder, words_for, write_new
from strandline.storage.durable import sync_folder

if TYPE_CHECKING:
    from obstore.store import S3Store

HOME = "_strandline"
_HASH_DIGITS = 16


def object_name(address: Address, number: int) -> str:
    """Relative to the warehouse."""
    lane = hashlib.sha256(f"{address.dataset}\0{address.partition}".encode()).hexdigest()[:_HASH_DIGITS]
    return f"{folder_name(address.instance)}/{address.generation}/{lane}/{number}.arrow"


def folder_name(instance: str) -> str:
    return f"{HOME}/quarantine/{instance}"


class QuarantineObjects(Protocol):
    """Raises `StorageError`."""

    def put(self, name: str, body: bytes) -> None:
        """Durable when it returns; replaces what is there."""

    def get(self, name: str) -> bytes | None: ...

    def remove(self, name: str) -> None:
        """Fine where there is none."""

    def names(self, instance: str) -> list[str]:
        """Of all objects of a sink, whether the ledger tells of them or not."""

    def place(self, name: str) -> str:
        """What a person looks for."""


def open_objects(config: LakeConfig) -> QuarantineObjects:
    folder = config.warehouse_folder
    return S3Objects(config) if folder is None else LocalObjects(folder)


@dataclass(frozen=True)
class LocalObjects:
    warehouse: Path

    def put(self, name: str, body: bytes) -> None:
        path = self.warehouse / name
        if not self.warehouse.is_dir():  # a folder in its place would take rows that nobody finds
            raise StorageError(f"the warehouse {self.warehouse} is not there", hint="Is its disk mounted?")
        with _told(path):
            Folder(str(self.warehouse), HOME).make(name.rpartition("/")[0])
            temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
            try:
                write_new(temporary, body)
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
            sync_folder(path.parent)

    def get(self, name: str) -> bytes | None:
        path = self.warehouse / name
        with _told(path):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                return None

    def remove(self, name: str) -> None:
        path = self.warehouse / name
        with _told(path):
            path.unlink(missing_ok=True)

    def names(self, instance: str) -> list[str]:
        folder = self.warehouse / folder_name(instance)
        with _told(folder):
            # What a put has left behind counts, too: its name begins with a dot.
            return sorted(str(p.relative_to(self.warehouse)) for p in folder.rglob("*") if p.is_file())

    def place(self, name: str) -> str:
        return str(self.warehouse / name)


@contextmanager
def _told(place: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise StorageError(words_for(e, place)) from e


class S3Objects:
    def __init__(self, config: LakeConfig) -> None:
        self._config = config
        bucket, _, prefix = config.warehouse_url.removeprefix("s3://").partition("/")
        self._bucket, self._prefix = bucket, prefix.strip("/")
        self._opened: S3Store | None = None

    def put(self, name: str, body: bytes) -> None:
        import obstore

        with self._told(name):
            obstore.put(self._store(), self._key(name), body)

    def get(self, name: str) -> bytes | None:
        import obstore
        from obstore.exceptions import NotFoundError

        with self._told(name):
            try:
                return bytes(obstore.get(self._store(), self._key(name)).bytes())
            except (FileNotFoundError, NotFoundError):
                return None

    def remove(self, name: str) -> None:
        import obstore
        from obstore.exceptions import NotFoundError

        with self._told(name):
            try:
                obstore.delete(self._store(), self._key(name))
            except (FileNotFoundError, NotFoundError):
                return

    def names(self, instance: str) -> list[str]:
        import obstore

        start = self._key(folder_name(instance)) + "/"
        beyond = len(self._prefix) + 1 if self._prefix else 0
        with self._told(folder_name(instance)):
            return sorted(m["path"][beyond:] for page in obstore.list(self._store(), start) for m in page)

    def place(self, name: str) -> str:
        return f"s3://{self._bucket}/{self._key(name)}"

    def _key(self, name: str) -> str:
        return "/".join(filter(None, (self._prefix, name)))

    @contextmanager
    def _told(self, name: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError) as e:
            raise StorageError(f"{self.place(name)} cannot be read or written: {type(e).__name__}") from e

    def _store(self) -> S3Store:
        from obstore.store import S3Store

        if self._opened is None:
            warehouse = self._config.settings.warehouse
            keys = {
                "endpoint": warehouse.endpoint,
                "access_key_id": resolve_key(warehouse.access_key),
                "secret_access_key": resolve_key(warehouse.secret_key),
            }
            self._opened = S3Store(
                self._bucket,
                region=warehouse.region,
                client_options={"allow_http": True, "timeout": "30s"},
                virtual_hosted_style_request=False,
                **{k: v for k, v in keys.items() if v is not None},  # type: ignore[arg-type]
            )
        return self._opened
