"""Finds folders of the warehouse that no table owns: in namespaces that have tables, and namespaces without any.

It walks the levels of the namespaces, breadth first and sorted. A folder that is neither a table nor leads to one is an
unknown root, and is listed as a whole. Known roots do not count: a lake with more tables than the cap still finds
unknown folders. Empty folders do not count either, because a run may leave them behind. If there are more unknown roots
than the cap, another part of them has its turn each day: problems in the first ones must not hide the rest forever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from strandline.reconcile.paths import OWN_FOLDER, above, is_under, key

SCANNED_PER_ROOT = 4

Children = Callable[[str], Iterable[str]]  # names of the folders in a folder
Holding = Callable[[Sequence[str]], Sequence[str]]  # those of the folders that contain anything, or may


@dataclass(frozen=True, slots=True)
class Discovery:
    unknown: Sequence[str]  # folders to list, besides those of tables
    is_cut: bool  # there are more unknown folders than the cap


def discover(
    warehouse: str, known: Iterable[str], children: Children, *, roots_max: int, holding: Holding = list, turn: int = 0
) -> Discovery:
    """`known`: keys of folders that belong to tables, views and everything else that is known."""
    if roots_max <= 0:
        return Discovery((), is_cut=False)
    return _choose(_unowned(warehouse.rstrip("/"), known, children), roots_max, holding, turn)


def _unowned(top: str, known: Iterable[str], children: Children) -> list[str]:
    owned = {folder.rstrip("/") for folder in known}
    leading = {outer for folder in owned for outer in above(folder)}
    own = f"{top}/{OWN_FOLDER}"
    unowned: list[str] = []
    levels = [top]
    for level in levels:  # which grows meanwhile
        for folder in (f"{level}/{name}" for name in sorted(children(level))):
            at = key(folder)
            if at in leading:
                levels.append(folder)
            elif at not in owned and not is_under(at, own):
                unowned.append(folder)
    return unowned


def _choose(unowned: Sequence[str], roots_max: int, holding: Holding, turn: int) -> Discovery:
    start = turn * roots_max % len(unowned) if len(unowned) > roots_max else 0
    in_turn = [*unowned[start:], *unowned[:start]]
    held: list[str] = []
    scanned, most = 0, min(SCANNED_PER_ROOT * roots_max, len(in_turn))
    # One more than allowed, to find out whether there are more.
    while len(held) <= roots_max and scanned < most:
        some = in_turn[scanned : min(scanned + roots_max + 1 - len(held), most)]
        scanned += len(some)
        held += holding(some)
    chosen = set(held[:roots_max])
    is_cut = len(held) > roots_max or scanned < len(in_turn)
    return Discovery([folder for folder in unowned if folder in chosen], is_cut)
