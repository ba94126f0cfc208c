"""Where things lie that are not read: folders of somebody whom the catalog does not let us ask, other spellings of
folders, and how much of a listing is to be looked at. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from strandline.reconcile.compare.guard import overlaps
from strandline.reconcile.paths import OWN_FOLDER, Roots, above, below


class Unclaimed:
    """Folders of a warehouse that nobody owns, told by their names alone."""

    def __init__(self, warehouse: str, owned: Iterable[str]) -> None:
        """`owned`: keys of the folders of tables, views and whoever else is known."""
        self._top = warehouse.rstrip("/")
        self._owned = {folder.rstrip("/") for folder in owned} | {f"{self._top}/{OWN_FOLDER}"}
        self._leading = {outer for folder in self._owned for outer in above(folder)}

    def root_of(self, folder: str) -> str | None:
        """The outermost one that a folder lies in; None where it belongs to somebody, or leads there."""
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
    strangers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Keys of the folders of views, of tables of another catalog, and of tables that cannot be opened; by what they are
    called."""
    unplaced: str | None = None
    """One of them of which nobody knows where it lies: it may be anywhere."""
    spellings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Folders that storage has under a second name, as another table spells them."""
    unclaimed: Unclaimed | None = None
    looked_into: Set[str] = frozenset()
    """Of a listing that shows the whole warehouse: which folders that nobody owns are to be looked into."""
    as_of_ns: int | None = None
    """What is older is surely in the listing; None: that is so when the run began."""
    pointers: Mapping[str, str] = field(default_factory=dict)
    """Of tables that cannot be opened: the metadata file that the catalog names."""

    def overlapping(self, tables: Mapping[str, Sequence[str]]) -> Set[str]:
        """Those of these tables, given by their folders, that share a folder with somebody."""
        if self.unplaced is not None:
            return tables.keys()
        folders = {name: [*of, *self._other_names(of)] for name, of in (*self.strangers.items(), *tables.items())}
        return overlaps(folders).keys() & tables.keys()

    def _other_names(self, folders: Sequence[str]) -> list[str]:
        return [name for folder in folders for name in self.spellings.get(folder, ())]

    def passing_over(self) -> Callable[[str], bool]:
        """Of the key of a folder that no table owns: whether it is not to be spoken of."""
        strangers = Roots(folder for of in self.strangers.values() for folder in of)

        def passed_over(folder: str) -> bool:
            root = None if self.unclaimed is None else self.unclaimed.root_of(folder)
            return strangers.of(folder) is not None or (root is not None and root not in self.looked_into)

        return passed_over
