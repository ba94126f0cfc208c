"""What must hold after each run of a history, and not only at its end, when a later run has mended what was wrong."""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol


class Ended(Enum):
    WHOLE = auto()
    """A run that was to act, did not end early, and to which everything answered."""
    SOMEHOW = auto()
    KILLED = auto()


class Place(Protocol):
    def out_of_place(self) -> set[str]:
        """Files that a table has, that no accident took, and that are not where the table says."""

    def set_aside(self) -> set[str]:
        """The old paths of everything in quarantine, whatever any record says."""


def assert_no_live_file_is_touched(place: Place, owed: set[str], ended: Ended) -> set[str]:
    """What the next runs have to bring back. Only a kill between a move and the look after it can leave such a debt, in
    quarantine; whatever else happens, it does not grow, and a run to which everything answers pays it."""
    away, kept = place.out_of_place(), place.set_aside()
    assert away <= kept, f"live files are gone: {sorted(away - kept)}"
    match ended:
        case Ended.WHOLE:
            assert not away, f"live files are left in quarantine: {sorted(away)}"
        case Ended.SOMEHOW:
            assert away <= owed, f"live files are moved: {sorted(away - owed)}"
        case Ended.KILLED:
            pass
    return away
