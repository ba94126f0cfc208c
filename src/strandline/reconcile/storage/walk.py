"""What one folder holds, by name only. Standard library only: workers import it in a few milliseconds."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

NAMES_AT_ONCE = 50_000

Part = tuple[list[str], list[str], list[str]]
"""Files, folders, and what is neither: links, sockets, devices."""


def scan(folder: str) -> Iterator[Part]:
    """In parts, so that a folder of a million files needs no message of that size. Never follows a link, and asks the
    file system for nothing but names and kinds: a `stat` for each file would cost more than all the rest."""
    files: list[str] = []
    folders: list[str] = []
    others: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                others.append(entry.name)
            elif entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            elif entry.is_file(follow_symlinks=False):
                files.append(entry.name)
                if len(files) == NAMES_AT_ONCE:
                    yield files, [], []
                    files = []
            else:
                others.append(entry.name)
    yield files, folders, others


def is_gone(error: OSError) -> bool:
    """The folder vanished between being seen and being opened, or became something else."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR)
