"""Resolves local paths that go through symbolic links.

Storage is listed under real paths, without following links. A reference through a link means the real file, and the
real file must count as referenced.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from strandline.reconcile.paths import Roots, is_under, key


def other_spellings(folders: Iterable[str]) -> dict[str, list[str]]:
    """Local folders that storage has under several names (mounts, links, names that differ only in case): each as the
    others spell it. A folder may also be inside another one under such a name."""
    local = sorted({folder for folder in folders if folder.startswith("/")})
    identities: dict[str, tuple[int, int] | None] = {}

    def identity(folder: str) -> tuple[int, int] | None:
        if folder not in identities:
            try:
                found = Path(folder).stat()
            except OSError:
                identities[folder] = None
            else:
                identities[folder] = found.st_dev, found.st_ino
        return identities[folder]

    first: dict[tuple[int, int], str] = {}
    for folder in local:
        if (its := identity(folder)) is not None:
            first.setdefault(its, folder)
    spelled: dict[str, list[str]] = {}
    for folder in local:
        at = folder
        while len(at) > 1:
            its = identity(at)
            other = None if its is None else first.get(its)
            if other is not None and other != at:
                spelled.setdefault(folder, []).append(other + folder[len(at) :])
            at = os.path.dirname(at)
    return spelled


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
