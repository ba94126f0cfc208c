"""Local storage, as the sweep acts on it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from strandline.core import failpoints
from strandline.core.errors import StorageError
from strandline.core.records.reconcile_records import StorageKind
from strandline.reconcile.model import Move, Stat
from strandline.reconcile.storage.worker import is_gone, scan
from strandline.storage import cross_device_move
from strandline.storage.cross_device_move import CHANGED
from strandline.storage.durable import make_folders, rename, sync_folder


class LocalStore:
    @property
    def kind(self) -> StorageKind:
        return StorageKind.LOCAL

    def find_file(self, path: str) -> Stat | None:
        # Does not follow a link: its target is not what was listed here.
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as e:
            raise StorageError(f"{path} cannot be checked: {_said(e)}") from e
        if not stat.S_ISREG(found.st_mode):
            raise StorageError(f"{path} is not a regular file")
        return Stat(found.st_size, found.st_mtime_ns)

    def same(self, listed: Stat, now: Stat) -> bool:
        return listed == now

    def set_aside(self, files: Sequence[Move]) -> Mapping[str, str | None]:
        outcome: dict[str, str | None] = {}
        touched: set[Path] = set()
        for file in files:
            try:
                outcome[file.path] = self._set_aside(file)
                touched |= {Path(file.path).parent, Path(file.to).parent}
            except StorageError as e:
                outcome[file.path] = e.message
            except OSError as e:
                outcome[file.path] = f"it cannot be moved: {_said(e)}"
            failpoints.hit("reconcile.between_files")
        _synced(touched)
        return outcome

    def _set_aside(self, file: Move) -> str | None:
        target = Path(file.to)
        make_folders(target.parent)
        if os.path.lexists(target):
            return "there is a file in quarantine already where it was to go"
        if self.find_file(file.path) != file.expected:
            return CHANGED
        try:
            rename(Path(file.path), target)
        except FileNotFoundError:
            return CHANGED
        except OSError as e:
            if e.errno != errno.EXDEV:
                raise
            return cross_device_move.move_away(file.path, file.to, file.expected)
        # If somebody replaced the file after the check, the new one was moved: it goes back.
        if self.find_file(file.to) != file.expected:
            back = self.bring_back(file.to, file.path)
            return CHANGED if back else "it was replaced twice while it was moved; what was there is in quarantine"
        return None

    def bring_back(self, kept_at: str, to: str) -> bool:
        try:
            make_folders(Path(to).parent)
            cross_device_move.clean_up(kept_at, to)
            back = self._bring_back(kept_at, to)
        except OSError as e:
            raise StorageError(f"{to} cannot be brought back: {_said(e)}") from e
        if back:
            _synced({Path(to).parent, Path(kept_at).parent})
        return back

    def _bring_back(self, kept_at: str, to: str) -> bool:
        try:
            cross_device_move.link_new(kept_at, to)
        except (FileExistsError, FileNotFoundError):
            return False
        except OSError as e:
            if e.errno != errno.EXDEV:
                raise
            return cross_device_move.move_back(kept_at, to)
        sync_folder(Path(to).parent)
        failpoints.hit("move_file.before_kept_goes")
        Path(kept_at).unlink(missing_ok=True)
        return True

    def same_content(self, one: str, other: str) -> bool:
        try:
            return cross_device_move.same_bytes(one, other)
        except OSError as e:
            raise StorageError(f"{one} and {other} cannot be compared: {_said(e)}") from e

    def tail(self, path: str, count: int) -> bytes:
        try:
            with open(path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - count))
                return file.read(count)
        except OSError as e:
            raise StorageError(f"{path} cannot be read: {_said(e)}") from e

    def files_under(self, folder: str) -> Iterator[str]:
        waiting = [folder]
        while waiting:
            at = waiting.pop()
            try:
                for files, folders, _ in scan(at):
                    yield from (f"{at}/{name}" for name in files)
                    waiting += [f"{at}/{name}" for name in folders]
            except OSError as e:
                if not is_gone(e):
                    raise StorageError(f"{at} cannot be listed: {_said(e)}") from e

    def delete(self, paths: Sequence[str]) -> Mapping[str, str]:
        failed: dict[str, str] = {}
        for path in paths:
            try:
                Path(cross_device_move.part_of(path)).unlink(missing_ok=True)
                os.unlink(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as e:
                failed[path] = _said(e)
        _synced({Path(path).parent for path in paths})
        return failed


def _synced(folders: set[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # a missing folder has no files; a later check corrects the record
            sync_folder(folder)


def _said(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
