"""Finds folders of the warehouse that no table owns: in namespaces that have tables, and namespaces without any.

It walks the levels of the namespaces, breadth first and sorted. A folder that is neither a table nor leads to one is an
unknown root, and is listed as a whole. Known roots do not count: a lake with more tables than the cap still finds
unknown folders. Empty folders do not count either, because a run may leave them behind. If there are more unknown roots
than the cap, another part of them has its turn each day: problems in the first ones must not hide the rest forever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from strandline.reconcile.paths import OWN_FOLDER, above, is_under, key

SCANNED_PER_ROOT = 4

# names of the folders in a folder, and why it could not be read, if so
Children = Callable[[str], tuple[list[str], str | None]]
Holding = Callable[[Sequence[str]], Sequence[str]]  # those of the folders that contain anything, or may


@dataclass(slots=True)
class Discovery:
    unknown: list[str] = field(default_factory=list)  # folders to list, besides those of tables
    levels: list[str] = field(default_factory=list)  # folders that lead to tables: they may contain files, too
    failures: list[tuple[str, str]] = field(default_factory=list)
    is_cut: bool = False  # there are more unknown folders than the cap


def discover(
    warehouse: str, known: Iterable[str], children: Children, *, roots_max: int, holding: Holding = list, turn: int = 0
) -> Discovery:
    """`known`: keys of folders that belong to tables, views and everything else that is known."""
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
    # One more than allowed, to find out whether there are more.
    while len(held) <= roots_max and scanned < most:
        some = in_turn[scanned : min(scanned + roots_max + 1 - len(held), most)]
        scanned += len(some)
        held += holding(some)
    chosen = set(held[:roots_max])
    found.unknown = [folder for folder in strangers if folder in chosen]
    found.is_cut = len(held) > roots_max or scanned < len(in_turn)
