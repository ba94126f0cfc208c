"""A folder of this machine, as the sweep acts on it."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from strandline import failpoints
from strandline.drift import StorageKind
from strandline.durable import sync_data, sync_folder
from strandline.errors import StorageError
from strandline.reconcile.model import Move, Stat

CHANGED = "it is no longer what was listed"
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class LocalStore:
    @property
    def kind(self) -> StorageKind:
        return StorageKind.LOCAL

    def look(self, path: str) -> Stat | None:
        # Not through a link: what a link leads to is not what was listed here.
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as e:
            raise StorageError(f"{path} cannot be looked at: {_said(e)}") from e
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
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(target):
            return "there is a file in quarantine already where it was to go"
        if self.look(file.path) != file.expected:
            return CHANGED
        try:
            Path(file.path).rename(target)
        except FileNotFoundError:
            return CHANGED
        except OSError as e:
            if e.errno != errno.EXDEV:
                raise
            return self._carry(file)
        # Whoever replaced it after the look has had the new one moved: it goes back to where it was.
        if self.look(file.to) != file.expected:
            back = self.bring_back(file.to, file.path)
            return CHANGED if back else "it was replaced twice while it was moved; what was there is in quarantine"
        return None

    def _carry(self, file: Move) -> str | None:
        """To another file system: a whole copy first, then the file goes."""
        part = f"{file.to}.part"
        try:
            shutil.copy2(file.path, part, follow_symlinks=False)
            with open(part, "rb") as copy:
                sync_data(copy.fileno())
            if self.look(file.path) != file.expected:
                return CHANGED
            Path(part).rename(file.to)
            os.unlink(file.path)
        finally:
            Path(part).unlink(missing_ok=True)
        return None

    def bring_back(self, kept_at: str, to: str) -> bool:
        target = Path(to)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(kept_at, to, follow_symlinks=False)
            except FileExistsError:
                return False
            except FileNotFoundError:
                return False
            except OSError as e:
                if e.errno not in (*_NO_LINKS, errno.EXDEV):
                    raise
                if os.path.lexists(to):
                    return False
                shutil.move(kept_at, to)
            else:
                os.unlink(kept_at)
            _synced({target.parent, Path(kept_at).parent})
        except OSError as e:
            raise StorageError(f"{to} cannot be brought back: {_said(e)}") from e
        return True

    def delete(self, paths: Sequence[str]) -> Mapping[str, str]:
        failed: dict[str, str] = {}
        for path in paths:
            try:
                os.unlink(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as e:
                failed[path] = _said(e)
        _synced({Path(path).parent for path in paths})
        return failed


def _synced(folders: set[Path]) -> None:
    for folder in folders:
        try:
            sync_folder(folder)
        except OSError:
            continue  # one that is gone holds nothing; the record is corrected by looking


def _said(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
