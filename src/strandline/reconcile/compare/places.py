"""Places that are not read: folders of tables and views that the catalog does not let us read, folders with two names,
and the part of a listing to consider. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from strandline.reconcile.compare.guard import overlaps
from strandline.reconcile.paths import OWN_FOLDER, Roots, above, below


class Unclaimed:
    """Finds folders of a warehouse that nobody owns, by name alone."""

    def __init__(self, warehouse: str, owned: Iterable[str]) -> None:
        """`owned`: keys of the folders of tables, views and everything else that is known."""
        self._top = warehouse.rstrip("/")
        self._owned = {folder.rstrip("/") for folder in owned} | {f"{self._top}/{OWN_FOLDER}"}
        self._leading = {outer for folder in self._owned for outer in above(folder)}

    def root_of(self, folder: str) -> str | None:
        """The outermost folder above this one that nobody owns; None if it has an owner, or leads to one that has."""
        at = self._top
        for name in (below(folder, self._top) or "").split("/"):
            at = f"{at}/{name}"
            if at in self._owned or not name:
                return None
            if at not in self._leading:
                return at
        return None


@dataclass(frozen=True, slots=True)
class Places:
    # keys of the folders of views, of tables of another catalog, and of tables that cannot be opened, by name
    other_tables: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unplaced: str | None = None  # one of those whose place is unknown: it may be anywhere
    # folders that storage has under a second name, as another table spells them
    spellings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unclaimed: Unclaimed | None = None
    # in a listing of the whole warehouse: the folders without an owner that it includes
    considered: Set[str] = frozenset()
    as_of_ns: int | None = None  # older files are surely in the listing; None: files older than the run
    # of tables that cannot be opened: the metadata file that the catalog names
    pointers: Mapping[str, str] = field(default_factory=dict)

    def overlapping(self, tables: Mapping[str, Sequence[str]]) -> Set[str]:
        """Those of these tables (by name: their folders) that share a folder with another table."""
        if self.unplaced is not None:
            return tables.keys()
        folders = {
            name: [spelled for folder in of for spelled in (folder, *self.spellings.get(folder, ()))]
            for name, of in (*self.other_tables.items(), *tables.items())
        }
        return overlaps(folders).keys() & tables.keys()

    def not_reported(self) -> Callable[[str], bool]:
        """Given the key of a folder that no table owns: whether it is not reported."""
        other_tables = Roots(folder for of in self.other_tables.values() for folder in of)

        def is_not_reported(folder: str) -> bool:
            root = None if self.unclaimed is None else self.unclaimed.root_of(folder)
            return other_tables.of(folder) is not None or (root is not None and root not in self.considered)

        return is_not_reported
