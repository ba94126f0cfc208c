"""Scans one folder for names only. Standard library only: workers import it in a few milliseconds."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

NAMES_AT_ONCE = 50_000

Part = tuple[list[str], list[str], list[str]]  # files, folders, and others: links, sockets, devices


def scan(folder: str) -> Iterator[Part]:
    """In parts, so that a folder of a million files does not become one message. Follows no link, and asks the file
    system only for names and types: a `stat` per file would cost more than all the rest."""
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
    """The folder vanished after it was listed, or became something else."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR)
