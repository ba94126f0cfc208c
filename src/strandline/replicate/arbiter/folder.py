"""The arbiter's record in a folder that all sites reach.

Each version is a file of its own, and a put gives the next number to a file that must not be there yet. There is no
lock: a process that is stopped in the middle of a put keeps nobody else from putting.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from pathlib import Path

from strandline.core.errors import StorageError
from strandline.core.sites.arbiter import CellMoved, CellUnclear, StoredRecord, count_and_digest, version_of
from strandline.storage.durable import describe, link_new, new_file, sync_folder

# Whoever read an old listing should find the next name taken.
_KEPT = 64


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
                with contextlib.suppress(FileNotFoundError):  # removed since: there are many newer ones
                    body = self._file(newest).read_bytes()
                    return StoredRecord(body, version_of(newest, body))
        except OSError as e:
            raise self._away(e) from e
        return None

    def write(self, body: bytes, *, over: str | None) -> str:
        number = 1 if over is None else self._replaced(over) + 1
        temporary = self._folder / f"{self._lake}.{uuid.uuid4().hex}.tmp"
        try:
            with new_file(temporary) as file:
                file.write(body)
        except OSError as e:
            raise self._away(e) from e
        try:
            link_new(temporary, self._file(number))
        except FileExistsError:
            raise CellMoved from None
        except OSError as e:
            raise self._away(e) from e
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        try:
            sync_folder(self._folder)
            versions = self._versions()
            if versions[-1] != number:
                # Others were faster, by so much that this number had been removed again; or they have replaced ours.
                raise CellMoved
            for old in versions[:-_KEPT]:
                self._file(old).unlink(missing_ok=True)
        except OSError as e:
            raise CellUnclear(f"the arbiter's folder failed: {describe(e, self._folder)}") from e
        return version_of(number, body)

    def _replaced(self, over: str) -> int:
        """The number of the version that a put names. Raises CellMoved if it is not there, or another one now."""
        number, _ = count_and_digest(over)
        try:
            body = self._file(number).read_bytes()
        except FileNotFoundError:
            raise CellMoved from None
        except OSError as e:
            raise self._away(e) from e
        if version_of(number, body) != over:
            raise CellMoved
        return number

    def _versions(self) -> list[int]:
        found = (self._name.fullmatch(file.name) for file in self._folder.iterdir())
        return sorted(int(name.group(1)) for name in found if name is not None)

    def _file(self, number: int) -> Path:
        return self._folder / f"{self._lake}.{number}.json"

    def _away(self, error: OSError) -> StorageError:
        return StorageError(
            f"the arbiter's folder cannot be used: {describe(error, self._folder)}",
            hint="Check replication.arbiter: the folder must be there, and mounted.",
        )
