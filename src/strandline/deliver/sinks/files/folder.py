"""A local folder in which files appear only complete, and stay after a power cut."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from strandline.core.errors import StorageError
from strandline.core.types import Seq
from strandline.deliver.sinks.blobs import names
from strandline.deliver.sinks.blobs.blob_sink import SUPERSEDED, LaneListing, lane_listing
from strandline.storage.durable import describe, link_new, make_folders, make_folders_in, new_file, rename, sync_folder

TEMPORARY = "_tmp"
_AWAY = "~"  # begins the name of a folder that is being removed


@dataclass(frozen=True, slots=True)
class Folder:
    """The place of a `files` sink."""

    base: str
    home: str  # the dataset's folder inside; temporary files are there, on the same disk as the objects

    def path(self, name: str) -> Path:
        return Path(self.base, name)

    def temporary(self, token: str) -> Path:
        """Only `fence` makes this folder: a deliverer whose folder is gone has been superseded."""
        return Path(self.base, self.home, TEMPORARY, token)

    def destination(self, dataset: str) -> str:
        return names.file_destination(self.base, dataset)

    def list_lane(self, lane: str, after: Seq | None) -> LaneListing:
        there = self.names(lane)
        # after the objects: one that is removed in between is below a watermark
        marks = self.names(f"{lane}/{names.MARKS}")
        mark = lane_listing((), marks).mark
        if after is not None and mark is not None:
            there = [name for name in there if names.ends_beyond(name, mark)]
        listing = lane_listing(((name, None) for name in there), marks)
        if listing.objects:
            # The deliverer that linked them may have died before it synced the folder.
            with _explained(self.path(lane)):
                sync_folder(self.path(lane))
        return listing

    def names(self, folder: str) -> list[str]:
        path = self.path(folder)
        with _explained(path):
            try:
                return os.listdir(path)
            except (FileNotFoundError, NotADirectoryError):
                return []

    def read(self, name: str) -> bytes | None:
        path = self.path(name)
        with _explained(path):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                return None

    def create(self, name: str, body: bytes) -> bool:
        path = self.path(name)
        with _explained(path):
            self.make(f"{self.home}/{TEMPORARY}")
            temporary = self.temporary(uuid.uuid4().hex)
            try:
                with new_file(temporary) as file:
                    file.write(body)
                self.make(name.rpartition("/")[0])
                return rename_into_place(temporary, path)
            except FileNotFoundError as e:
                raise StorageError(SUPERSEDED) from e
            finally:
                temporary.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        path = self.path(name)
        with _explained(path):
            path.unlink(missing_ok=True)

    def make(self, folder: str) -> None:
        """Makes the folder and its parents durable, even those that another process made before it died."""
        make_folders(Path(self.base))
        make_folders_in(Path(self.base), folder)

    def make_lane(self, lane: str) -> None:
        self.make(lane)
        if lane.rpartition("/")[2] == names.NOT_PARTITIONED_FOLDER:
            return
        path = self.path(lane)
        other = path.with_name(path.name.swapcase())
        if other != path and other.exists() and other.samefile(path):
            raise StorageError(
                f"the file system at {self.base} does not tell upper and lower case apart, so two partitions could "
                "lie in one folder",
                hint="Choose a folder on another file system for this sink.",
            )

    def fence(self, token: str) -> None:
        """Removes the temporary folders of all other deliverers: what they wrote so far can no longer get a name."""
        place = self.temporary("")
        with _explained(place):
            self.make(f"{self.home}/{TEMPORARY}/{token}")
            for entry in list(os.scandir(place)):
                if entry.name == token:
                    continue
                away = place / f"{_AWAY}{uuid.uuid4().hex}"
                try:
                    # Renamed first: a folder that is half removed would still accept a new file.
                    rename(Path(entry.path), away)
                except FileNotFoundError:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(away, ignore_errors=True)
                else:
                    away.unlink(missing_ok=True)
            sync_folder(place)


def rename_into_place(temporary: Path, path: Path) -> bool:
    """Makes a finished file visible. False if the name is taken; durable in both cases."""
    try:
        link_new(temporary, path)
        created = True
    except FileExistsError:
        created = False
    except OSError as e:
        if e.errno != errno.ENOTSUP:
            raise
        raise StorageError(
            f"the file system at {path.parent} has neither hard links nor a rename that does not replace, "
            "so two deliverers could overwrite each other's objects",
            hint="Choose a folder on another file system for this sink.",
        ) from e
    sync_folder(path.parent)
    return created


@contextmanager
def _explained(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise StorageError(describe(e, place)) from e
