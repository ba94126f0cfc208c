"""Moves a file to another file system, where a rename does not work.

The file is copied under a hidden name beside its new place, synced, given its name without replacing anything, and only
then removed from its old place. So wherever the process is killed, a name that a table may reference is the whole file
or no file, and the whole file has one of the two recorded names. Hidden names match no table layout: listings report
files that a killed process leaves under one, and nobody reads them as data. """

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from strandline.core import failpoints
from strandline.storage import durable
from strandline.storage.durable import new_file, sync_folder

CHANGED = "it has changed since it was listed"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Stat:
    """A file as it is now; a recheck compares it with what was listed."""

    size: int
    modified_ns: int | None


def move_away(path: str, to: str, expected: Stat) -> str | None:
    """Moves the file, unless it has changed. Returns None if it is only in its new place; otherwise why it stayed."""
    hidden = _beside(path, "aside")
    if os.path.lexists(hidden):
        return f"{hidden} was left by a move that was killed: restore that file first, or check it"
    copied = _copy(path, to, expected)
    if copied is None:
        return CHANGED
    failpoints.hit("move_file.before_original_goes")
    # A file that replaces the original from here on is hidden, not deleted: a rename can be undone.
    try:
        Path(path).rename(hidden)
    except FileNotFoundError:
        return CHANGED
    except OSError:
        os.unlink(to)  # otherwise every run would leave another copy of a file that cannot be removed
        raise
    failpoints.hit("move_file.after_original_hidden")
    if _identity(os.lstat(hidden)) == copied:
        os.unlink(hidden)
        return None
    if not _rename_new(hidden, path):
        return f"it was replaced twice while it was moved; the first replacement is {hidden}"
    os.unlink(to)
    return CHANGED


def move_back(kept_at: str, to: str) -> bool:
    """Moves the copy back to its old place. False if there is a file at `to`."""
    try:
        if _copy(kept_at, to, None) is None:
            raise OSError(errno.EBUSY, "it changes while it is copied")
    except FileExistsError:
        return False
    failpoints.hit("move_file.before_kept_goes")
    os.unlink(kept_at)
    return True


def clean_up(kept_at: str, path: str) -> None:
    """Handles the hidden file that a killed `move_away` left: removes it if `kept_at` is its copy. Otherwise it is a
    file that replaced the original meanwhile, so it gets its name back."""
    hidden = _beside(path, "aside")
    if not os.path.lexists(hidden):
        return
    if same_bytes(hidden, kept_at):
        os.unlink(hidden)
    else:
        _rename_new(hidden, path)


def part_of(path: str) -> str:
    """The partial file that a killed copy leaves beside its target. The next copy to the target starts again."""
    return _beside(path, "part")


def same_bytes(one: str, other: str) -> bool:
    try:
        with _opened(one) as a, _opened(other) as b:
            first, second = os.fstat(a.fileno()), os.fstat(b.fileno())
            if os.path.samestat(first, second):
                return True
            if first.st_size != second.st_size:
                return False
            while (chunk := a.read(_CHUNK_BYTES)) == b.read(_CHUNK_BYTES):
                if not chunk:
                    return True
    except FileNotFoundError:
        return False
    return False


def _copy(source: str, target: str, expected: Stat | None) -> tuple[int, ...] | None:
    """The identity of the copied file. None, without a copy, if the file was not as expected, or changed meanwhile."""
    part = part_of(target)
    try:
        with _opened(source) as original:
            before = os.fstat(original.fileno())
            if not stat.S_ISREG(before.st_mode):
                return None
            if expected is not None and Stat(before.st_size, before.st_mtime_ns) != expected:
                return None
            Path(part).unlink(missing_ok=True)  # left by a copy that was killed
            with new_file(Path(part)) as copy:
                shutil.copyfileobj(original, copy, _CHUNK_BYTES)
                copy.flush()
                with suppress(PermissionError):
                    os.fchown(copy.fileno(), before.st_uid, before.st_gid)
                os.fchmod(copy.fileno(), stat.S_IMODE(before.st_mode))
                os.utime(copy.fileno(), ns=(before.st_atime_ns, before.st_mtime_ns))
            after = os.fstat(original.fileno())
            whole = Path(part).stat().st_size == after.st_size
            if not whole or _identity(before) != _identity(after):
                return None
        link_new(part, target)
        sync_folder(Path(target).parent)
        return _identity(before)
    finally:
        Path(part).unlink(missing_ok=True)


def link_new(source: str, target: str) -> None:
    """Adds a second name, or renames if the file system has no links. Raises `FileExistsError` instead of replacing."""
    try:
        durable.link_new(Path(source), Path(target))
    except OSError as e:
        if e.errno != errno.ENOTSUP:
            raise
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from e
        Path(source).rename(target)


def _rename_new(source: str, target: str) -> bool:
    try:
        link_new(source, target)
    except FileExistsError:
        return False
    sync_folder(Path(target).parent)
    Path(source).unlink(missing_ok=True)
    return True


def _opened(path: str) -> BinaryIO:
    """Does not follow a link, nor wait for the writer of a pipe."""
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK))


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _beside(path: str, why: str) -> str:
    """Deterministic, so that it is found again; short, because the file's name may have the maximum length."""
    folder, _, name = path.rpartition("/")
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
    return f"{folder}/.strandline-{why}-{digest}"
