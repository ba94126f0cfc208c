"""Resolves local paths that go through symbolic links.

Storage is listed under real paths, without following links. A reference through a link means the real file, and the
real file must count as referenced.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from strandline.reconcile.paths import Roots, is_under, key


def other_spellings(folders: Iterable[str]) -> dict[str, list[str]]:
    """Local folders that storage has under several names (mounts, links, names that differ only in case): each as the
    others spell it. A folder may also be inside another one under such a name."""
    local = sorted({folder for folder in folders if folder.startswith("/")})
    identify = cache(_identity)
    first: dict[tuple[int, int], str] = {}
    for folder in local:
        if (identity := identify(folder)) is not None:
            first.setdefault(identity, folder)
    spelled: dict[str, list[str]] = {}
    for folder in local:
        at = folder
        while len(at) > 1:
            identity = identify(at)
            other = None if identity is None else first.get(identity)
            if other is not None and other != at:
                spelled.setdefault(folder, []).append(other + folder[len(at) :])
            at = os.path.dirname(at)
    return spelled


def same_folders(unknown: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """Unknown folders that are the same as a known one, or as a folder above it, under another name: a mount can give a
    folder two names, and no link shows it. By the unknown name."""
    names: dict[tuple[int, int], str] = {}
    for folder in known:
        at = folder
        while at.startswith("/") and at != "/" and (identity := _identity(at)) not in names:
            if identity is not None:
                names[identity] = at
            at = os.path.dirname(at)
    found = {folder: names.get(identity) for folder in unknown if (identity := _identity(folder)) is not None}
    return {folder: other for folder, other in found.items() if other is not None and other != folder}


def _identity(folder: str) -> tuple[int, int] | None:
    try:
        found = Path(folder).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


class RealPaths:
    def __init__(self, folders: Iterable[str], links: Sequence[str]) -> None:
        """`folders`: where references are expected. `links`: links that a listing found below them."""
        local = sorted({folder for folder in folders if folder.startswith("/")})
        self._real = {folder: key(os.path.realpath(folder)) for folder in local}
        self.plain = tuple(f"{folder}/" for folder, real in self._real.items() if real == folder)
        self._links = Roots(key(link) for link in links)
        self._has_links = bool(links)
        self._parents: dict[str, str] = {}

    def also(self, many: Iterable[Sequence[str]]) -> set[str]:
        """The real paths of those that go through a link."""
        found: set[str] = set()
        for paths in many:
            quick = not self._has_links and bool(self.plain)
            for path in [p for p in paths if not p.startswith(self.plain)] if quick else paths:
                if path.startswith("/"):
                    real = self._of(path)
                    if real != path:
                        found.add(real)
        return found

    def _of(self, path: str) -> str:
        if self._has_links and self._links.of(path) is not None:
            return key(os.path.realpath(path))
        for folder, real in self._real.items():
            if is_under(path, folder):
                return real + path[len(folder) :]
        parent, _, name = path.rpartition("/")
        if parent not in self._parents:
            self._parents[parent] = key(os.path.realpath(parent or "/")).rstrip("/")
        return f"{self._parents[parent]}/{name}"
