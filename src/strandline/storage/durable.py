"""Durable writes on a local disk: a file is whole or absent, and what was written survives a power cut. Only
`cache_file` leaves the second out, for what can be made again."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO

# errors of a file system that has no hard links, or refuses this one
NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_BUFFER_BYTES = 1 << 16


def sync_data(fd: int) -> None:
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(fd)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Creates a file that must not exist yet. Its content is durable at the end of the block, its name after
    `sync_folder`. If the block fails, the file is removed."""
    with path.open("xb", buffering=_BUFFER_BYTES) as file:
        try:
            yield file
            file.flush()
            sync_data(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise


@contextmanager
def whole_file(path: Path, *, replace: bool = True, sync_name: bool = True) -> Iterator[BinaryIO]:
    """Writes under a temporary name beside `path`, and renames at the end of the block. With `replace=False`, raises
    `FileExistsError` if the name is taken. With `sync_name=False`, the caller syncs the folder."""
    temporary = _temporary(path)
    with new_file(temporary) as file:
        yield file
    try:
        put_in_place(temporary, path, replace=replace)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if sync_name:
        sync_folder(path.parent)


def write_file(
    path: Path, body: bytes | memoryview, *, replace: bool = True, sync_name: bool = True, mode: int | None = None
) -> None:
    """As `whole_file`, for content that is in memory: with the fewest system calls, because each of them releases the
    interpreter to other threads. `mode`: the file's permissions, if not the usual ones."""
    temporary = _temporary(path)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else 0o600)
    try:
        try:
            if mode is not None:
                os.fchmod(fd, mode)
            _write_all(fd, body)
            sync_data(fd)
        finally:
            os.close(fd)
        put_in_place(temporary, path, replace=replace)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if sync_name:
        sync_folder(path.parent)


@contextmanager
def cache_file(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """As `whole_file`, but nothing is synced: a power cut may lose the file, or leave it damaged under its name. For
    content that its reader checks and can make again."""
    temporary = _temporary(path)
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(fd, "wb", buffering=_BUFFER_BYTES) as file:
            yield file
        rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def finish_file(finished: Path, path: Path, *, replace: bool = True) -> None:
    """Gives a file that another program wrote, or that was closed before it was known to be complete, its name; durable
    when it returns. With `replace=False`, raises as `link_new`."""
    with finished.open("rb") as file:
        sync_data(file.fileno())
    put_in_place(finished, path, replace=replace)
    sync_folder(path.parent)


def _temporary(path: Path) -> Path:
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")


def _write_all(fd: int, body: bytes | memoryview) -> None:
    left = memoryview(body).cast("B")
    while left:
        left = left[os.write(fd, left) :]


def put_in_place(temporary: Path, path: Path, *, replace: bool) -> None:
    """With `replace=False`, raises as `link_new`. The caller syncs the folder."""
    if replace:
        rename(temporary, path)
    else:
        link_new(temporary, path)
        temporary.unlink(missing_ok=True)


def make_folders(folder: Path) -> None:
    """Creates the folder and those above it, durably: a crash that removes a folder removes the files in it."""
    if not folder.is_dir():
        make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def make_folders_in(base: Path, inside: str) -> None:
    """Creates the folders from `base` to `inside`, durably, even if another process made them and died before it
    synced them. Never creates `base` itself: if it is missing (a disk that is not mounted), a folder in its place would
    hide it."""
    at = base
    for part in Path(inside).parts:
        above, at = at, at / part
        at.mkdir(exist_ok=True)
        sync_folder(above)


def rename(source: Path, target: Path) -> None:
    """Renames a file, which replaces one at `target`, or a folder. Raises `OSError` with EXDEV if the two are on
    different file systems. The caller syncs the folders."""
    source.rename(target)


def link_new(source: Path, target: Path) -> None:
    """Gives `source` a second name, or moves it if the file system has no hard links. Raises `FileExistsError` instead
    of replacing a file, and `OSError` with ENOTSUP if that cannot be ruled out."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as e:
        if e.errno not in NO_LINKS:
            raise
        _rename_new(source, target)


def _rename_new(source: Path, target: Path) -> None:
    number = errno.ENOSYS
    if (rename := _renameat2()) is not None:
        if rename(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE) == 0:
            return
        number = ctypes.get_errno()
    if number == errno.EINVAL or number in NO_LINKS:
        number = errno.ENOTSUP
    raise OSError(number, os.strerror(number), str(target))


@cache
def _renameat2() -> ctypes._NamedFuncPointer | None:
    try:
        found = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return None
    found.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return found


def describe(error: OSError, place: Path | str) -> str:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"there is no space left on the disk of {place}"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"permission denied: {error.filename or place} cannot be read or written"
        case _:
            return f"{error.filename or place}: {error.strerror or type(error).__name__}"
