"""Where a new block of numbers may begin: above every number that the table holds, whoever gave it. Pure.

Others can write any number into a table. Numbers that lie absurdly far ahead are not stepped over, or one row could use
the whole sequence up: they are remembered, and looked at again before the counter comes near them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strandline.core.errors import RefusedError
from strandline.core.types import SEQ_MAX, Checked, Place, SnapshotId

REACH = 1 << 40
"""So many numbers at most are stepped over at once: the sequence has room for eight million such steps."""


@dataclass(frozen=True, slots=True)
class Span:
    """A file holds numbers between these two, and both of them."""

    lo: int
    hi: int


Around = tuple[int | None, int | None]
"""The highest number up to a limit, and the lowest above it."""


def place(
    last: int,
    rows: int,
    snapshot: SnapshotId | None,
    spans: Sequence[Span],
    around: Callable[[int], Around],
    *,
    reach: int = REACH,
) -> Place:
    """Where a block of so many rows meets no number that the table holds. `spans` are files that hold numbers above
    the counter, which is at `last`; `around` reads rows, and is asked only where a file lies across the limit."""
    limit = last + reach
    while True:
        above = max([last, *(s.hi for s in spans if s.hi <= limit)])
        beyond = [s.lo for s in spans if s.lo > limit]
        if any(s.lo <= limit < s.hi for s in spans):
            highest, lowest = around(limit)
            above = max(above, highest or 0)
            beyond += [] if lowest is None else [lowest]
        if above + rows > SEQ_MAX:
            raise RefusedError(
                "the table holds numbers up to the end of the sequence, and there is no room for new rows",
                hint="Somebody wrote them past Strandline: `strandline status` counts them as foreign. Delete them.",
            )
        if above + rows <= limit:
            return Place(above, limit, Checked(snapshot, min(beyond, default=None)))
        limit += max(reach, rows)


def is_near(checked: Checked, last: int, rows: int, *, reach: int = REACH) -> bool:
    """Whether a block could come to the numbers that were left out of the last look."""
    return checked.beyond is not None and last + rows + reach >= checked.beyond
