"""What storage holds, folder by folder, as it was listed. Values only; `inventory.py`, `object_inventory.py` and
`inventory_file.py` make them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from strandline.reconcile.model import PrefixFailure
from strandline.reconcile.paths import Roots

OnFound = Callable[[int], None]
"""Told of so many more."""


@dataclass(slots=True)
class Folder:
    names: list[str] = field(default_factory=list)
    sizes: array[int] | None = None
    """Where the listing tells them; then `modified_ns` too. A local listing does not: candidates are looked at."""
    modified_ns: array[int] | None = None
    """0 where it was not told."""

    def add(self, name: str, size: int, modified_ns: int) -> None:
        if self.sizes is None or self.modified_ns is None:
            self.sizes, self.modified_ns = array("q"), array("q")
        self.names.append(name)
        self.sizes.append(size)
        self.modified_ns.append(modified_ns)


@dataclass(slots=True)
class Listing:
    """Complete below `roots`, but for `failures`."""

    roots: tuple[str, ...]
    folders: dict[str, Folder] = field(default_factory=dict)
    """By canonical path, without a slash at the end."""
    failures: list[PrefixFailure] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    """Symbolic links, and whatever else is neither a file nor a folder. Never followed, never touched."""

    @classmethod
    def of(
        cls,
        files: Iterable[tuple[str, int, int | None]],
        *,
        roots: Iterable[str],
        failures: Iterable[PrefixFailure] = (),
    ) -> Listing:
        """From path, size and time of each file."""
        listing = cls(outermost(roots), failures=list(failures))
        for path, size, modified_ns in files:
            folder, _, name = path.rpartition("/")
            listing.folder(folder).add(name, size, modified_ns or 0)
        return listing

    def __len__(self) -> int:
        return sum(len(folder.names) for folder in self.folders.values())

    def folder(self, path: str) -> Folder:
        found = self.folders.get(path)
        if found is None:
            found = self.folders[path] = Folder()
        return found

    def sorted_folders(self) -> Iterator[tuple[str, Folder]]:
        for path in sorted(self.folders):
            yield path, self.folders[path]

    def fail(self, prefix: str, why: str, *, timed_out: bool = False) -> None:
        self.failures.append(PrefixFailure(prefix, why, timed_out))


def outermost(roots: Iterable[str]) -> tuple[str, ...]:
    """Without those that lie in another one, sorted."""
    every = {root.rstrip("/") for root in roots if root.rstrip("/")}
    inner = Roots(every)
    return tuple(sorted(root for root in every if inner.of(root.rpartition("/")[0]) is None))
