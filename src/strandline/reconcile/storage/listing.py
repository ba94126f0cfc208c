"""The contents of storage, folder by folder, as `inventory.py`, `object_inventory.py` and `inventory_file.py` list
it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from strandline.reconcile.model import PrefixFailure
from strandline.reconcile.paths import Roots

OnFound = Callable[[int], None]  # called with the number of further files


@dataclass(slots=True)
class ListedFolder:
    names: list[str] = field(default_factory=list)
    # None, like `modified_ns`, if the listing has no sizes. A local listing has none: candidates are checked.
    sizes: array[int] | None = None
    modified_ns: array[int] | None = None  # 0 if unknown

    def add(self, name: str, size: int, modified_ns: int) -> None:
        if self.sizes is None or self.modified_ns is None:
            self.sizes, self.modified_ns = array("q"), array("q")
        self.names.append(name)
        self.sizes.append(size)
        self.modified_ns.append(modified_ns)


@dataclass(slots=True)
class Listing:
    """Complete below `roots`, except for `failures`."""

    roots: tuple[str, ...]
    folders: dict[str, ListedFolder] = field(default_factory=dict)  # by canonical path, without a trailing slash
    failures: list[PrefixFailure] = field(default_factory=list)
    # symbolic links, and whatever else is neither file nor folder; never followed, never touched
    links: list[str] = field(default_factory=list)

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

    def folder(self, path: str) -> ListedFolder:
        found = self.folders.get(path)
        if found is None:
            found = self.folders[path] = ListedFolder()
        return found

    def sorted_folders(self) -> Iterator[tuple[str, ListedFolder]]:
        for path in sorted(self.folders):
            yield path, self.folders[path]

    def fail(self, prefix: str, why: str, *, timed_out: bool = False) -> None:
        self.failures.append(PrefixFailure(prefix, why, timed_out))


def outermost(roots: Iterable[str]) -> tuple[str, ...]:
    """Sorted, without roots that are inside another one."""
    every = {root.rstrip("/") for root in roots if root.rstrip("/")}
    inner = Roots(every)
    return tuple(sorted(root for root in every if inner.of(root.rpartition("/")[0]) is None))
