"""Opens local files for PyIceberg with plain Python.

PyIceberg's own implementation imports Arrow, and that takes longer than reading the metadata of a small lake. Code that
needs only metadata should not wait for it. Files elsewhere are still opened with PyIceberg's implementation.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from pyiceberg.io import FileIO, InputFile, OutputFile

from strandline.iceberg.metadata.metadata_peek import local_path
from strandline.storage.durable import make_folders, sync_data, sync_folder

if TYPE_CHECKING:
    from pyiceberg.io import InputStream, OutputStream
    from pyiceberg.typedef import Properties


class LocalFile(InputFile, OutputFile):
    def __init__(self, location: str, path: Path) -> None:
        super().__init__(location)
        self._path = path

    def __len__(self) -> int:
        return self._path.stat().st_size

    def exists(self) -> bool:
        return self._path.exists()

    def open(self, seekable: bool = True) -> InputStream:
        return cast("InputStream", self._path.open("rb"))

    def to_input_file(self) -> LocalFile:
        return self

    def create(self, overwrite: bool = False) -> OutputStream:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file: BinaryIO = self._path.open("wb" if overwrite else "xb")
        return cast("OutputStream", file)


class LocalFiles(FileIO):
    def __init__(self, properties: Properties) -> None:
        super().__init__(properties)
        self._elsewhere: FileIO | None = None

    def new_input(self, location: str) -> InputFile:
        path = local_path(location)
        return self._others().new_input(location) if path is None else LocalFile(location, path)

    def new_output(self, location: str) -> OutputFile:
        path = local_path(location)
        return self._others().new_output(location) if path is None else LocalFile(location, path)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        named = location if isinstance(location, str) else location.location
        if (path := local_path(named)) is None:
            self._others().delete(named)
        else:
            os.unlink(path)

    def _others(self) -> FileIO:
        if self._elsewhere is None:
            from pyiceberg.io.pyarrow import PyArrowFileIO

            self._elsewhere = PyArrowFileIO(self.properties)
        return self._elsewhere


class _SyncedFile(io.BufferedWriter):
    """A file whose content and name survive a power failure once it is closed."""

    def __init__(self, path: Path, mode: str) -> None:
        super().__init__(io.FileIO(path, mode))
        self._path = path

    def close(self) -> None:
        if not self.closed:
            self.flush()
            sync_data(self.fileno())
            super().close()
            sync_folder(self._path.parent)


class DurableFile(LocalFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        make_folders(self._path.parent)
        return cast("OutputStream", _SyncedFile(self._path, "wb" if overwrite else "xb"))


class DurableFiles(LocalFiles):
    """Makes files durable before a commit names them."""

    def new_output(self, location: str) -> OutputFile:
        path = local_path(location)
        return self._others().new_output(location) if path is None else DurableFile(location, path)
