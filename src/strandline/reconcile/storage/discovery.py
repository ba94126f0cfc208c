"""Folders of the warehouse that no table owns: inside namespaces that have tables, and namespaces that have none.

The namespaces' own levels are walked, breadth first and sorted; what is neither a table nor leads to one is an unknown
root, and is listed as a whole. Known roots do not count: a lake with more tables than the cap still finds strangers.
Nor do empty folders, which a run may leave behind. Where there are more than the cap, another part of them has its turn
each day: what cannot be repaired in the first ones must not hide the rest for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from strandline.reconcile.paths import OWN_FOLDER, above, is_under, key

SCANNED_PER_ROOT = 4

Children = Callable[[str], tuple[list[str], str | None]]
"""Names of the folders in a folder, and why it could not be read, if it could not."""
Holding = Callable[[Sequence[str]], Sequence[str]]
"""Those of some folders that hold anything; also where that cannot be told."""


@dataclass(slots=True)
class Discovery:
    unknown: list[str] = field(default_factory=list)
    """Folders to list, besides those of tables."""
    levels: list[str] = field(default_factory=list)
    """Folders that lead to tables: files may lie in them, too."""
    failures: list[tuple[str, str]] = field(default_factory=list)
    is_cut: bool = False
    """There are more unknown folders than were to be looked into."""


def discover(
    warehouse: str, known: Iterable[str], children: Children, *, roots_max: int, holding: Holding = list, turn: int = 0
) -> Discovery:
    """`known`: keys of the folders that belong to tables, views and whoever else is known."""
    found = Discovery()
    if roots_max > 0:
        strangers = _strangers(warehouse.rstrip("/"), known, children, found)
        _choose(strangers, found, roots_max, holding, turn)
    return found


def _strangers(top: str, known: Iterable[str], children: Children, found: Discovery) -> list[str]:
    owned = {folder.rstrip("/") for folder in known}
    leading = {outer for folder in owned for outer in above(folder)}
    own = f"{top}/{OWN_FOLDER}"
    strangers: list[str] = []
    waiting = [top]
    while waiting:
        level = waiting.pop(0)
        found.levels.append(level)
        names, problem = children(level)
        if problem is not None:
            found.failures.append((level, problem))
        for folder in (f"{level}/{name}" for name in sorted(names)):
            at = key(folder)
            if at in leading:
                waiting.append(folder)
            elif at not in owned and not is_under(at, own):
                strangers.append(folder)
    return strangers


def _choose(strangers: Sequence[str], found: Discovery, roots_max: int, holding: Holding, turn: int) -> None:
    start = turn * roots_max % len(strangers) if len(strangers) > roots_max else 0
    in_turn = [*strangers[start:], *strangers[:start]]
    held: list[str] = []
    scanned, most = 0, min(SCANNED_PER_ROOT * roots_max, len(in_turn))
    # One more than there may be: whether there is one has to be said.
    while len(held) <= roots_max and scanned < most:
        some = in_turn[scanned : min(scanned + roots_max + 1 - len(held), most)]
        scanned += len(some)
        held += holding(some)
    chosen = set(held[:roots_max])
    found.unknown = [folder for folder in strangers if folder in chosen]
    found.is_cut = len(held) > roots_max or scanned < len(in_turn)
