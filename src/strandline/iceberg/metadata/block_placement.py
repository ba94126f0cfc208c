"""Decides where a new block may begin: above all sequence numbers in the table, also foreign ones. Pure.

Others can write any sequence number into a table. A block does not skip numbers that are very far ahead: otherwise one
row could use up the whole sequence. Such numbers are recorded, and checked again before the counter comes near them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strandline.core.errors import RefusedError
from strandline.core.types import SEQ_MAX, BlockPlacement, Checked, SnapshotId

SKIP_MAX = 1 << 40  # numbers skipped at once, at most: the sequence has room for eight million such steps


@dataclass(frozen=True, slots=True)
class NumberSpan:
    """A file's sequence numbers are between these two, both included."""

    lo: int
    hi: int


NearestNumbers = tuple[int | None, int | None]  # the highest sequence number up to a limit, and the lowest above it


def place(
    last: int,
    rows: int,
    snapshot: SnapshotId | None,
    spans: Sequence[NumberSpan],
    nearest: Callable[[int], NearestNumbers],
    *,
    skip_max: int = SKIP_MAX,
) -> BlockPlacement:
    """Where a block of so many rows may begin, so that the table has none of its sequence numbers. `last` is the
    counter. `spans` are the files with numbers above it. `nearest` reads rows: it is called only for a limit that lies
    within a file's span. Raises RefusedError if the sequence has no room."""
    limit = last + skip_max
    while True:
        above = max([last, *(s.hi for s in spans if s.hi <= limit)])
        beyond = [s.lo for s in spans if s.lo > limit]
        if any(s.lo <= limit < s.hi for s in spans):
            highest, lowest = nearest(limit)
            above = max(above, highest or 0)
            beyond += [] if lowest is None else [lowest]
        if above + rows > SEQ_MAX:
            raise RefusedError(
                "the table has sequence numbers up to the end of the sequence, and there is no room for new rows",
                hint="They were written without Strandline: `strandline status` counts them as foreign. Delete them.",
            )
        if above + rows <= limit:
            return BlockPlacement(above, limit, Checked(snapshot, min(beyond, default=None)))
        limit += max(skip_max, rows)


def is_near(checked: Checked, last: int, rows: int, *, skip_max: int = SKIP_MAX) -> bool:
    """Whether a block could get sequence numbers that the last check found beyond its limit."""
    return checked.beyond is not None and last + rows + skip_max >= checked.beyond
