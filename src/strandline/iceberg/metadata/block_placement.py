"""Decides where a new block may begin: above all sequence numbers in the table, also foreign ones. Pure.

Others can write any sequence number into a table. Numbers that are very far ahead are not skipped, because one row
could then use up the whole sequence. They are recorded, and checked again before the counter comes near them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strandline.core.errors import RefusedError
from strandline.core.types import SEQ_MAX, BlockPlacement, Checked, SnapshotId

SKIP_MAX = 1 << 40  # at most so many numbers are skipped at once: the sequence has room for eight million such steps


@dataclass(frozen=True, slots=True)
class NumberSpan:
    """A file's sequence numbers are between these two, both included."""

    lo: int
    hi: int


Around = tuple[int | None, int | None]  # the highest sequence number up to a limit, and the lowest above it


def place(
    last: int,
    rows: int,
    snapshot: SnapshotId | None,
    spans: Sequence[NumberSpan],
    around: Callable[[int], Around],
    *,
    skip_max: int = SKIP_MAX,
) -> BlockPlacement:
    """A place for a block of so many rows without a sequence number that the table has. `last` is the counter. `spans`
    are files with numbers above it. `around` reads rows, and is called only if a file crosses the limit. Raises
    RefusedError."""
    limit = last + skip_max
    while True:
        above = max([last, *(s.hi for s in spans if s.hi <= limit)])
        beyond = [s.lo for s in spans if s.lo > limit]
        if any(s.lo <= limit < s.hi for s in spans):
            highest, lowest = around(limit)
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
    """Whether a block could have sequence numbers that the last check left out."""
    return checked.beyond is not None and last + rows + skip_max >= checked.beyond
