"""The arbiter's record in a folder that all sites can mount.

Each version is a file with the next number, and a put creates that file only if it does not exist yet. There is no
lock, so a process that stops in the middle of a put blocks nobody.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from pathlib import Path

from strandline.core.errors import StorageError
from strandline.core.sites.arbiter import CellMoved, CellUnclear, StoredRecord, count_and_digest, version_of
from strandline.storage.durable import describe, link_new, new_file, sync_folder

# A process with an old listing must find the next number taken.
_VERSIONS_KEPT = 64


class FolderCell:
    def __init__(self, folder: Path, lake: str) -> None:
        self._folder = folder
        self._lake = lake
        self._name = re.compile(rf"{re.escape(lake)}\.(\d+)\.json")

    @property
    def place(self) -> str:
        return str(self._folder)

    def read(self) -> StoredRecord | None:
        try:
            while versions := self._versions():
                newest = versions[-1]
                with contextlib.suppress(FileNotFoundError):  # another put removed it: there are many newer ones
                    body = self._file(newest).read_bytes()
                    return StoredRecord(body, version_of(newest, body))
        except OSError as e:
            raise self._unusable(e) from e
        return None

    def write(self, body: bytes, *, over: str | None) -> str:
        number = 1 if over is None else self._replaced(over) + 1
        temporary = self._folder / f"{self._lake}.{uuid.uuid4().hex}.tmp"
        try:
            with new_file(temporary) as file:
                file.write(body)
        except OSError as e:
            raise self._unusable(e) from e
        try:
            link_new(temporary, self._file(number))
        except FileExistsError:
            raise CellMoved from None
        except OSError as e:
            raise self._unusable(e) from e
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        try:
            sync_folder(self._folder)
            versions = self._versions()
            if versions[-1] != number:
                # Other puts landed meanwhile: they replaced ours, or had already removed this number again.
                raise CellMoved
            for old in versions[:-_VERSIONS_KEPT]:
                self._file(old).unlink(missing_ok=True)
        except OSError as e:
            raise CellUnclear(f"the arbiter's folder failed: {describe(e, self._folder)}") from e
        return version_of(number, body)

    def _replaced(self, over: str) -> int:
        """The number of the version that the put replaces. Raises CellMoved if it is gone, or has other content."""
        number, _ = count_and_digest(over)
        try:
            body = self._file(number).read_bytes()
        except FileNotFoundError:
            raise CellMoved from None
        except OSError as e:
            raise self._unusable(e) from e
        if version_of(number, body) != over:
            raise CellMoved
        return number

    def _versions(self) -> list[int]:
        found = (self._name.fullmatch(file.name) for file in self._folder.iterdir())
        return sorted(int(name.group(1)) for name in found if name is not None)

    def _file(self, number: int) -> Path:
        return self._folder / f"{self._lake}.{number}.json"

    def _unusable(self, error: OSError) -> StorageError:
        return StorageError(
            f"the arbiter's folder cannot be used: {describe(error, self._folder)}",
            hint="Check replication.arbiter: the folder must exist and be mounted.",
        )
