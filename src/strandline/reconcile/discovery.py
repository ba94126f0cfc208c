"""Folders of the warehouse that no table owns: inside namespaces that have tables, and namespaces that have none.

The namespaces' own levels are walked, breadth first and sorted; what is neither a table nor leads to one is an unknown
root, and is listed as a whole. Known roots do not count: a lake with more tables than the cap still finds strangers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from strandline.reconcile.paths import OWN_FOLDER, is_under, key

SCANNED_PER_ROOT = 4

Children = Callable[[str], tuple[list[str], str | None]]
"""Names of the folders in a folder, and why it could not be read, if it could not."""


@dataclass(slots=True)
class Discovery:
    unknown: list[str] = field(default_factory=list)
    """Folders to list, besides those of tables."""
    levels: list[str] = field(default_factory=list)
    """Folders that lead to tables: files may lie in them, too."""
    failures: list[tuple[str, str]] = field(default_factory=list)
    is_cut: bool = False
    """There are more unknown folders than were to be looked into."""


def discover(warehouse: str, known: Iterable[str], children: Children, *, roots_max: int) -> Discovery:
    """`known`: keys of the folders that belong to tables, views and whoever else is known."""
    found = Discovery()
    if roots_max <= 0:
        return found
    top = warehouse.rstrip("/")
    owned = {folder.rstrip("/") for folder in known}
    leading = {above for folder in owned for above in _above(folder)}
    own = f"{top}/{OWN_FOLDER}"
    waiting = [top]
    scanned = 0
    while waiting:
        level = waiting.pop(0)
        found.levels.append(level)
        names, problem = children(level)
        if problem is not None:
            found.failures.append((level, problem))
        for name in sorted(names):
            folder = f"{level}/{name}"
            at = key(folder)
            if folder == own or at in owned or any(is_under(at, o) for o in (own,)):
                continue
            if at in leading:
                waiting.append(folder)
                continue
            scanned += 1
            if scanned > SCANNED_PER_ROOT * roots_max:
                found.is_cut = True
                return found
            if len(found.unknown) < roots_max:
                found.unknown.append(folder)
            else:
                found.is_cut = True
    return found


def _above(folder: str) -> Iterable[str]:
    at = folder.rpartition("/")[0]
    while at:
        yield at
        at = at.rpartition("/")[0]
